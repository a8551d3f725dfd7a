"""DescribeQuorum (55), v0-2: the quorum of controllers, which is this node and nobody else (KIP-595, KIP-836).

- The one partition is __cluster_metadata-0; a request for anything else, or for anything besides, gets 3 for all of it.
- There is no log of metadata. What stands for its end is the number of changes to topics since the start, so that who
  looks on sees that something happens, and that nobody is behind.
- v2 names the address at which this client speaks to the node: there is none for controllers only.
"""

from __future__ import annotations

from typing import Final

from onceflow.broker.access import refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.log.partition import LEADER_EPOCH
from onceflow.wire.acls import CLUSTER_NAME, Operation, Resource
from onceflow.wire.messages import describe_quorum as quorum
from onceflow.wire.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse

METADATA_TOPIC: Final = "__cluster_metadata"
NOT_HERE: Final = "This server does not host this topic-partition."


def handle(node: Node, context: Context, request: DescribeQuorumRequest) -> Steps:
    denied = refusal(node, context, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
    if denied:
        return DescribeQuorumResponse(error_code=denied)
    if _is_for_the_metadata(request.topics):
        return _described(node, context)
    topics = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            partitions.append(
                quorum.ResponsePartitionData(
                    partition_index=asked.partition_index,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    error_message=NOT_HERE,
                )
            )
            yield 1
        topics.append(quorum.ResponseTopicData(topic_name=topic.topic_name, partitions=partitions))
        yield 1
    return DescribeQuorumResponse(topics=topics)


def _is_for_the_metadata(topics: list[quorum.RequestTopicData]) -> bool:
    if len(topics) != 1 or topics[0].topic_name != METADATA_TOPIC:
        return False
    partitions = topics[0].partitions
    return len(partitions) == 1 and partitions[0].partition_index == 0


def _described(node: Node, context: Context) -> DescribeQuorumResponse:
    end, now_ms = node.topics.version, node.clock.now_ms()
    leader = quorum.ReplicaState(
        replica_id=node.node_id,
        log_end_offset=end,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    partition = quorum.ResponsePartitionData(
        leader_id=node.node_id, leader_epoch=LEADER_EPOCH, high_watermark=end, current_voters=[leader]
    )
    host, port = context.peer.address or (node.host, node.port)
    address = quorum.Listener(name="CONTROLLER", host=host, port=port)
    return DescribeQuorumResponse(
        topics=[quorum.ResponseTopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        nodes=[quorum.Node(node_id=node.node_id, listeners=[address])],
    )
