"""What goes wrong between a client and a broker, and librdkafka's errors as sentences for a person.

    ClientError                      what was asked did not happen; asking again changes nothing, unless a class below
    |                                (or a retriable code of `cluster.Refused`) says so
    |-- NoBrokerReachable            nobody listens at any bootstrap address, as while a broker restarts
    |-- NotYet                       it is not there now and may come
    |-- connection.Unreachable       no connection to this broker; nothing was sent
    |-- connection.NoAnswer          sent, and not answered: it may have been done or not
    |   `-- connection.NotKafka      whoever listens there answers with something else than Kafka's protocol
    |-- connection.NotAdmitted       TLS or the login failed
    `-- connection.ApiMissing        the broker is too old, or too new

Only the second to the fourth, and `NoAnswer` itself, are worth asking again: see `offsets.persistently`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onceflow.errors import ConfigError, ErrorCode, OnceflowError

__all__ = [
    "ClientError",
    "NoBrokerReachable",
    "NotYet",
    "Overheard",
    "configured",
    "describe",
    "is_retriable",
    "translated",
]


class ClientError(OnceflowError):
    """Something asked of a broker did not happen; the message says what, and what to do."""


class NoBrokerReachable(ClientError):
    """Nobody accepts a connection at any of the bootstrap addresses: nothing was sent."""


class NotYet(ClientError):
    """What was asked for is not there now and may come."""


def is_retriable(code: int) -> bool:
    """Whether Kafka calls this error code retriable; one that is not known here is not."""
    try:
        return ErrorCode(code).retriable
    except ValueError:
        return False


def describe(error: Any) -> str:
    """A `KafkaError` in one line: the broker's own words if it sent any, without librdkafka's prefixes."""
    text = str(error.str()).replace("Broker: ", "").replace("Local: ", "")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turns a `KafkaException` into a `ClientError` that starts with what was being done; `NotYet` if it may pass."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as problem:
        error = problem.args[0]
        kind = NotYet if _may_pass(error) else ClientError
        raise kind(f"{doing} failed: {describe(error)}") from None


def _may_pass(error: Any) -> bool:
    """librdkafka's own codes are negative; the others are those of the protocol."""
    from confluent_kafka import KafkaError

    passing = (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._WAIT_COORD,
    )
    return error.code() in passing or is_retriable(error.code())


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
