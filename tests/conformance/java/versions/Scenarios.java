/*
 * What a Java client of any version does with a broker: the scenarios of tests/support/clients/programs.py, each on a topic of its own
 * that is there already.
 *
 * java Scenarios <bootstrap> <prefix> <scenario>...
 *
 * One line of JSON for each scenario on standard output, {"scenario": name, "error": null or text}. Only what clients have had since
 * 2.8 is used, so that classes that were compiled once run with every version.
 */

import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class Scenarios {
    private static final long PATIENCE_S = 30;

    private final String bootstrap;
    private final String prefix;

    private Scenarios(String bootstrap, String prefix) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
    }

    private interface Scenario {
        void run(String topic) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        PrintStream results = System.out;
        System.setOut(System.err);
        Scenarios scenarios = new Scenarios(args[0], args[1]);
        // Most of the time each of them waits for the broker.
        ExecutorService threads = Executors.newFixedThreadPool(8);
        for (String name : Arrays.asList(args).subList(2, args.length)) {
            threads.execute(() -> {
                String line = "{\"scenario\": " + quoted(name) + ", \"error\": " + scenarios.outcome(name) + "}";
                synchronized (results) {
                    results.println(line);
                    results.flush();
                }
            });
        }
        threads.shutdown();
        threads.awaitTermination(3 * PATIENCE_S, TimeUnit.SECONDS);
        // Threads of a client that hangs are no reason to stay.
        System.exit(0);
    }

    private String outcome(String name) {
        try {
            scenario(name).run(prefix + "-" + name.replace(' ', '-'));
            return "null";
        } catch (Throwable error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            return quoted(trace.toString());
        }
    }

    private Scenario scenario(String name) {
        switch (name) {
            case "records":
                return this::records;
            case "none": case "gzip": case "snappy": case "lz4": case "zstd":
                return topic -> codec(topic, name);
            case "idempotence":
                return this::idempotence;
            case "commit":
                return this::commit;
            case "abort":
                return this::abort;
            case "offsets":
                return this::offsets;
            case "fencing":
                return this::fencing;
            case "group":
                return topic -> group(topic, "classic");
            case "rebalance":
                return topic -> rebalance(topic, "classic");
            case "consumer protocol":
                return topic -> {
                    group(topic, "consumer");
                    rebalance(topic, "consumer");
                };
            case "admin":
                return this::admin;
            default:
                throw new IllegalArgumentException(name);
        }
    }

    // --- records

    private void records(String topic) throws Exception {
        ProducerRecord<String, String> full = new ProducerRecord<>(topic, 0, 1_234_567_890_123L, "key", "value");
        full.headers().add("header", "text".getBytes(StandardCharsets.UTF_8));
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            check("first offset", 0L, producer.send(full).get().offset());
            check("second offset", 1L, producer.send(new ProducerRecord<>(topic, 0, "key", null)).get().offset());
        }
        List<ConsumerRecord<String, String>> found = read(topic, "read_uncommitted", 2);
        ConsumerRecord<String, String> first = found.get(0);
        check("record", "key value 1234567890123", first.key() + " " + first.value() + " " + first.timestamp());
        for (Header header : first.headers()) {
            check("header", "header text", header.key() + " " + new String(header.value(), StandardCharsets.UTF_8));
        }
        check("number of headers", 1, first.headers().toArray().length);
        check("tombstone", null, found.get(1).value());
    }

    private void codec(String topic, String codec) throws Exception {
        try (KafkaProducer<String, String> producer = producer(Map.of("compression.type", codec, "linger.ms", 50))) {
            send(producer, topic, 0, 100);
        }
        checkNumbered(read(topic, "read_uncommitted", 100), 0, 100);
    }

    private void idempotence(String topic) throws Exception {
        Map<String, Object> settings = Map.of(
            "enable.idempotence", true, "acks", "all", "batch.size", 200, "max.in.flight.requests.per.connection", 5);
        try (KafkaProducer<String, String> producer = producer(settings)) {
            send(producer, topic, 0, 300);
        }
        checkNumbered(read(topic, "read_uncommitted", 300), 0, 300);
    }

    // --- transactions

    private void commit(String topic) throws Exception {
        try (KafkaProducer<String, String> producer = transactional(topic)) {
            for (int first = 0; first < 30; first += 10) {
                producer.beginTransaction();
                send(producer, topic, first, 10);
                producer.commitTransaction();
            }
        }
        checkNumbered(read(topic, "read_committed", 30), 0, 30);
    }

    private void abort(String topic) throws Exception {
        try (KafkaProducer<String, String> producer = transactional(topic)) {
            producer.beginTransaction();
            send(producer, topic, 0, 10);
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, topic, 10, 10);
            producer.commitTransaction();
        }
        checkNumbered(read(topic, "read_committed", 10), 10, 10);
        checkNumbered(read(topic, "read_uncommitted", 20), 0, 20);
    }

    /** Offsets of a group move with the transaction, and only if it is committed. */
    private void offsets(String topic) throws Exception {
        TopicPartition at = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = transactional(topic);
                KafkaConsumer<String, String> member = consumer(Map.of("group.id", topic))) {
            producer.beginTransaction();
            send(producer, topic, 0, 10);
            producer.commitTransaction();
            member.subscribe(List.of(topic));
            checkNumbered(poll(member, 10), 0, 10);
            producer.beginTransaction();
            send(producer, topic, 10, 1);
            producer.sendOffsetsToTransaction(Map.of(at, new OffsetAndMetadata(7)), member.groupMetadata());
            producer.abortTransaction();
            check("offset after the abort", null, member.committed(Set.of(at)).get(at));
            producer.beginTransaction();
            send(producer, topic, 11, 1);
            producer.sendOffsetsToTransaction(Map.of(at, new OffsetAndMetadata(10)), member.groupMetadata());
            producer.commitTransaction();
            check("offset after the commit", 10L, member.committed(Set.of(at)).get(at).offset());
        }
    }

    private void fencing(String topic) throws Exception {
        try (KafkaProducer<String, String> older = transactional(topic)) {
            older.beginTransaction();
            send(older, topic, 0, 5);
            try (KafkaProducer<String, String> newer = transactional(topic)) {
                newer.beginTransaction();
                send(newer, topic, 5, 5);
                newer.commitTransaction();
            }
            try {
                older.commitTransaction();
                throw new AssertionError("the older producer was not fenced");
            } catch (ProducerFencedException fenced) {
                // Which is what it should be.
            } catch (RuntimeException error) {
                // Clients that learn it from an answer of the second protocol say it in another way: nothing of it is
                // committed, which the reader below finds out.
                check("kind of refusal", "InvalidProducerEpochException", error.getClass().getSimpleName());
            }
        }
        checkNumbered(read(topic, "read_committed", 5), 5, 5);
    }

    // --- groups

    private void group(String topic, String protocol) throws Exception {
        String group = topic + "-" + protocol;
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            send(producer, topic, 0, 15);
        }
        try (KafkaConsumer<String, String> member = consumer(membership(group, protocol))) {
            member.subscribe(List.of(topic));
            List<ConsumerRecord<String, String>> found = poll(member, 15);
            checkNumbered(found, 0, 15);
            member.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(10, "ten")));
        }
        try (KafkaConsumer<String, String> next = consumer(membership(group, protocol))) {
            TopicPartition at = new TopicPartition(topic, 0);
            next.subscribe(List.of(topic));
            checkNumbered(poll(next, 5), 10, 5);
            check("metadata of the offset", "ten", next.committed(Set.of(at)).get(at).metadata());
        }
    }

    /** A second member gets half, and when it has left the first one has everything again. */
    private void rebalance(String topic, String protocol) throws Exception {
        String group = topic + "-rebalance-" + protocol;
        try (KafkaConsumer<String, String> first = consumer(membership(group, protocol))) {
            first.subscribe(List.of(topic));
            settle(List.of(first), 2);
            try (KafkaConsumer<String, String> second = consumer(membership(group, protocol))) {
                second.subscribe(List.of(topic));
                settle(List.of(first, second), 1);
            }
            settle(List.of(first), 2);
        }
    }

    /** All members poll until each has so many partitions, none of them twice. */
    private static void settle(List<KafkaConsumer<String, String>> members, int each) {
        long deadline = deadline();
        while (true) {
            Set<TopicPartition> all = new HashSet<>();
            boolean settled = true;
            for (KafkaConsumer<String, String> member : members) {
                member.poll(Duration.ofMillis(50));
                Set<TopicPartition> assigned = member.assignment();
                settled &= assigned.size() == each && Collections.disjoint(all, assigned);
                all.addAll(assigned);
            }
            if (settled) {
                return;
            }
            checkPatience(deadline, "each of " + members.size() + " members has " + each + " partitions; they have " + all);
        }
    }

    private static Map<String, Object> membership(String group, String protocol) {
        Map<String, Object> settings = new HashMap<>(Map.of("group.id", group));
        if (protocol.equals("classic")) {
            settings.put("heartbeat.interval.ms", 100);
        } else {
            settings.put("group.protocol", protocol);
        }
        return settings;
    }

    // --- an administrator

    private void admin(String topic) throws Exception {
        String created = topic + "-created";
        TopicPartition at = new TopicPartition(created, 0);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, created);
        try (Admin admin = Admin.create(Map.of(
                "bootstrap.servers", bootstrap, "default.api.timeout.ms", 20_000, "request.timeout.ms", 10_000))) {
            check("nodes", 1, admin.describeCluster().nodes().get().size());
            NewTopic wanted = new NewTopic(created, 1, (short) 1).configs(Map.of("retention.ms", "60000"));
            admin.createTopics(List.of(wanted)).all().get();
            await(() -> admin.listTopics().names().get().contains(created), "the new topic is listed");
            AlterConfigOp change = new AlterConfigOp(new ConfigEntry("segment.ms", "70000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            await(() -> setting(admin, resource, "segment.ms").equals("70000"), "the change is described");
            check("setting of the beginning", "60000", setting(admin, resource, "retention.ms"));
            admin.createPartitions(Map.of(created, NewPartitions.increaseTo(2))).all().get();
            await(() -> partitions(admin, created) == 2, "the topic has grown");
            try (KafkaProducer<String, String> producer = producer(Map.of())) {
                send(producer, created, 0, 5);
            }
            check("end", 5L, admin.listOffsets(Map.of(at, OffsetSpec.latest())).partitionResult(at).get().offset());
            Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(at, new OffsetAndMetadata(3));
            admin.alterConsumerGroupOffsets(created, offsets).all().get();
            check("offsets", offsets, admin.listConsumerGroupOffsets(created).partitionsToOffsetAndMetadata().get());
            check("state", "Empty", admin.describeConsumerGroups(List.of(created)).all().get().get(created).state().toString());
            admin.deleteConsumerGroups(List.of(created)).all().get();
            admin.deleteTopics(List.of(created)).all().get();
            await(() -> !admin.listTopics().names().get().contains(created), "the topic is gone");
        }
    }

    private static String setting(Admin admin, ConfigResource resource, String name) throws Exception {
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(name).value();
    }

    /** `all` became `allTopicNames` in 3.1, and went in 4.0. */
    private static int partitions(Admin admin, String topic) throws Exception {
        Object described = admin.describeTopics(List.of(topic));
        Object future;
        try {
            future = described.getClass().getMethod("allTopicNames").invoke(described);
        } catch (NoSuchMethodException older) {
            future = described.getClass().getMethod("all").invoke(described);
        }
        Object found = ((Map<?, ?>) future.getClass().getMethod("get").invoke(future)).get(topic);
        return ((Collection<?>) found.getClass().getMethod("partitions").invoke(found)).size();
    }

    // --- clients, and what is done with them

    private KafkaProducer<String, String> producer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap, "max.block.ms", 20_000, "delivery.timeout.ms", 20_000, "request.timeout.ms", 10_000));
        settings.putAll(more);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private KafkaProducer<String, String> transactional(String id) {
        KafkaProducer<String, String> producer = producer(Map.of("transactional.id", id));
        producer.initTransactions();
        return producer;
    }

    private KafkaConsumer<String, String> consumer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap, "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "default.api.timeout.ms", 20_000, "request.timeout.ms", 10_000));
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    /** Numbers as values into partition 0, all of which the broker has when this returns. */
    private static void send(KafkaProducer<String, String> producer, String topic, int first, int count) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int number = first; number < first + count; number++) {
            sent.add(producer.send(new ProducerRecord<>(topic, 0, null, Integer.toString(number))));
        }
        producer.flush();
        for (Future<RecordMetadata> each : sent) {
            each.get();
        }
    }

    private List<ConsumerRecord<String, String>> read(String topic, String isolation, int count) {
        try (KafkaConsumer<String, String> reader = consumer(Map.of("isolation.level", isolation))) {
            TopicPartition at = new TopicPartition(topic, 0);
            reader.assign(List.of(at));
            reader.seekToBeginning(List.of(at));
            return poll(reader, count);
        }
    }

    /** The next so many records; more than these at once is an error that the checks of their values find. */
    private static List<ConsumerRecord<String, String>> poll(KafkaConsumer<String, String> reader, int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        long deadline = deadline();
        while (found.size() < count) {
            ConsumerRecords<String, String> arrived = reader.poll(Duration.ofMillis(200));
            arrived.forEach(found::add);
            checkPatience(deadline, count + " records arrive; there are " + found.size());
        }
        return found;
    }

    // --- checks

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void await(Condition condition, String what) throws Exception {
        for (long deadline = deadline(); !condition.holds(); Thread.sleep(20)) {
            checkPatience(deadline, what);
        }
    }

    private static long deadline() {
        return System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
    }

    private static void checkPatience(long deadline, String what) {
        if (System.nanoTime() > deadline) {
            throw new AssertionError("not within " + PATIENCE_S + " s: " + what);
        }
    }

    private static void checkNumbered(List<ConsumerRecord<String, String>> found, int first, int count) {
        List<String> expected = new ArrayList<>();
        for (int number = first; number < first + count; number++) {
            expected.add(Integer.toString(number));
        }
        List<String> values = new ArrayList<>();
        found.forEach(record -> values.add(record.value()));
        check("values", expected, values);
    }

    private static void check(String what, Object expected, Object found) {
        if (expected == null ? found != null : !expected.equals(found)) {
            throw new AssertionError(what + ": expected " + expected + ", found " + found);
        }
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            quoted.append(each >= ' ' && each != '"' && each != '\\' ? String.valueOf(each) : String.format("\\u%04x", (int) each));
        }
        return quoted.append('"').toString();
    }
}
