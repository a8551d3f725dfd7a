import java.util.Locale;
import java.util.Properties;
import java.util.SplittableRandom;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Fills a topic as fast as it can, in transactions of a given time or without (0), and prints one line of JSON.
 *
 * <p>The clock starts and stops when everything sent so far is acknowledged, with transactions and without. Kafka's own
 * ProducerPerformance starts it when its warm-up is sent: a producer without transactions then still has up to 32 MB
 * under way, one with transactions next to nothing, and the two rates cannot be compared to a few percent.
 *
 * <p>If asked for, every second transaction is aborted. Before an abort everything is flushed: the producer would
 * otherwise drop what it has not sent yet, and the log would hold less than half of it.
 *
 * <p>Usage: java -cp JARS TransactionalFill.java BOOTSTRAP TOPIC WARM_UP_RECORDS RECORDS SIZE TRANSACTION_MS ABORTING
 */
public final class TransactionalFill {
    private final KafkaProducer<byte[], byte[]> producer;
    private final String topic;
    private final byte[] value;
    private final long transactionNanos;
    private final boolean aborting;
    private long committed = 0;
    private long transactions = 0;

    private TransactionalFill(
            KafkaProducer<byte[], byte[]> producer, String topic, int size, long transactionMs, boolean aborting) {
        this.producer = producer;
        this.topic = topic;
        this.value = new byte[size];
        this.transactionNanos = transactionMs * 1_000_000;
        this.aborting = aborting;
        new SplittableRandom(0).nextBytes(value);
    }

    public static void main(String[] args) {
        long records = Long.parseLong(args[3]);
        long transactionMs = Long.parseLong(args[5]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        if (transactionMs > 0) {
            settings.put("transactional.id", args[1]);
        }
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (transactionMs > 0) {
                producer.initTransactions();
            }
            TransactionalFill fill = new TransactionalFill(
                    producer, args[1], Integer.parseInt(args[4]), transactionMs, Boolean.parseBoolean(args[6]));
            fill.send(Long.parseLong(args[2]));
            long start = System.nanoTime();
            fill.send(records);
            double seconds = (System.nanoTime() - start) / 1e9;
            System.out.printf(
                    Locale.ROOT,
                    "{\"records\": %d, \"committed\": %d, \"transactions\": %d, \"seconds\": %.6f}%n",
                    records, fill.committed, fill.transactions, seconds);
        }
    }

    /** Send so many records and wait until they are acknowledged. */
    private void send(long records) {
        if (transactionNanos == 0) {
            for (long sent = 0; sent < records; sent++) {
                producer.send(new ProducerRecord<>(topic, value));
            }
            producer.flush();
            committed += records;
            return;
        }
        for (long sent = 0; sent < records; transactions++) {
            producer.beginTransaction();
            long before = sent;
            long end = System.nanoTime() + transactionNanos;
            do {
                producer.send(new ProducerRecord<>(topic, value));
                sent++;
            } while (sent < records && System.nanoTime() < end);
            if (aborting && transactions % 2 == 1) {
                producer.flush();
                producer.abortTransaction();
            } else {
                producer.commitTransaction();
                committed += sent - before;
            }
        }
    }
}
