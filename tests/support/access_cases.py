"""Requests and the permissions that they need, for any broker: with all of them a request succeeds, and without any one
of them it gets the error of what is missing.

A case is about one api and the names of a `Place`. What has to be there before is made by an administrator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onceflow.broker.authorization import REFUSALS
from onceflow.errors import ErrorCode
from onceflow.wire.acls import Acl, Operation, Resource
from onceflow.wire.messages import delete_acls, describe_acls, describe_quorum
from onceflow.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from onceflow.wire.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, OpData, RequestEntryData
from onceflow.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from onceflow.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from onceflow.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from onceflow.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from onceflow.wire.messages.delete_groups import DeleteGroupsRequest
from onceflow.wire.messages.delete_topics import DeleteTopicsRequest
from onceflow.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from onceflow.wire.messages.describe_groups import DescribeGroupsRequest
from onceflow.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from onceflow.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from onceflow.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from onceflow.wire.messages.describe_topic_partitions import TopicRequest as DescribedTopic
from onceflow.wire.messages.describe_transactions import DescribeTransactionsRequest
from onceflow.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from onceflow.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from onceflow.wire.messages.end_txn import EndTxnRequest
from onceflow.wire.messages.find_coordinator import FindCoordinatorRequest
from onceflow.wire.messages.heartbeat import HeartbeatRequest
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from onceflow.wire.messages.list_config_resources import ListConfigResourcesRequest
from onceflow.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from onceflow.wire.messages.update_features import UpdateFeaturesRequest
from onceflow.wire.schema import Message
from tests.support.access_requests import (
    Place,
    acl,
    add_partitions,
    add_partitions_as_a_broker,
    changed_configs,
    commit_offsets_in_transaction,
    commit_request,
    consumer_group,
    create_topic,
    delete_by_id,
    delete_offsets,
    delete_records,
    described_configs,
    fetch_offsets,
    heartbeat_of_consumer_group,
    identity,
    join,
    leader_epoch,
    list_offsets,
    marker,
    metadata,
    new_acl,
    new_user,
    offsets,
    producer,
    replaced_configs,
    some_acl,
    sync,
    topic,
    transaction,
    transactional_produce,
)
from tests.support.raw import batch, fetch_request, produce_request

__all__ = ["CASES", "Case"]

TOPIC, GROUP, CLUSTER, TXN = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID
CREATE, READ, WRITE, DELETE = Operation.CREATE, Operation.READ, Operation.WRITE, Operation.DELETE
ALTER, DESCRIBE, ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
SHOW_CONFIGS, SET_CONFIGS, IDEMPOTENT = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE
WITHOUT_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
CREATED_SOON = frozenset({ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""What Apache Kafka says of a topic that it creates on the way."""
GROUPS_ARE_FIXED = frozenset({ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG})


@dataclass(frozen=True)
class Case:
    api: int
    title: str
    needs: tuple[tuple[Operation, Resource], ...]
    request: Callable[[Place], tuple[Message, int]]
    before: Callable[[Place], None] = lambda place: None
    as_well: frozenset[ErrorCode] = frozenset()
    """Codes of a request that was let through: not every case is worth a complete life of a group."""
    refused_as: Resource | None = None
    """Where one of several permissions does: whose error it is if there is none."""
    for_the_answer_only: Operation | None = None
    """Without it the request is carried out, and only the answer has an error in it."""

    def __str__(self) -> str:
        return f"{self.api:02}-{self.title.replace(' ', '-')}"

    def refusal(self, missing: Resource) -> ErrorCode:
        return REFUSALS[self.refused_as or missing]

    def rules(self, place: Place, principal: str) -> list[Acl]:
        return [acl(operation, resource, place.name(resource), principal) for operation, resource in self.needs]


CASES = [
    Case(0, "produce", ((WRITE, TOPIC),), lambda p: (produce_request(p.topic, batch("x")), 12), topic),
    Case(
        0, "produce by id", ((WRITE, TOPIC),), lambda p: (produce_request(p.memory["topic id"], batch("x")), 13), topic
    ),
    Case(0, "produce in a transaction", ((WRITE, TOPIC), (WRITE, TXN)), transactional_produce, producer),
    Case(1, "fetch", ((READ, TOPIC),), lambda p: (fetch_request(p.topic, 0, max_wait_ms=0), 12), topic),
    Case(
        1, "fetch by id", ((READ, TOPIC),), lambda p: (fetch_request(p.memory["topic id"], 0, max_wait_ms=0), 13), topic
    ),
    Case(2, "list offsets", ((DESCRIBE, TOPIC),), list_offsets, topic),
    Case(3, "metadata", ((DESCRIBE, TOPIC),), metadata, topic),
    Case(3, "metadata that creates", ((DESCRIBE, TOPIC), (CREATE, TOPIC)), metadata, as_well=CREATED_SOON),
    Case(8, "commit offsets", ((READ, GROUP), (READ, TOPIC)), commit_request, topic),
    Case(9, "fetch offsets", ((DESCRIBE, GROUP), (DESCRIBE, TOPIC)), fetch_offsets, offsets),
    Case(10, "find a group", ((DESCRIBE, GROUP),), lambda p: (FindCoordinatorRequest(coordinator_keys=[p.group]), 4)),
    Case(10, "find a group alone", ((DESCRIBE, GROUP),), lambda p: (FindCoordinatorRequest(key=p.group), 3)),
    Case(
        10,
        "find a transactional id",
        ((DESCRIBE, TXN),),
        lambda p: (FindCoordinatorRequest(key_type=1, coordinator_keys=[p.transactional_id]), 4),
    ),
    Case(11, "join", ((READ, GROUP),), join, as_well=frozenset({ErrorCode.MEMBER_ID_REQUIRED})),
    Case(
        12,
        "heartbeat",
        ((READ, GROUP),),
        lambda p: (HeartbeatRequest(group_id=p.group, member_id="nobody", generation_id=1), 4),
        as_well=WITHOUT_MEMBER,
    ),
    Case(
        13,
        "leave",
        ((READ, GROUP),),
        lambda p: (LeaveGroupRequest(group_id=p.group, members=[MemberIdentity(member_id="nobody")]), 5),
        as_well=WITHOUT_MEMBER,
    ),
    Case(14, "sync", ((READ, GROUP),), sync, as_well=WITHOUT_MEMBER),
    Case(15, "describe a group", ((DESCRIBE, GROUP),), lambda p: (DescribeGroupsRequest(groups=[p.group]), 5), offsets),
    Case(
        19,
        "create a topic",
        ((CREATE, TOPIC), (SHOW_CONFIGS, TOPIC)),
        create_topic,
        for_the_answer_only=SHOW_CONFIGS,
    ),
    Case(
        19,
        "create any topic",
        ((CREATE, CLUSTER), (SHOW_CONFIGS, TOPIC)),
        create_topic,
        refused_as=TOPIC,
        for_the_answer_only=SHOW_CONFIGS,
    ),
    Case(
        20,
        "delete a topic",
        ((DELETE, TOPIC),),
        lambda p: (DeleteTopicsRequest(topic_names=[p.topic], timeout_ms=10_000), 5),
        topic,
    ),
    Case(20, "delete a topic by id", ((DELETE, TOPIC),), delete_by_id, topic),
    Case(20, "delete any topic", ((DELETE, CLUSTER),), delete_by_id, topic, refused_as=TOPIC),
    Case(21, "delete records", ((DELETE, TOPIC),), delete_records, topic),
    Case(
        22,
        "init a transactional id",
        ((WRITE, TXN),),
        lambda p: (InitProducerIdRequest(transactional_id=p.transactional_id, transaction_timeout_ms=60_000), 5),
    ),
    Case(22, "init idempotence", ((IDEMPOTENT, CLUSTER),), lambda p: (InitProducerIdRequest(), 5)),
    Case(
        22,
        "init idempotence for a topic",
        ((WRITE, TOPIC),),
        lambda p: (InitProducerIdRequest(), 5),
        refused_as=CLUSTER,
    ),
    Case(23, "leader epoch", ((DESCRIBE, TOPIC),), leader_epoch, topic),
    Case(23, "leader epoch for brokers", ((ACTION, CLUSTER),), leader_epoch, topic, refused_as=TOPIC),
    Case(24, "add partitions", ((WRITE, TXN), (WRITE, TOPIC)), add_partitions, producer),
    Case(24, "add partitions as a broker", ((ACTION, CLUSTER),), add_partitions_as_a_broker, producer),
    Case(
        25,
        "add offsets",
        ((WRITE, TXN), (READ, GROUP)),
        lambda p: (AddOffsetsToTxnRequest(**identity(p), group_id=p.group), 4),
        producer,
    ),
    Case(26, "end", ((WRITE, TXN),), lambda p: (EndTxnRequest(**identity(p), committed=True), 5), transaction),
    Case(27, "write a marker", ((ALTER, CLUSTER),), marker, transaction),
    Case(27, "write a marker as a broker", ((ACTION, CLUSTER),), marker, transaction),
    Case(
        28,
        "commit offsets in a transaction",
        ((WRITE, TXN), (READ, GROUP), (READ, TOPIC)),
        commit_offsets_in_transaction,
        transaction,
    ),
    Case(
        29,
        "describe acls",
        ((DESCRIBE, CLUSTER),),
        lambda p: (
            describe_acls.DescribeAclsRequest(
                resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
            ),
            3,
        ),
    ),
    Case(30, "create acls", ((ALTER, CLUSTER),), new_acl),
    Case(
        31,
        "delete acls",
        ((ALTER, CLUSTER),),
        lambda p: (
            delete_acls.DeleteAclsRequest(
                filters=[
                    delete_acls.DeleteAclsFilter(
                        resource_type_filter=2,
                        resource_name_filter=p.topic,
                        principal_filter="User:third",
                        pattern_type_filter=1,
                        operation=1,
                        permission_type=1,
                    )
                ]
            ),
            3,
        ),
        some_acl,
    ),
    Case(32, "show topic settings", ((SHOW_CONFIGS, TOPIC),), lambda p: (described_configs(2, p.topic), 4), topic),
    Case(32, "show group settings", ((SHOW_CONFIGS, GROUP),), lambda p: (described_configs(32, p.group), 4)),
    Case(32, "show broker settings", ((SHOW_CONFIGS, CLUSTER),), lambda p: (described_configs(4, "1"), 4)),
    Case(33, "replace topic settings", ((SET_CONFIGS, TOPIC),), lambda p: (replaced_configs(2, p.topic), 2), topic),
    Case(
        33,
        "replace group settings",
        ((SET_CONFIGS, GROUP),),
        lambda p: (replaced_configs(32, p.group), 2),
        as_well=GROUPS_ARE_FIXED,
    ),
    Case(
        33,
        "replace broker settings",
        ((SET_CONFIGS, CLUSTER),),
        lambda p: (replaced_configs(4, "1"), 2),
    ),
    Case(44, "change topic settings", ((SET_CONFIGS, TOPIC),), lambda p: (changed_configs(2, p.topic), 1), topic),
    Case(
        44,
        "change group settings",
        ((SET_CONFIGS, GROUP),),
        lambda p: (changed_configs(32, p.group), 1),
        as_well=GROUPS_ARE_FIXED,
    ),
    Case(
        44,
        "change broker settings",
        ((SET_CONFIGS, CLUSTER),),
        lambda p: (changed_configs(4, "1"), 1),
    ),
    Case(
        34,
        "move between log dirs",
        ((ALTER, CLUSTER),),
        lambda p: (
            AlterReplicaLogDirsRequest(
                dirs=[AlterReplicaLogDir(path="/none", topics=[AlterReplicaLogDirTopic(name=p.topic, partitions=[0])])]
            ),
            2,
        ),
        as_well=frozenset({ErrorCode.LOG_DIR_NOT_FOUND}),
    ),
    Case(35, "describe log dirs", ((DESCRIBE, CLUSTER),), lambda p: (DescribeLogDirsRequest(topics=None), 4)),
    Case(
        37,
        "create partitions",
        ((ALTER, TOPIC),),
        lambda p: (
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=p.topic, count=3, assignments=None)], timeout_ms=10_000
            ),
            3,
        ),
        topic,
    ),
    Case(42, "delete a group", ((DELETE, GROUP),), lambda p: (DeleteGroupsRequest(groups_names=[p.group]), 2), offsets),
    Case(
        43,
        "elect leaders",
        ((ALTER, CLUSTER),),
        lambda p: (ElectLeadersRequest(topic_partitions=[TopicPartitions(topic=p.topic, partitions=[0])]), 2),
        topic,
        as_well=frozenset({ErrorCode.ELECTION_NOT_NEEDED}),
    ),
    Case(
        45,
        "reassign partitions",
        ((ALTER, CLUSTER),),
        lambda p: (
            AlterPartitionReassignmentsRequest(
                topics=[
                    ReassignableTopic(name=p.topic, partitions=[ReassignablePartition(partition_index=0, replicas=[1])])
                ]
            ),
            1,
        ),
        topic,
    ),
    Case(46, "list reassignments", ((DESCRIBE, CLUSTER),), lambda p: (ListPartitionReassignmentsRequest(), 0)),
    Case(47, "delete offsets", ((DELETE, GROUP), (READ, TOPIC)), delete_offsets, offsets),
    Case(48, "describe quotas", ((SHOW_CONFIGS, CLUSTER),), lambda p: (DescribeClientQuotasRequest(), 1)),
    Case(
        49,
        "take a quota back",
        ((SET_CONFIGS, CLUSTER),),
        lambda p: (
            AlterClientQuotasRequest(
                entries=[
                    RequestEntryData(
                        entity=[EntityData(entity_type="user", entity_name="nobody")],
                        ops=[OpData(key="producer_byte_rate", value=0.0, remove=True)],
                    )
                ]
            ),
            0,
        ),
    ),
    Case(
        50,
        "describe users",
        ((DESCRIBE, CLUSTER),),
        # By name: where all are asked for, Apache Kafka never answers who may not.
        lambda p: (DescribeUserScramCredentialsRequest(users=[UserName(name="nobody")]), 0),
        as_well=frozenset({ErrorCode.RESOURCE_NOT_FOUND}),
    ),
    Case(51, "add a user", ((ALTER, CLUSTER),), new_user),
    Case(
        55,
        "describe the quorum",
        ((DESCRIBE, CLUSTER),),
        lambda p: (
            describe_quorum.DescribeQuorumRequest(
                topics=[
                    describe_quorum.RequestTopicData(
                        topic_name="__cluster_metadata", partitions=[describe_quorum.RequestPartitionData()]
                    )
                ]
            ),
            2,
        ),
    ),
    Case(57, "update features", ((ALTER, CLUSTER),), lambda p: (UpdateFeaturesRequest(), 2)),
    Case(
        61,
        "describe producers",
        ((READ, TOPIC),),
        lambda p: (DescribeProducersRequest(topics=[TopicRequest(name=p.topic, partition_indexes=[0])]), 0),
        topic,
    ),
    Case(
        65,
        "describe a transaction",
        ((DESCRIBE, TXN),),
        lambda p: (DescribeTransactionsRequest(transactional_ids=[p.transactional_id]), 0),
        producer,
    ),
    Case(68, "be in a consumer group", ((READ, GROUP), (DESCRIBE, TOPIC)), heartbeat_of_consumer_group, topic),
    Case(
        69,
        "describe a consumer group",
        ((DESCRIBE, GROUP), (DESCRIBE, TOPIC)),
        lambda p: (ConsumerGroupDescribeRequest(group_ids=[p.group]), 1),
        consumer_group,
    ),
    Case(74, "list what has settings", ((SHOW_CONFIGS, CLUSTER),), lambda p: (ListConfigResourcesRequest(), 1)),
    Case(
        75,
        "describe topic partitions",
        ((DESCRIBE, TOPIC),),
        lambda p: (DescribeTopicPartitionsRequest(topics=[DescribedTopic(name=p.topic)]), 0),
        topic,
    ),
]
"""What shows less instead of refusing (16, 60, 66, lists of all) is in tests of its own."""
