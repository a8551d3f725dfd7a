"""ListConfigResources (74), v0-1: what has settings that DescribeConfigs can be asked for (KIP-1142, KIP-1106).

No types means all of them, and one that does not exist is 35. Subscriptions to metrics of clients, all that v0 lists,
and groups have no settings of their own here; topics that the client may not describe are listed nevertheless, as in
Apache Kafka: who may see the settings of the cluster may know.
"""

from __future__ import annotations

from typing import Final

from onceflow.broker.access import refusal
from onceflow.broker.handlers import Context
from onceflow.broker.handlers.k32_describe_configs import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    LOGGER_RESOURCE,
    TOPIC_RESOURCE,
)
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.wire.acls import CLUSTER_NAME, Operation, Resource
from onceflow.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

KNOWN: Final = frozenset({TOPIC_RESOURCE, BROKER_RESOURCE, LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE})


def handle(node: Node, context: Context, request: ListConfigResourcesRequest) -> Steps:
    denied = refusal(node, context, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER_NAME)
    if denied:
        return ListConfigResourcesResponse(error_code=denied)
    types = set(request.resource_types) or KNOWN
    if context.version == 0:
        types = {CLIENT_METRICS_RESOURCE}
    if not types <= KNOWN:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    resources = [
        ConfigResource(resource_name=str(node.node_id), resource_type=kind)
        for kind in (LOGGER_RESOURCE, BROKER_RESOURCE)
        if kind in types
    ]
    if TOPIC_RESOURCE in types:
        for topic in tuple(node.topics):
            resources.append(ConfigResource(resource_name=topic.name, resource_type=TOPIC_RESOURCE))
            yield 1
    return ListConfigResourcesResponse(config_resources=resources)
