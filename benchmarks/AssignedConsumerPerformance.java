import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads a topic from the beginning with assign(), so without a consumer group, and prints one line of JSON.
 *
 * <p>Kafka's own ConsumerPerformance subscribes, and so measures a group join as well. The clock here starts when the
 * JVM runs and the partitions are known, and stops at the last record.
 *
 * <p>Usage: java -cp JARS AssignedConsumerPerformance.java BOOTSTRAP TOPIC RECORDS [ISOLATION]
 */
public final class AssignedConsumerPerformance {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final long SILENCE_NANOS_MAX = Duration.ofSeconds(30).toNanos();

    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("enable.auto.commit", "false");
        settings.put("check.crcs", "true");
        if (args.length > 3) {
            settings.put("isolation.level", args[3]);
        }
        String topic = args[1];
        long wanted = Long.parseLong(args[2]);

        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions =
                    consumer.partitionsFor(topic).stream()
                            .map(info -> new TopicPartition(topic, info.partition()))
                            .toList();
            long records = 0;
            long bytes = 0;
            long start = System.nanoTime();
            long last = start;
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (records < wanted) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    records++;
                    bytes += record.value().length;
                    last = 0;
                }
                long now = System.nanoTime();
                if (last == 0) {
                    last = now;
                } else if (now - last > SILENCE_NANOS_MAX) {
                    System.err.printf("no record for 30 s; %d of %d had arrived%n", records, wanted);
                    System.exit(1);
                }
            }
            double seconds = (last - start) / 1e9;
            System.out.printf(
                    Locale.ROOT, "{\"records\": %d, \"bytes\": %d, \"seconds\": %.6f}%n", records, bytes, seconds);
        }
    }
}
