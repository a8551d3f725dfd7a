/* Producers with a transactional id. */

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

final class Transactions {
    private final String bootstrap;
    private final Members members;
    private final Map<Integer, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private int last = 0;

    Transactions(String bootstrap, Members members) {
        this.bootstrap = bootstrap;
        this.members = members;
    }

    void close() {
        producers.values().forEach(producer -> producer.close(Duration.ZERO));
    }

    Object perform(String operation, JsonNode request) throws Exception {
        if (operation.equals("open")) {
            return open(request);
        }
        KafkaProducer<byte[], byte[]> producer = producers.get(request.get("producer").asInt());
        switch (operation) {
            case "begin":
                producer.beginTransaction();
                return null;
            case "send":
                return send(producer, request);
            case "send_offsets": {
                var group = members.get(request).groupMetadata();
                producer.sendOffsetsToTransaction(Members.offsets(request.get("offsets")), group);
                return null;
            }
            case "commit":
                producer.commitTransaction();
                return null;
            case "abort":
                producer.abortTransaction();
                return null;
            case "close":
                // At once: a close with patience would abort what is open, and a producer that crashed cannot.
                producer.close(Duration.ZERO);
                producers.remove(request.get("producer").asInt());
                return null;
            default:
                throw new IllegalArgumentException(request.toString());
        }
    }

    private Object open(JsonNode request) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", request.get("id").asText());
        settings.put("transaction.timeout.ms", request.get("timeout_ms").asInt());
        settings.put("max.block.ms", 15_000);
        settings.put("request.timeout.ms", 10_000);
        settings.put("delivery.timeout.ms", 15_000);
        var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        try {
            producer.initTransactions();
        } catch (RuntimeException error) {
            producer.close(Duration.ZERO);
            throw error;
        }
        producers.put(++last, producer);
        return last;
    }

    private static Object send(KafkaProducer<byte[], byte[]> producer, JsonNode request) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : request.get("records")) {
            sent.add(producer.send(Bridge.producerRecord(request.get("topic").asText(), record)));
        }
        producer.flush();
        for (Future<RecordMetadata> each : sent) {
            each.get();
        }
        return null;
    }
}
