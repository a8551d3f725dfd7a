/* What an administrator sees of groups and transactions, and does to groups. */

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.common.TopicPartition;

final class Groups {
    private final Admin admin;

    Groups(Admin admin) {
        this.admin = admin;
    }

    Object perform(String operation, JsonNode request) throws Exception {
        String group = request.path("group").asText();
        switch (operation) {
            case "list":
                return admin.listGroups().all().get().stream().map(GroupListing::groupId).collect(Collectors.toList());
            case "describe":
                return describe(admin.describeConsumerGroups(List.of(group)).all().get().get(group));
            case "offsets":
                return offsets(group);
            case "alter_offsets":
                admin.alterConsumerGroupOffsets(group, Members.offsets(request.get("offsets"))).all().get();
                return null;
            case "delete_offsets": {
                Set<TopicPartition> partitions = new HashSet<>();
                request.get("partitions").forEach(each -> partitions.add(Members.partition(each)));
                admin.deleteConsumerGroupOffsets(group, partitions).all().get();
                return null;
            }
            case "delete":
                admin.deleteConsumerGroups(List.of(group)).all().get();
                return null;
            default:
                throw new IllegalArgumentException(request.toString());
        }
    }

    private static Object describe(ConsumerGroupDescription group) {
        List<Object> members = new ArrayList<>();
        for (MemberDescription member : group.members()) {
            Map<String, Object> each = new HashMap<>();
            each.put("instance_id", member.groupInstanceId().orElse(null));
            each.put("partitions", Members.json(member.assignment().topicPartitions()));
            members.add(each);
        }
        String protocol = group.type().name().toLowerCase();
        return Map.of(
            "state", group.groupState().toString(), "assignor", group.partitionAssignor(), "protocol", protocol, "members", members);
    }

    private Object offsets(String group) throws Exception {
        List<Object> found = new ArrayList<>();
        admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().forEach((at, offset) -> {
            if (offset != null) {
                found.add(List.of(at.topic(), at.partition(), offset.offset()));
            }
        });
        return found;
    }
}
