"""The topics, as a consumer group (KIP-848) sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, Protocol
from uuid import UUID

__all__ = ["ResolvedRegex", "TopicInfo", "Topics", "metadata_hash"]


class TopicInfo(NamedTuple):
    id: UUID
    name: str
    partitions: int


class Topics(Protocol):
    """Those that there are now."""

    @property
    def version(self) -> int:
        """Another number after every topic that appeared, grew or went away."""

    def named(self, name: str) -> TopicInfo | None: ...

    def with_id(self, id: UUID) -> TopicInfo | None: ...

    def names(self) -> Iterable[str]: ...


class ResolvedRegex(NamedTuple):
    topics: frozenset[str]
    version: int
    timestamp_ms: int


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """A number that changes when one of these topics appears, grows or goes away; 0 if there are none.

    Kafka's is another hash function. The number means nothing to anyone but who computed it: a group whose number is
    not the expected one gets a new epoch, which is safe.
    """
    found = sorted(info for name in set(names) if (info := topics.named(name)) is not None)
    if not found:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for info in found:
        digest.update(b"%s %s %d\n" % (info.id.bytes, info.name.encode(), info.partitions))
    return int.from_bytes(digest.digest(), "big", signed=True)
