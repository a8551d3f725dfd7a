import java.io.FileReader;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Goes on writing for so many milliseconds, then says how often its connections logged in again. */
public class StayingClient {
    public static void main(String[] words) throws Exception {
        Properties settings = new Properties();
        try (FileReader reader = new FileReader(words[0])) {
            settings.load(reader);
        }
        settings.put("retries", "0");
        settings.put("enable.idempotence", "false");
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            long end = System.currentTimeMillis() + Long.parseLong(words[1]);
            while (System.currentTimeMillis() < end) {
                producer.send(new ProducerRecord<>("t", "value")).get(15, TimeUnit.SECONDS);
                Thread.sleep(20);
            }
            producer.metrics().forEach((name, metric) -> {
                if (name.name().equals("successful-reauthentication-total") && name.tags().size() == 1) {
                    System.out.println(((Number) metric.metricValue()).intValue());
                }
            });
        }
    }
}
