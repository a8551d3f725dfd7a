import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Commits small transactions back to back, one record for each of some partitions, and prints one line of JSON.
 *
 * <p>Every producer has a thread and a transactional id of its own. What is counted begins after the warm-up; the time of
 * a commit is that of commitTransaction(), so it includes that the records of the transaction are acknowledged.
 *
 * <p>Usage: java -cp JARS TransactionPerformance.java BOOTSTRAP TOPIC PARTITIONS PRODUCERS WARM_UP_SECONDS SECONDS
 */
public final class TransactionPerformance {
    private static final int RECORD_BYTES = 100;

    /** What one producer did: all its commits, and the nanoseconds of those that count. */
    private record Done(long committed, List<Long> nanos) {}

    public static void main(String[] args) throws Exception {
        int producers = Integer.parseInt(args[3]);
        double warmUpSeconds = Double.parseDouble(args[4]);
        double seconds = Double.parseDouble(args[5]);
        List<KafkaProducer<byte[], byte[]>> all = new ArrayList<>();
        for (int number = 0; number < producers; number++) {
            all.add(producer(args[0], args[1] + "-" + number));
        }
        long begin = System.nanoTime() + (long) (warmUpSeconds * 1e9);
        long end = begin + (long) (seconds * 1e9);
        // Daemons: should one of them fail, the program ends with its error instead of waiting for the others.
        ExecutorService threads = Executors.newFixedThreadPool(producers, work -> {
            Thread thread = new Thread(work);
            thread.setDaemon(true);
            return thread;
        });
        List<Future<Done>> running = new ArrayList<>();
        for (KafkaProducer<byte[], byte[]> producer : all) {
            running.add(threads.submit(() -> commit(producer, args[1], Integer.parseInt(args[2]), begin, end)));
        }
        long committed = 0;
        List<Long> nanos = new ArrayList<>();
        for (Future<Done> each : running) {
            Done done = each.get();
            committed += done.committed();
            nanos.addAll(done.nanos());
        }
        threads.shutdown();
        all.forEach(producer -> producer.close(Duration.ofSeconds(10)));
        long[] sorted = nanos.stream().mapToLong(Long::longValue).sorted().toArray();
        System.out.printf(
                Locale.ROOT,
                "{\"committed\": %d, \"transactions\": %d, \"seconds\": %.6f, \"p50_ms\": %.4f, \"p99_ms\": %.4f}%n",
                committed,
                sorted.length,
                seconds,
                percentile(sorted, 50),
                percentile(sorted, 99));
    }

    private static KafkaProducer<byte[], byte[]> producer(String bootstrap, String transactionalId) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", transactionalId);
        KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        return producer;
    }

    private static Done commit(
            KafkaProducer<byte[], byte[]> producer, String topic, int partitions, long begin, long end) {
        byte[] value = new byte[RECORD_BYTES];
        Arrays.fill(value, (byte) 'x');
        long committed = 0;
        List<Long> nanos = new ArrayList<>();
        while (System.nanoTime() < end) {
            producer.beginTransaction();
            for (int partition = 0; partition < partitions; partition++) {
                producer.send(new ProducerRecord<>(topic, partition, null, value));
            }
            long asked = System.nanoTime();
            producer.commitTransaction();
            long answered = System.nanoTime();
            committed++;
            if (begin <= asked && answered <= end) {
                nanos.add(answered - asked);
            }
        }
        return new Done(committed, nanos);
    }

    private static double percentile(long[] sorted, int percent) {
        return sorted.length == 0 ? Double.NaN : sorted[Math.min(sorted.length - 1, sorted.length * percent / 100)] / 1e6;
    }
}
