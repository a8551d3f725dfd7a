"""What a topic takes, by its settings: asked for before something is written, and to explain a refusal."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final, NamedTuple

from onceflow.client.cluster import Cluster
from onceflow.client.problems import ClientError
from onceflow.digits import whole_number_of
from onceflow.errors import ErrorCode
from onceflow.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

__all__ = ["TopicLimits", "topic_limits"]

log = logging.getLogger("onceflow.client")

TOPIC_RESOURCE: Final = 2
_BYTES: Final = "max.message.bytes"
_CLEANUP: Final = "cleanup.policy"


class TopicLimits(NamedTuple):
    bytes_max: int | None = None
    """The largest record batch, as it is sent; None if it is not known."""
    needs_keys: bool = False
    """It is compacted, and takes no record without a key."""


def topic_limits(cluster: Cluster, topics: Collection[str]) -> dict[str, TopicLimits]:
    """Without the right DESCRIBE_CONFIGS on a topic, nothing is known of it."""
    found = dict.fromkeys(topics, TopicLimits())
    resources = [
        DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=[_BYTES, _CLEANUP]
        )
        for topic in topics
    ]
    try:
        results = cluster.any_broker().ask(DescribeConfigsRequest(resources=resources)).results
    except ClientError as problem:
        log.debug("what %s take is not known: %s", ", ".join(topics), problem)
        return found
    for each in results:
        if each.error_code == ErrorCode.NONE:
            values = {setting.name: setting.value or "" for setting in each.configs}
            policies = values.get(_CLEANUP, "").split(",")
            found[each.resource_name] = TopicLimits(
                bytes_max=whole_number_of(values.get(_BYTES, "")), needs_keys="compact" in map(str.strip, policies)
            )
    return found
