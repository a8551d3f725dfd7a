/* Consumers that are members of a group. */

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

final class Members {
    private final String bootstrap;
    private final Map<Integer, KafkaConsumer<byte[], byte[]>> members = new HashMap<>();
    private final Map<Integer, List<TopicPartition>> revoked = new HashMap<>();
    private int last = 0;

    Members(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    void close() {
        members.values().forEach(member -> member.close(CloseOptions.timeout(Duration.ofSeconds(1))));
    }

    KafkaConsumer<byte[], byte[]> get(JsonNode request) {
        return members.get(request.get("member").asInt());
    }

    Object perform(String operation, JsonNode request) {
        switch (operation) {
            case "open":
                return open(request);
            case "poll":
                return Bridge.poll(get(request), request);
            case "assignment":
                return json(get(request).assignment());
            case "revoked":
                return json(revoked.get(request.get("member").asInt()));
            case "commit":
                get(request).commitSync(offsets(request.get("offsets")));
                return null;
            case "commit_async":
                get(request).commitAsync(offsets(request.get("offsets")), null);
                return null;
            case "committed": {
                TopicPartition at = partition(request.get("at"));
                OffsetAndMetadata found = get(request).committed(Set.of(at)).get(at);
                return found == null ? null : found.offset();
            }
            case "position":
                return get(request).position(partition(request.get("at")));
            case "seek":
                get(request).seek(partition(request.get("at")), request.get("offset").asLong());
                return null;
            case "close":
                return close(request);
            default:
                throw new IllegalArgumentException(request.toString());
        }
    }

    private Object open(JsonNode request) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("default.api.timeout.ms", 15_000);
        request.get("settings").fields().forEachRemaining(each -> settings.put(each.getKey(), each.getValue().asText()));
        var member = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<String> topics = new ArrayList<>();
        request.get("topics").forEach(each -> topics.add(each.asText()));
        List<TopicPartition> taken = new ArrayList<>();
        if (!topics.isEmpty()) {
            member.subscribe(topics, remember(taken));
        }
        members.put(++last, member);
        revoked.put(last, taken);
        return last;
    }

    /** Partitions that the group takes away from a member before the end. */
    private static ConsumerRebalanceListener remember(List<TopicPartition> taken) {
        return new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                taken.addAll(partitions);
            }
        };
    }

    /** A member that remains in the group says nothing to it when it ends, as if it had died. */
    private Object close(JsonNode request) {
        GroupMembershipOperation operation = request.path("silently").asBoolean(false)
            ? GroupMembershipOperation.REMAIN_IN_GROUP : GroupMembershipOperation.DEFAULT;
        CloseOptions options = CloseOptions.timeout(Duration.ofSeconds(5)).withGroupMembershipOperation(operation);
        members.remove(request.get("member").asInt()).close(options);
        return null;
    }

    static TopicPartition partition(JsonNode pair) {
        return new TopicPartition(pair.get(0).asText(), pair.get(1).asInt());
    }

    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode triples) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        triples.forEach(each -> offsets.put(partition(each), new OffsetAndMetadata(each.get(2).asLong())));
        return offsets;
    }

    static List<Object> json(Collection<TopicPartition> partitions) {
        List<Object> pairs = new ArrayList<>();
        partitions.forEach(each -> pairs.add(List.of(each.topic(), each.partition())));
        return pairs;
    }
}
