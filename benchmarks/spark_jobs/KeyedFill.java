import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Properties;
import java.util.SplittableRandom;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Fills a topic with keyed records as Kafka's producer does by default, and prints a line of JSON when it
 * begins to send and one when all is acknowledged.
 *
 * <p>Values are lower-case letters, all different; keys take turns. At a rate above 0 it sends that many per second, in
 * steps of ten milliseconds, else as fast as it can.
 *
 * <p>Usage: java -cp JARS KeyedFill.java BOOTSTRAP TOPIC RECORDS SIZE KEYS RECORDS_PER_SECOND
 */
public final class KeyedFill {
    private static final int POOL = 1 << 20;
    private static final long STEP_NANOS = 10_000_000;

    public static void main(String[] args) throws Exception {
        long records = Long.parseLong(args[2]);
        int size = Integer.parseInt(args[3]);
        byte[][] keys = keys(Integer.parseInt(args[4]));
        double perNano = Double.parseDouble(args[5]) / 1e9;
        byte[] letters = letters(POOL + size);
        AtomicReference<Exception> failure = new AtomicReference<>();
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        long start;
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.partitionsFor(args[1]);
            System.out.println("{\"sending\": true}");
            start = System.nanoTime();
            for (long sent = 0; sent < records; sent++) {
                if (perNano > 0) {
                    waitForTurn(start, sent / perNano);
                }
                byte[] value = new byte[size];
                System.arraycopy(letters, (int) (sent * 31 % POOL), value, 0, size);
                producer.send(new ProducerRecord<>(args[1], keys[(int) (sent % keys.length)], value), (at, error) -> {
                    if (error != null) {
                        failure.set(error);
                    }
                });
            }
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        System.out.printf(Locale.ROOT, "{\"records\": %d, \"seconds\": %.6f}%n", records, seconds);
    }

    private static void waitForTurn(long start, double dueNanos) throws InterruptedException {
        while (System.nanoTime() - start < dueNanos) {
            Thread.sleep(STEP_NANOS / 1_000_000);
        }
    }

    private static byte[][] keys(int count) {
        byte[][] keys = new byte[count][];
        for (int i = 0; i < count; i++) {
            keys[i] = String.format("key-%06d", i).getBytes(StandardCharsets.US_ASCII);
        }
        return keys;
    }

    private static byte[] letters(int count) {
        SplittableRandom random = new SplittableRandom(0);
        byte[] letters = new byte[count];
        for (int i = 0; i < count; i++) {
            letters[i] = (byte) ('a' + random.nextInt(26));
        }
        return letters;
    }
}
