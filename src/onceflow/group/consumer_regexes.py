"""Which topics the regular expressions of a consumer group match (KIP-848).

One name can take RE2 some milliseconds, and there may be thousands of topics: matching goes in steps, and what it comes
to is decided at its end, on the group as it is then.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.consumer_decision import Decision
from onceflow.group.consumer_group import ConsumerGroup
from onceflow.group.consumer_records import RegexKey, RegexValue, group_record
from onceflow.group.consumer_topics import ResolvedRegex, Topics, metadata_hash
from onceflow.group.topic_regex import BadRegex, TopicRegex

__all__ = ["compile_regex", "match_regexes", "regexes_resolved"]


def match_regexes(
    topics: Topics, regexes: Iterable[str], now_ms: int, visible: Callable[[str], bool] = lambda name: True
) -> Generator[int, None, dict[str, ResolvedRegex]]:
    """Match expressions with the topics that there are and that are visible to whoever has it done."""
    version = topics.version
    outcome = {}
    for regex in sorted(regexes):
        compiled = compile_regex(regex)
        yield 0
        matched = []
        for name in tuple(topics.names()):
            if compiled.matches(name) and visible(name):
                matched.append(name)
            yield 0
        outcome[regex] = ResolvedRegex(frozenset(matched), version, now_ms)
    return outcome


def regexes_resolved(group: ConsumerGroup, matched: Mapping[str, ResolvedRegex]) -> Decision:
    """A different outcome means a new group epoch. What was never matched counts as one that matched nothing."""
    version = min((resolved.version for resolved in matched.values()), default=group.topics.version)
    decision = Decision(resolved_version=version)
    outcome = dict(group.regexes)
    subscribed = {group.members[member_id].topic_regex for member_id in group.regex_members}
    for regex, resolved in matched.items():
        if regex not in subscribed:
            continue
        outcome[regex] = resolved
        value = RegexValue(topics=sorted(resolved.topics), version=version, timestamp=resolved.timestamp_ms)
        decision.records.append((RegexKey(group_id=group.id, regular_expression=regex), value))
    wanted = set().union(*(member.topic_names for member in group.members.values()))
    wanted |= set().union(*(resolved.topics for resolved in outcome.values()))
    hashed = metadata_hash(wanted, group.topics)
    if _matched(group.regexes) != _matched(outcome) or hashed != group.metadata_hash:
        decision.records.append(group_record(group.id, group.epoch + 1, hashed))
    decision.checked_version = group.topics.version
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
