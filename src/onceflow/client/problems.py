"""librdkafka's errors as sentences for a person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onceflow.errors import ConfigError, OnceflowError

__all__ = ["ClientError", "describe", "Overheard", "configured", "translated"]


class ClientError(OnceflowError):
    """Something asked of a broker did not happen; the message says what, and what to do."""


def describe(error: Any) -> str:
    """A `KafkaError` in one line: the broker's own words if it sent any, without librdkafka's prefixes."""
    text = str(error.str()).replace("Broker: ", "").replace("Local: ", "")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turns a `KafkaException` into a `ClientError` that starts with what was being done."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as problem:
        raise ClientError(f"{doing} failed: {describe(problem.args[0])}") from None


@contextmanager
def configured() -> Iterator[None]:
    """Turns librdkafka's refusal of a setting into a `ConfigError`."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as problem:
        raise ConfigError(f"the client settings are not accepted: {describe(problem.args[0])}") from None
    except (TypeError, ValueError) as problem:
        raise ConfigError(f"the client settings are not accepted: {problem}") from None


class Overheard:
    """An `error_cb` that remembers.

    librdkafka says here why a connection failed and nowhere else: the call that waits only says that it
    timed out.
    """

    def __init__(self) -> None:
        self.last: str | None = None
        self.all_down = False

    def __call__(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.all_down = True
        else:
            self.last = describe(error)
