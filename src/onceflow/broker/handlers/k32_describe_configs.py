"""DescribeConfigs (32), v1-4: settings of topics and of this broker, where each comes from, and what it means.

A named key that does not exist is left out. Broker settings are read-only here: they are given at start. What
--durability decides is shown as log.flush.interval.messages: 1 means that what is acknowledged is on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from onceflow.broker.access import check, check_cluster
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.config import BROKER_SETTINGS, FLUSH_MESSAGES, TOPIC_SETTINGS, BrokerConfig, Setting, Source
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4


def topic_settings(config: BrokerConfig, overrides: Mapping[str, str]) -> Iterator[tuple[str, str, Source]]:
    """(name, value, source) of every topic setting."""
    for name in TOPIC_SETTINGS:
        value, source = config.topic_text(name, overrides)
        yield name, value, source


def handle(node: Node, context: Context, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_describe(node, context, asked, request) for asked in request.resources])


def _describe(
    node: Node, context: Context, asked: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=asked.resource_type, resource_name=asked.resource_name)
    try:
        match asked.resource_type:
            case 2:
                check(node, context, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, asked.resource_name)
                configs = list(_topic(node, asked.resource_name))
            case 4:
                check_cluster(node, context, Operation.DESCRIBE_CONFIGS)
                configs = list(_broker(node, asked.resource_name))
            case other:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Resource type {other} is not served here.")
    except ProtocolError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    wanted = set(asked.configuration_keys or ())  # no list, or an empty one, means all
    result.configs = [config for config in configs if not wanted or config.name in wanted]
    for config in result.configs:
        if not request.include_synonyms:
            config.synonyms = []
        if not request.include_documentation:
            config.documentation = None
    return result


def _topic(node: Node, name: str) -> Iterator[DescribeConfigsResourceResult]:
    topic = node.topics.named(name)
    for key, value, source in topic_settings(node.config, topic.overrides):
        setting = TOPIC_SETTINGS[key]
        synonyms = _broker_synonyms(node.config, setting.synonym)
        if source is Source.TOPIC:
            synonyms.insert(0, DescribeConfigsSynonym(name=key, value=value, source=Source.TOPIC))
        yield _result(setting, value, source, synonyms, read_only=False)


def _broker(node: Node, name: str) -> Iterator[DescribeConfigsResourceResult]:
    if name == "":
        return  # the cluster-wide dynamic settings, of which there are none
    if name != str(node.node_id):
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Broker {name} is not here; this one is {node.node_id}.")
    for setting in BROKER_SETTINGS.values():
        value, source = node.config.in_effect(setting.name)
        if setting.name == FLUSH_MESSAGES:
            synonyms = [DescribeConfigsSynonym(name=setting.name, value=value, source=source)]
        else:
            synonyms = _broker_synonyms(node.config, setting.name)
        yield _result(setting, value, source, synonyms, read_only=True)


def _broker_synonyms(config: BrokerConfig, name: str) -> list[DescribeConfigsSynonym]:
    setting = BROKER_SETTINGS[name]
    default = DescribeConfigsSynonym(name=name, value=setting.default, source=Source.DEFAULT)
    if name in config.given:
        value = None if setting.sensitive else config.given[name]
        return [DescribeConfigsSynonym(name=name, value=value, source=Source.STATIC_BROKER), default]
    return [default]


def _result(
    setting: Setting, value: str, source: Source, synonyms: list[DescribeConfigsSynonym], read_only: bool
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=None if setting.sensitive else value,
        read_only=read_only,
        config_source=source,
        is_sensitive=setting.sensitive,
        synonyms=synonyms,
        config_type=setting.type,
        documentation=setting.doc,
    )
