"""DescribeConfigs (32), v1-4: settings of topics and of this broker, where each comes from, and what it means.

A named key that does not exist is left out. Settings of the broker that are given at start are read-only. A broker
without a name is the default of all brokers, which has what was set for it and nothing else. What --durability decides
is shown as log.flush.interval.messages: 1 means that what is acknowledged is on disk.

Groups have the broker's settings for consumer groups, loggers their levels; neither can be changed while it runs.
Subscriptions to metrics of clients have no settings, since there are none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final, TypeAlias

from onceflow.broker.access import check, check_cluster
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.config import BROKER_SETTINGS, DYNAMIC, FLUSH_MESSAGES, TOPIC_SETTINGS, BrokerConfig, Setting, Source
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
LOGGER_RESOURCE: Final = 8
CLIENT_METRICS_RESOURCE: Final = 16
GROUP_RESOURCE: Final = 32
GROUP_SETTINGS: Final = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms")
"""The broker's begin with `group.`"""
LEVELS: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}
"""Python's names of levels, where Kafka has others."""

Described: TypeAlias = Mapping[str, DescribeConfigsResourceResult]
"""By the names of the settings."""


def topic_settings(config: BrokerConfig, overrides: Mapping[str, str]) -> Iterator[tuple[str, str, Source]]:
    """(name, value, source) of every topic setting."""
    for name in TOPIC_SETTINGS:
        value, source = config.topic_text(name, overrides)
        yield name, value, source


def handle(node: Node, context: Context, request: DescribeConfigsRequest) -> Steps:
    settings = _Settings(node, request)
    results = []
    for asked in request.resources:
        result = _describe(node, context, asked, settings)
        results.append(result)
        yield 1 + sum(1 + len(config.synonyms) for config in result.configs)
    return DescribeConfigsResponse(results=results)


def _describe(
    node: Node, context: Context, asked: DescribeConfigsResource, settings: _Settings
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=asked.resource_type, resource_name=asked.resource_name)
    try:
        match asked.resource_type:
            case 2:
                check(node, context, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, asked.resource_name)
                configs = settings.of_topic(asked.resource_name)
            case 4:
                check_cluster(node, context, Operation.DESCRIBE_CONFIGS)
                configs = settings.of_broker(asked.resource_name)
            case 8:
                check_cluster(node, context, Operation.DESCRIBE_CONFIGS)
                configs = settings.of_loggers(asked.resource_name)
            case 16:
                check_cluster(node, context, Operation.DESCRIBE_CONFIGS)
                configs = settings.of_client_metrics(asked.resource_name)
            case 32:
                check(node, context, Operation.DESCRIBE_CONFIGS, Resource.GROUP, asked.resource_name)
                configs = settings.of_group(asked.resource_name)
            case other:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Resource type {other} is not served here.")
    except ProtocolError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    wanted = set(asked.configuration_keys or ())  # no list, or an empty one, means all
    result.configs = [config for name, config in configs.items() if not wanted or name in wanted]
    return result


class _Settings:
    """Settings as one request wants them described. What is the same for many resources is one object in its answer."""

    def __init__(self, node: Node, request: DescribeConfigsRequest) -> None:
        self._node = node
        self._with_synonyms = request.include_synonyms
        self._documented = request.include_documentation

    def of_topic(self, name: str) -> Described:
        topic = self._node.topics.named(name)
        own = {key: self._of_topic(key, topic.overrides) for key in topic.overrides}
        return {**self._of_any_topic, **own}

    @cached_property
    def _of_any_topic(self) -> Described:
        return {key: self._of_topic(key, {}) for key in TOPIC_SETTINGS}

    def _of_topic(self, key: str, overrides: Mapping[str, str]) -> DescribeConfigsResourceResult:
        setting = TOPIC_SETTINGS[key]
        value, source = self._node.config.topic_text(key, overrides)
        synonyms = _broker_synonyms(self._node.config, setting.synonym)
        if source is Source.TOPIC:
            synonyms.insert(0, DescribeConfigsSynonym(name=key, value=value, source=Source.TOPIC))
        return self._described(setting, value, source, synonyms, read_only=False)

    def of_broker(self, name: str) -> Described:
        if name == "":
            return self._of_all_brokers
        check_broker(self._node, name)
        return self._of_this_broker

    @cached_property
    def _of_this_broker(self) -> Described:
        return {setting.name: self._of_broker(setting) for setting in BROKER_SETTINGS.values()}

    def _of_broker(self, setting: Setting) -> DescribeConfigsResourceResult:
        value, source = self._node.config.in_effect(setting.name)
        if setting.name == FLUSH_MESSAGES:
            synonyms = [DescribeConfigsSynonym(name=setting.name, value=value, source=source)]
        else:
            synonyms = _broker_synonyms(self._node.config, setting.name)
        return self._described(setting, value, source, synonyms, read_only=setting.name not in DYNAMIC)

    @property
    def _of_all_brokers(self) -> Described:
        described = {}
        for name, value in sorted(self._node.config.for_all_brokers.items()):
            source = Source.DYNAMIC_DEFAULT_BROKER
            synonym = DescribeConfigsSynonym(name=name, value=value, source=source)
            described[name] = self._described(BROKER_SETTINGS[name], value, source, [synonym], read_only=False)
        return described

    def of_loggers(self, name: str) -> Described:
        check_broker(self._node, name)
        return self._of_all_loggers

    @cached_property
    def _of_all_loggers(self) -> Described:
        loggers = logging.root.manager.loggerDict
        known = [logging.root] + [each for _, each in sorted(loggers.items()) if isinstance(each, logging.Logger)]
        return {logger.name: self._of_logger(logger) for logger in known}

    @staticmethod
    def _of_logger(logger: logging.Logger) -> DescribeConfigsResourceResult:
        level = logging.getLevelName(logger.getEffectiveLevel())
        return DescribeConfigsResourceResult(
            name=logger.name, value=LEVELS.get(level, level), read_only=True, config_source=Source.DYNAMIC_BROKER_LOGGER
        )

    def of_client_metrics(self, name: str) -> Described:
        check_not_empty(name)
        return {}

    def of_group(self, name: str) -> Described:
        check_not_empty(name)
        return self._of_any_group

    @cached_property
    def _of_any_group(self) -> Described:
        return {name: self._of_group(name) for name in GROUP_SETTINGS}

    def _of_group(self, name: str) -> DescribeConfigsResourceResult:
        broker = f"group.{name}"
        value, source = self._node.config.in_effect(broker)
        setting = replace(BROKER_SETTINGS[broker], name=name)
        return self._described(setting, value, source, _broker_synonyms(self._node.config, broker), read_only=True)

    def _described(
        self, setting: Setting, value: str, source: Source, synonyms: list[DescribeConfigsSynonym], read_only: bool
    ) -> DescribeConfigsResourceResult:
        return DescribeConfigsResourceResult(
            name=setting.name,
            value=None if setting.sensitive else value,
            read_only=read_only,
            config_source=source,
            is_sensitive=setting.sensitive,
            synonyms=synonyms if self._with_synonyms else [],
            config_type=setting.type,
            documentation=setting.doc if self._documented else None,
        )


def check_broker(node: Node, name: str) -> None:
    if name != str(node.node_id):
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Broker {name!r} is not here; this one is {node.node_id}.")


def check_not_empty(name: str) -> None:
    if not name:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "The name of a group or subscription must not be empty.")


def _broker_synonyms(config: BrokerConfig, name: str) -> list[DescribeConfigsSynonym]:
    return [
        DescribeConfigsSynonym(name=each, value=None if _is_secret(each, source) else value, source=source)
        for each, value, source in config.values(name)
    ]


def _is_secret(name: str, source: Source) -> bool:
    return BROKER_SETTINGS[name].sensitive and source is not Source.DEFAULT
