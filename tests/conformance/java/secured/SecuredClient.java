import java.io.FileReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** One line for each file of client settings: what was read back, or the exception that kept it from being written. */
public class SecuredClient {
    public static void main(String[] files) throws Exception {
        for (String file : files) {
            Properties settings = new Properties();
            try (FileReader reader = new FileReader(file)) {
                settings.load(reader);
            }
            settings.put("default.api.timeout.ms", "10000");
            settings.put("request.timeout.ms", "5000");
            try {
                System.out.println(roundTrip(settings, file));
            } catch (ExecutionException e) {
                System.out.println(e.getCause().getClass().getSimpleName() + ": " + e.getCause().getMessage());
            } catch (Exception e) {
                System.out.println(e.getClass().getSimpleName() + ": " + e.getMessage());
            }
        }
    }

    private static String roundTrip(Properties settings, String value) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            admin.describeCluster().nodes().get(15, TimeUnit.SECONDS);
        }
        TopicPartition place = new TopicPartition("java-" + System.nanoTime(), 0);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(place.topic(), value)).get(15, TimeUnit.SECONDS);
        }
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(place));
            consumer.seek(place, 0);
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(10));
            return "read " + records.iterator().next().value();
        }
    }
}
