"""What is asked again while it may pass, and what is told at once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from confluent_kafka import KafkaError, KafkaException

from onceflow.client.addresses import parse_bootstrap
from onceflow.client.cluster import Cluster, Refused
from onceflow.client.connection import ApiMissing, Connection, NoAnswer, NotAdmitted, NotKafka, Unreachable
from onceflow.client.offsets import may_pass, persistently
from onceflow.client.problems import ClientError, NoBrokerReachable, NotYet, translated
from onceflow.client.settings import ClientSettings
from onceflow.client.shared_transaction import SharedTransaction
from onceflow.errors import ErrorCode
from onceflow.ports import ReservedPort
from tests.unit.client.fake_broker import FakeBroker

PASSING = [
    NoBrokerReachable("nobody listens"),
    Unreachable("it restarts"),
    NoAnswer("it was lost"),
    NotYet("in a moment"),
    Refused("asking", ErrorCode.LEADER_NOT_AVAILABLE),
]
LASTING = [
    ClientError("the broker does not say who coordinates 'app'"),
    NotAdmitted("the login was refused"),
    NotKafka("somebody listens, but not a Kafka broker"),
    ApiMissing("too old"),
    Refused("asking", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    Refused("asking", 9999),
]


class Question:
    """Raises a problem some times, then answers."""

    def __init__(self, problem: Exception, times: int = 2) -> None:
        self.asked = 0
        self._problem = problem
        self._times = times

    def __call__(self) -> str:
        self.asked += 1
        if self.asked <= self._times:
            raise self._problem
        return "answer"


@pytest.mark.parametrize("problem", PASSING, ids=repr)
def test_what_may_pass_is_asked_again(problem: Exception) -> None:
    assert persistently(Question(problem), patience_s=20) == "answer"


@pytest.mark.parametrize("problem", LASTING, ids=repr)
def test_what_stays_as_it_is_is_told_at_once(problem: Exception) -> None:
    question = Question(problem)
    with pytest.raises(type(problem)):
        persistently(question, patience_s=20)
    assert question.asked == 1


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with FakeBroker() as broker, Cluster(broker.settings()) as cluster:
        yield cluster


@pytest.mark.parametrize("problem", PASSING, ids=repr)
def test_owner_of_a_transaction_asks_again_for_what_may_pass(cluster: Cluster, problem: Exception) -> None:
    transaction = SharedTransaction(cluster, "app", timeout_ms=1000, patience_s=20)
    assert transaction._patiently(Question(problem), "asking") == "answer"


@pytest.mark.parametrize("problem", LASTING, ids=repr)
def test_owner_of_a_transaction_tells_at_once_what_stays_as_it_is(cluster: Cluster, problem: Exception) -> None:
    transaction = SharedTransaction(cluster, "app", timeout_ms=1000, patience_s=20)
    question = Question(problem)
    with pytest.raises(type(problem)):
        transaction._patiently(question, "asking")
    assert question.asked == 1


# --- where the classes come from


def test_no_listener_at_any_bootstrap_address_is_a_problem_of_its_own() -> None:
    one, other = ReservedPort(), ReservedPort()
    with pytest.raises(NoBrokerReachable, match=f"{one.number}.*{other.number}.*Is it running"):
        Cluster(ClientSettings(bootstrap=f"127.0.0.1:{one.number},127.0.0.1:{other.number}"))


def test_program_that_is_not_kafka_is_told_by_its_first_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = Connection(parse_bootstrap(f"127.0.0.1:{server.getsockname()[1]}")[0], timeout_s=5)
        answering, _ = server.accept()
        answering.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(NotKafka, match="not a Kafka broker"):
            connection.features()
        answering.close()


LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}


@contextmanager
def not_kafka() -> Iterator[str]:
    """The address of a program that answers everybody in HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    answering, _ = server.accept()
                    with answering, suppress(OSError):
                        answering.recv(1000)
                        answering.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("extra", [{}, LOGIN], ids=["without a login", "with a login"])
def test_program_that_is_not_kafka_is_asked_once(extra: dict[str, str]) -> None:
    with not_kafka() as address:
        began = time.monotonic()
        with (
            Cluster(ClientSettings(bootstrap=address, extra=extra)) as cluster,
            pytest.raises(NotKafka, match="not a Kafka broker"),
        ):
            persistently(lambda: cluster.topics(["t"]), 20)
        with (
            Cluster(ClientSettings(bootstrap=address, extra=extra)) as cluster,
            pytest.raises(NotKafka, match="not a Kafka broker"),
        ):
            cluster.any_broker().features()
        assert time.monotonic() - began < 15


@pytest.mark.parametrize("turn", [1, -1])
def test_broker_that_is_away_is_waited_for_whoever_else_is_at_another_address(turn: int) -> None:
    with not_kafka() as address:
        nobody = ReservedPort()
        addresses = [address, f"127.0.0.1:{nobody.number}"][::turn]
        with Cluster(ClientSettings(bootstrap=",".join(addresses))) as cluster:
            with pytest.raises(ClientError) as raised:
                cluster.topics(["t"])
            assert may_pass(raised.value)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ClientError),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, ClientError),
        (KafkaError.SASL_AUTHENTICATION_FAILED, ClientError),
        (KafkaError._AUTHENTICATION, ClientError),
        (KafkaError.UNSUPPORTED_VERSION, ClientError),
        (KafkaError._UNSUPPORTED_FEATURE, ClientError),
        (KafkaError._TRANSPORT, NotYet),
        (KafkaError._ALL_BROKERS_DOWN, NotYet),
        (KafkaError._TIMED_OUT, NotYet),
        (KafkaError.LEADER_NOT_AVAILABLE, NotYet),
        (KafkaError.NOT_COORDINATOR, NotYet),
    ],
)
def test_librdkafkas_errors_are_sorted_by_whether_they_may_pass(code: int, kind: type[ClientError]) -> None:
    with pytest.raises(ClientError) as raised, translated("asking for offsets"):
        raise KafkaException(KafkaError(code))
    assert type(raised.value) is kind
    assert "asking for offsets failed" in str(raised.value)
