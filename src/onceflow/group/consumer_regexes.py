"""Which topics the regular expressions of a consumer group match (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.consumer_decision import Decision
from onceflow.group.consumer_group import ConsumerGroup
from onceflow.group.consumer_records import RegexKey, RegexValue, group_record
from onceflow.group.consumer_topics import ResolvedRegex, metadata_hash
from onceflow.group.topic_regex import BadRegex, TopicRegex

__all__ = ["compile_regex", "resolve_regexes"]


def resolve_regexes(
    group: ConsumerGroup, regexes: Iterable[str], now_ms: int, visible: Callable[[str], bool] = lambda name: True
) -> Decision:
    """Match expressions with the topics that there are and that are visible to whoever has it done.

    A different outcome means a new group epoch. What was never matched counts as one that matched nothing.
    """
    version = group.topics.version
    decision = Decision(resolved_version=version)
    outcome = dict(group.regexes)
    for regex in sorted(regexes):
        if not group.regex_subscribers(regex):
            continue
        compiled = compile_regex(regex)
        topics = frozenset(name for name in group.topics.names() if compiled.matches(name) and visible(name))
        outcome[regex] = ResolvedRegex(topics, version, now_ms)
        value = RegexValue(topics=sorted(topics), version=version, timestamp=now_ms)
        decision.records.append((RegexKey(group_id=group.id, regular_expression=regex), value))
    wanted = set().union(*(member.topic_names for member in group.members.values()))
    wanted |= set().union(*(resolved.topics for resolved in outcome.values()))
    hashed = metadata_hash(wanted, group.topics)
    if _matched(group.regexes) != _matched(outcome) or hashed != group.metadata_hash:
        decision.records.append(group_record(group.id, group.epoch + 1, hashed))
    decision.checked_version = version
    return decision


def _matched(regexes: Mapping[str, ResolvedRegex]) -> dict[str, frozenset[str]]:
    return {regex: resolved.topics for regex, resolved in regexes.items() if resolved.topics}


def compile_regex(regex: str) -> TopicRegex:
    try:
        return TopicRegex(regex)
    except BadRegex as error:
        raise ProtocolError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        ) from error
