"""What a consumer says about itself inside JoinGroup: the topics it subscribes to.

The coordinator passes this on to the group's leader unread; it looks inside only to know which offsets are in use.
"""

from __future__ import annotations

from onceflow.errors import MalformedMessage
from onceflow.wire.codec import decode_from
from onceflow.wire.schema import Message, field

__all__ = ["CONSUMER_PROTOCOL", "subscribed_topics"]

CONSUMER_PROTOCOL = "consumer"


class _Subscription(Message, flexible=None):
    """Every version begins like this; later ones add fields behind it."""

    version: int = field("int16", "0+")
    topics: list[str] = field(["string"], "0+")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics; None where a program uses the name of the consumer protocol for bytes of its own."""
    try:
        subscription, _ = decode_from(_Subscription, 0, metadata)
    except MalformedMessage:
        return None
    return frozenset(subscription.topics) if subscription.version >= 0 else None
