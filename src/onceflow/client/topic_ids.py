"""Topic ids (KIP-516): what tells a topic from another one that had, or gets, the same name.

As Kafka prints them: base64 in its alphabet for URLs, without padding, 22 characters.
"""

from __future__ import annotations

import base64
from uuid import UUID

from onceflow.client.admin import TopicMissingError

__all__ = ["TopicRecreated", "from_text", "to_text"]


class TopicRecreated(TopicMissingError):
    """There is a topic of this name, and it is another one than was meant: it was deleted and created again."""

    def __init__(self, message: str, topic: str) -> None:
        super().__init__(message)
        self.topic = topic

    def __reduce__(self) -> tuple[type[TopicRecreated], tuple[str, str]]:
        return TopicRecreated, (str(self), self.topic)  # it may travel from a worker to its driver

    @classmethod
    def of(cls, topic: str, expected: str, found: str) -> TopicRecreated:
        return cls(recreated(topic, expected, found), topic)


def recreated(topic: str, expected: str, found: str) -> str:
    return (
        f"topic {topic!r} was deleted and created again: its id was {expected} and is {found} now, so offsets of the "
        "old one mean nothing in it, and what was not yet read of the old one is gone"
    )


def to_text(topic_id: UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def from_text(text: str) -> UUID:
    """Raises `ValueError` if this is no topic id."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return UUID(bytes=raw)
