"""Requests of every API that needs a permission, and what has to be there before them, for any broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from onceflow.errors import ErrorCode
from onceflow.wire.acls import CLUSTER_NAME, Acl, Operation, Pattern, Permission, Resource
from onceflow.wire.messages import add_partitions_to_txn as adding
from onceflow.wire.messages import alter_configs, create_acls, incremental_alter_configs
from onceflow.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from onceflow.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from onceflow.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from onceflow.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from onceflow.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from onceflow.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from onceflow.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from onceflow.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from onceflow.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from onceflow.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from onceflow.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from onceflow.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from onceflow.wire.messages.sync_group import SyncGroupRequest
from onceflow.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from onceflow.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from onceflow.wire.schema import Message
from tests.support.raw import batch, produce_request

__all__ = [
    "Place",
    "World",
    "acl",
    "add_partitions",
    "add_partitions_as_a_broker",
    "changed_configs",
    "codes",
    "commit_offsets_in_transaction",
    "commit_request",
    "consumer_group",
    "create_topic",
    "delete_by_id",
    "delete_offsets",
    "delete_records",
    "described_configs",
    "fetch_offsets",
    "heartbeat_of_consumer_group",
    "identity",
    "join",
    "leader_epoch",
    "list_offsets",
    "marker",
    "metadata",
    "new_acl",
    "new_user",
    "offsets",
    "producer",
    "replaced_configs",
    "some_acl",
    "sync",
    "topic",
    "transaction",
    "transactional_produce",
]

TOPIC, GROUP, CLUSTER, TXN = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID
PARTITIONS = 1


class World(Protocol):
    def as_admin(self, request: Message, version: int) -> Any:
        """The answer; asked again while it is "not yet"."""
        ...

    def as_user(self, request: Message, version: int) -> Any: ...

    def allow(self, *rules: Acl) -> None:
        """These as well."""
        ...


@dataclass
class Place:
    """What a case is about; names that nobody else has."""

    world: World
    suffix: str
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return f"topic-{self.suffix}"

    @property
    def group(self) -> str:
        return f"group-{self.suffix}"

    @property
    def transactional_id(self) -> str:
        return f"txn-{self.suffix}"

    def name(self, resource: Resource) -> str:
        names = {TOPIC: self.topic, GROUP: self.group, TXN: self.transactional_id, CLUSTER: CLUSTER_NAME}
        return names[resource]


def acl(operation: Operation, resource: Resource, name: str, principal: str, **rest: Any) -> Acl:
    chosen = {"pattern": Pattern.LITERAL, "host": "*", "permission": Permission.ALLOW} | rest
    return Acl(resource=resource, name=name, principal=principal, operation=operation, **chosen)


def codes(message: Any) -> set[ErrorCode]:
    """Every error code in an answer, but for success."""
    return {ErrorCode(code) for code in _codes(message) if code}


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for each in value:
            yield from _codes(each)
    elif isinstance(value, Message):
        for name in type(value).__annotations__:
            inner = getattr(value, name)
            if name.endswith("error_code"):
                yield inner
            else:
                yield from _codes(inner)


# What has to be there before


def topic(place: Place) -> None:
    asked = CreatableTopic(name=place.topic, num_partitions=PARTITIONS, replication_factor=1)
    [result] = place.world.as_admin(CreateTopicsRequest(topics=[asked], timeout_ms=10_000), 7).topics
    assert result.error_code == 0
    place.memory["topic id"] = result.topic_id
    written = place.world.as_admin(produce_request(place.topic, batch("there before")), 12)
    assert not codes(written), written


def offsets(place: Place) -> None:
    topic(place)
    answer = place.world.as_admin(commit_request(place)[0], 9)
    assert not codes(answer), answer


def producer(place: Place) -> None:
    topic(place)
    request = InitProducerIdRequest(transactional_id=place.transactional_id, transaction_timeout_ms=60_000)
    answer = place.world.as_admin(request, 5)
    assert not codes(answer), answer
    place.memory["identity"] = (answer.producer_id, answer.producer_epoch)


def transaction(place: Place) -> None:
    """One that is open, with a record in it."""
    producer(place)
    answer = place.world.as_admin(*transactional_produce(place))
    assert not codes(answer), answer


# Requests


def commit_request(place: Place) -> tuple[Message, int]:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    named = OffsetCommitRequestTopic(name=place.topic, partitions=[partition])
    return OffsetCommitRequest(group_id=place.group, topics=[named]), 9


def transactional_produce(place: Place) -> tuple[Message, int]:
    records = batch("in a transaction", producer=place.memory["identity"], transactional=True)
    return produce_request(place.topic, records, transactional_id=place.transactional_id), 12


def identity(place: Place) -> dict[str, Any]:
    id, epoch = place.memory["identity"]
    return {"transactional_id": place.transactional_id, "producer_id": id, "producer_epoch": epoch}


def add_partitions(place: Place) -> tuple[Message, int]:
    id, epoch = place.memory["identity"]
    return adding.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=place.transactional_id,
        v3_and_below_producer_id=id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[adding.AddPartitionsToTxnTopic(name=place.topic, partitions=[0])],
    ), 3


def add_partitions_as_a_broker(place: Place) -> tuple[Message, int]:
    named = [adding.AddPartitionsToTxnTopic(name=place.topic, partitions=[0])]
    return adding.AddPartitionsToTxnRequest(
        transactions=[adding.AddPartitionsToTxnTransaction(**identity(place), topics=named)]
    ), 4


def commit_offsets_in_transaction(place: Place) -> tuple[Message, int]:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    named = TxnOffsetCommitRequestTopic(name=place.topic, partitions=[partition])
    return TxnOffsetCommitRequest(**identity(place), group_id=place.group, topics=[named]), 5


def marker(place: Place) -> tuple[Message, int]:
    id, epoch = place.memory["identity"]
    named = [WritableTxnMarkerTopic(name=place.topic, partition_indexes=[0])]
    marker = WritableTxnMarker(producer_id=id, producer_epoch=epoch, transaction_result=False, topics=named)
    return WriteTxnMarkersRequest(markers=[marker]), 1


def join(place: Place) -> tuple[Message, int]:
    return JoinGroupRequest(
        group_id=place.group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    ), 9


def heartbeat_of_consumer_group(place: Place, **subscription: Any) -> tuple[Message, int]:
    return ConsumerGroupHeartbeatRequest(
        group_id=place.group,
        member_id="a member",
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        topic_partitions=[],
        **(subscription or {"subscribed_topic_names": [place.topic]}),
    ), 1


def consumer_group(place: Place) -> None:
    topic(place)
    answer = place.world.as_admin(*heartbeat_of_consumer_group(place))
    assert not codes(answer), answer


def described_configs(kind: int, name: str) -> Message:
    return DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)]
    )


BROKER = 4
"""As a resource that has settings."""


def setting_of(kind: int) -> dict[str, str]:
    if kind == BROKER:
        return {"name": "log.retention.bytes", "value": "-1"}
    return {"name": "retention.ms", "value": "1000"}


def replaced_configs(kind: int, name: str) -> Message:
    value = alter_configs.AlterableConfig(**setting_of(kind))
    resource = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[value])
    return alter_configs.AlterConfigsRequest(resources=[resource])


def changed_configs(kind: int, name: str) -> Message:
    value = incremental_alter_configs.AlterableConfig(**setting_of(kind))
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[value])
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])


def new_acl(place: Place) -> tuple[Message, int]:
    creation = create_acls.AclCreation(
        resource_type=TOPIC, resource_name=place.topic, principal="User:third", host="*", operation=3, permission_type=3
    )
    return create_acls.CreateAclsRequest(creations=[creation]), 3


def new_user(place: Place) -> tuple[Message, int]:
    hashed = {"salt": b"salt" * 4, "salted_password": b"p" * 32}
    user = ScramCredentialUpsertion(name=f"user-{place.suffix}", mechanism=1, iterations=4096, **hashed)
    return AlterUserScramCredentialsRequest(upsertions=[user]), 0


def some_acl(place: Place) -> None:
    assert not codes(place.world.as_admin(*new_acl(place)))


def list_offsets(place: Place) -> tuple[Message, int]:
    entry = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name=place.topic, partitions=[entry])]), 7


def leader_epoch(place: Place) -> tuple[Message, int]:
    named = OffsetForLeaderTopic(topic=place.topic, partitions=[OffsetForLeaderPartition(partition=0)])
    return OffsetForLeaderEpochRequest(topics=[named]), 4


def metadata(place: Place) -> tuple[Message, int]:
    return MetadataRequest(topics=[MetadataRequestTopic(name=place.topic)], allow_auto_topic_creation=True), 12


def create_topic(place: Place) -> tuple[Message, int]:
    asked = CreatableTopic(name=place.topic, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[asked], timeout_ms=10_000), 7


def fetch_offsets(place: Place) -> tuple[Message, int]:
    named = OffsetFetchRequestTopics(name=place.topic, partition_indexes=[0])
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=place.group, topics=[named])]), 9


def delete_offsets(place: Place) -> tuple[Message, int]:
    named = OffsetDeleteRequestTopic(name=place.topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    return OffsetDeleteRequest(group_id=place.group, topics=[named]), 0


def sync(place: Place) -> tuple[Message, int]:
    return SyncGroupRequest(
        group_id=place.group, member_id="nobody", generation_id=1, protocol_type="consumer", protocol_name="range"
    ), 5


def delete_records(place: Place) -> tuple[Message, int]:
    named = DeleteRecordsTopic(name=place.topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)])
    return DeleteRecordsRequest(topics=[named], timeout_ms=10_000), 2


def delete_by_id(place: Place) -> tuple[Message, int]:
    return DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=place.memory["topic id"])], timeout_ms=10_000), 6
