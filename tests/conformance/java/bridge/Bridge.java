/*
 * The Java clients of Apache Kafka, driven from Python: one JSON request per line on standard input, one JSON answer per line on
 * standard output, {"ok": result} or {"error": wire code, "message": text}. One JVM serves a whole test session.
 *
 * Here are topics, records and tools; producers with transactions are in Transactions.java, consumers with a group in Members.java and
 * what an administrator does to groups in Groups.java. The Python side is tests/support/clients/java.py and coordinated/java.py.
 */

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Exit;

public final class Bridge {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String bootstrap;
    private final Admin admin;
    private final Members members;
    private final Transactions transactions;
    private final Groups groups;
    private final Map<Integer, KafkaConsumer<byte[], byte[]>> readers = new HashMap<>();
    private int lastReader = 0;

    private Bridge(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap, "default.api.timeout.ms", 15_000, "request.timeout.ms", 10_000));
        this.members = new Members(bootstrap);
        this.transactions = new Transactions(bootstrap, members);
        this.groups = new Groups(admin);
    }

    public static void main(String[] args) throws Exception {
        // Standard output carries answers only, whatever a library prints.
        PrintStream answers = System.out;
        System.setOut(System.err);
        Bridge bridge = new Bridge(args[0]);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = requests.readLine()) != null; ) {
            answers.println(JSON.writeValueAsString(bridge.answer(JSON.readTree(line))));
            answers.flush();
        }
        bridge.readers.values().forEach(KafkaConsumer::close);
        bridge.transactions.close();
        bridge.members.close();
        bridge.admin.close(Duration.ofSeconds(5));
    }

    private Map<String, Object> answer(JsonNode request) {
        Map<String, Object> answer = new LinkedHashMap<>();
        try {
            answer.put("ok", perform(request));
        } catch (Exception error) {
            Throwable cause = error;
            while ((cause instanceof ExecutionException || cause instanceof CompletionException) && cause.getCause() != null) {
                cause = cause.getCause();
            }
            answer.put("error", code(cause).code());
            answer.put("message", cause.toString());
        }
        return answer;
    }

    /** The clients have exceptions of their own for some codes, which no code is registered for. */
    private static Errors code(Throwable error) {
        if (error instanceof OffsetOutOfRangeException) {
            return Errors.OFFSET_OUT_OF_RANGE;
        }
        if (error instanceof CommitFailedException) {
            return Errors.UNKNOWN_MEMBER_ID;
        }
        return Errors.forException(error);
    }

    private Object perform(JsonNode request) throws Exception {
        String[] operation = request.get("op").asText().split("\\.");
        switch (operation[0]) {
            case "transaction":
                return transactions.perform(operation[1], request);
            case "member":
                return members.perform(operation[1], request);
            case "group":
                return groups.perform(operation[1], request);
            default:
                return performOnTopics(request);
        }
    }

    private Object performOnTopics(JsonNode request) throws Exception {
        String topic = request.path("topic").asText();
        TopicPartition at = new TopicPartition(topic, request.path("partition").asInt(0));
        switch (request.get("op").asText()) {
            case "create_topic":
                return createTopic(topic, request);
            case "delete_topic":
                admin.deleteTopics(List.of(topic)).all().get();
                return null;
            case "topics":
                return admin.listTopics().names().get();
            case "describe_topic": {
                TopicDescription found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
                return Map.of("partitions", found.partitions().size(), "id", found.topicId().toString());
            }
            case "create_partitions":
                admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(request.get("total").asInt()))).all().get();
                return null;
            case "describe_config":
                return describeConfig(topic);
            case "set_config":
                return setConfig(topic, request.get("changes"));
            case "delete_records": {
                RecordsToDelete before = RecordsToDelete.beforeOffset(request.get("before").asLong());
                return admin.deleteRecords(Map.of(at, before)).lowWatermarks().get(at).get().lowWatermark();
            }
            case "cluster":
                return cluster();
            case "produce":
                return produce(topic, request);
            case "open_reader":
                return openReader(at, request);
            case "poll":
                return poll(request);
            case "close_reader":
                // Without a timeout it waits for the fetch that is under way, however long that one may wait at the broker.
                readers.remove(request.get("reader").asInt()).close(CloseOptions.timeout(Duration.ZERO));
                return null;
            case "list_offset": {
                var found = admin.listOffsets(Map.of(at, spec(request))).partitionResult(at).get();
                return Map.of("offset", found.offset(), "timestamp", found.timestamp());
            }
            case "offset_at":
                return offsetAt(at, request.get("timestamp").asLong());
            case "watermarks":
                try (KafkaConsumer<byte[], byte[]> consumer = consumer(500, "read_uncommitted")) {
                    return List.of(consumer.beginningOffsets(List.of(at)).get(at), consumer.endOffsets(List.of(at)).get(at));
                }
            case "describe_producers":
                return describeProducers(at);
            case "log_dirs":
                return logDirs();
            case "tool":
                return tool(request);
            default:
                throw new IllegalArgumentException(request.toString());
        }
    }

    private Object createTopic(String topic, JsonNode request) throws Exception {
        Optional<Integer> partitions = request.get("partitions").isNull()
            ? Optional.empty() : Optional.of(request.get("partitions").asInt());
        NewTopic wanted = new NewTopic(topic, partitions, Optional.of((short) request.get("replication").asInt()));
        Map<String, String> config = new HashMap<>();
        request.get("config").fields().forEachRemaining(each -> config.put(each.getKey(), each.getValue().asText()));
        CreateTopicsOptions options = new CreateTopicsOptions().validateOnly(request.get("validate_only").asBoolean());
        CreateTopicsResult created = admin.createTopics(List.of(wanted.configs(config)), options);
        created.all().get();
        return Map.of("partitions", created.numPartitions(topic).get(), "replication", created.replicationFactor(topic).get());
    }

    private Object describeConfig(String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Collection<ConfigEntry> entries = admin.describeConfigs(List.of(resource)).all().get().get(resource).entries();
        Map<String, Object> described = new HashMap<>();
        for (ConfigEntry entry : entries) {
            Map<String, Object> each = new HashMap<>();
            each.put("value", entry.value());
            each.put("default", entry.isDefault());
            each.put("type", entry.type().name());
            each.put("source", entry.source().name());
            described.put(entry.name(), each);
        }
        return described;
    }

    private Object setConfig(String topic, JsonNode changes) throws Exception {
        List<AlterConfigOp> operations = new ArrayList<>();
        changes.fields().forEachRemaining(each -> {
            boolean reset = each.getValue().isNull();
            String value = reset ? null : each.getValue().asText();
            AlterConfigOp.OpType kind = reset ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET;
            operations.add(new AlterConfigOp(new ConfigEntry(each.getKey(), value), kind));
        });
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        admin.incrementalAlterConfigs(Map.of(resource, operations)).all().get();
        return null;
    }

    private Object cluster() throws Exception {
        DescribeClusterResult described = admin.describeCluster();
        List<Object> nodes = new ArrayList<>();
        for (Node node : described.nodes().get()) {
            nodes.add(List.of(node.id(), node.host(), node.port()));
        }
        return Map.of("id", described.clusterId().get(), "controller", described.controller().get().id(), "nodes", nodes);
    }

    private Object produce(String topic, JsonNode request) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("compression.type", request.get("codec").asText());
        settings.put("enable.idempotence", request.get("idempotence").asBoolean());
        settings.put("acks", request.get("acks").asText());
        settings.put("linger.ms", 5);
        settings.put("max.request.size", 10_000_000);
        settings.put("max.block.ms", 15_000);
        settings.put("request.timeout.ms", 10_000);
        settings.put("delivery.timeout.ms", 15_000);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode record : request.get("records")) {
                sent.add(producer.send(producerRecord(topic, record)));
            }
            producer.flush();
        }
        List<Object> offsets = new ArrayList<>();
        for (Future<RecordMetadata> each : sent) {
            offsets.add(each.get().offset());
        }
        return offsets;
    }

    static ProducerRecord<byte[], byte[]> producerRecord(String topic, JsonNode record) {
        List<Header> headers = new ArrayList<>();
        for (JsonNode header : record.get("headers")) {
            headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
        }
        Long timestamp = record.get("timestamp").isNull() ? null : record.get("timestamp").asLong();
        int partition = record.get("partition").asInt();
        return new ProducerRecord<>(topic, partition, timestamp, bytes(record.get("key")), bytes(record.get("value")), headers);
    }

    private Object openReader(TopicPartition at, JsonNode request) {
        String isolation = request.path("isolation").asText("read_uncommitted");
        KafkaConsumer<byte[], byte[]> reader = consumer(request.get("max_wait_ms").asInt(), isolation);
        reader.assign(List.of(at));
        reader.seek(at, request.get("offset").asLong());
        readers.put(++lastReader, reader);
        return lastReader;
    }

    private Object poll(JsonNode request) {
        return poll(readers.get(request.get("reader").asInt()), request);
    }

    static Object poll(Consumer<byte[], byte[]> reader, JsonNode request) {
        List<Object> received = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> record : reader.poll(Duration.ofMillis(request.get("timeout_ms").asLong()))) {
            Map<String, Object> each = new HashMap<>();
            each.put("partition", record.partition());
            each.put("offset", record.offset());
            each.put("timestamp", record.timestamp());
            each.put("append_time", record.timestampType() == TimestampType.LOG_APPEND_TIME);
            each.put("key", text(record.key()));
            each.put("value", text(record.value()));
            List<Object> headers = new ArrayList<>();
            for (Header header : record.headers()) {
                List<Object> pair = new ArrayList<>();
                pair.add(header.key());
                pair.add(text(header.value()));
                headers.add(pair);
            }
            each.put("headers", headers);
            received.add(each);
        }
        return received;
    }

    private KafkaConsumer<byte[], byte[]> consumer(int maxWaitMs, String isolation) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "none");
        settings.put("fetch.max.wait.ms", maxWaitMs);
        settings.put("isolation.level", isolation);
        settings.put("default.api.timeout.ms", 15_000);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static OffsetSpec spec(JsonNode request) {
        switch (request.get("spec").asText()) {
            case "earliest":
                return OffsetSpec.earliest();
            case "latest":
                return OffsetSpec.latest();
            case "max_timestamp":
                return OffsetSpec.maxTimestamp();
            case "earliest_local":
                return OffsetSpec.earliestLocal();
            case "latest_tiered":
                return OffsetSpec.latestTiered();
            default:
                throw new IllegalArgumentException(request.toString());
        }
    }

    private Object offsetAt(TopicPartition at, long timestamp) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(500, "read_uncommitted")) {
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(at, timestamp)).get(at);
            return found == null ? null : found.offset();
        }
    }

    private Object describeProducers(TopicPartition at) throws Exception {
        List<Object> described = new ArrayList<>();
        for (ProducerState state : admin.describeProducers(List.of(at)).partitionResult(at).get().activeProducers()) {
            described.add(Map.of(
                "epoch", state.producerEpoch(),
                "last_sequence", state.lastSequence(),
                "last_timestamp", state.lastTimestamp(),
                "in_transaction", state.currentTransactionStartOffset().isPresent()));
        }
        return described;
    }

    /** Bytes on disk per partition, summed over the folders. */
    private Object logDirs() throws Exception {
        List<Integer> nodes = admin.describeCluster().nodes().get().stream().map(Node::id).collect(Collectors.toList());
        Map<String, Long> sizes = new HashMap<>();
        for (Map<String, LogDirDescription> folders : admin.describeLogDirs(nodes).allDescriptions().get().values()) {
            for (LogDirDescription folder : folders.values()) {
                folder.replicaInfos().forEach((at, info) -> sizes.merge(at.toString(), info.size(), Long::sum));
            }
        }
        return sizes;
    }

    /** Thrown instead of ending the JVM. */
    private static final class Exited extends RuntimeException {
        final int status;

        Exited(int status, String message) {
            super(message);
            this.status = status;
        }
    }

    /** Runs a command line tool inside this JVM, since starting one takes a second: its main, what it reads and what it prints. */
    private static Object tool(JsonNode request) throws Exception {
        String[] arguments = JSON.convertValue(request.get("arguments"), String[].class);
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream out = System.out;
        InputStream in = System.in;
        List<Exited> exits = new ArrayList<>();
        Exit.Procedure exit = (status, message) -> {
            exits.add(new Exited(status, message));
            throw exits.get(exits.size() - 1);
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        List<Runnable> shutdownHooks = new ArrayList<>();
        Exit.setShutdownHookAdder((name, hook) -> shutdownHooks.add(hook));
        System.setOut(new PrintStream(printed, true));
        System.setIn(new ByteArrayInputStream(request.get("feed").asText().getBytes()));
        try {
            Class.forName(request.get("tool").asText()).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Exited)) {
                throw error;
            }
        } finally {
            // The console producer sends what it still holds in such a hook.
            shutdownHooks.forEach(Runnable::run);
            System.setOut(out);
            System.setIn(in);
            Exit.resetExitProcedure();
            Exit.resetHaltProcedure();
            Exit.resetShutdownHookAdder();
        }
        // Some tools catch our exception as if it were an error of theirs and exit a second time: the first one counts.
        int status = exits.isEmpty() ? 0 : exits.get(0).status;
        String complaint = exits.isEmpty() ? "" : String.valueOf(exits.get(0).getMessage());
        return Map.of("status", status, "printed", printed.toString(), "complaint", complaint);
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
