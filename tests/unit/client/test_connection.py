"""One socket, one request at a time: versions, deadlines, and what is known after a failure."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from onceflow.client.addresses import Address
from onceflow.client.connection import ANSWER_BYTES_MAX, ApiMissing, Connection, NoAnswer, Unreachable
from onceflow.client.problems import ClientError
from onceflow.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from onceflow.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from onceflow.wire.messages.find_coordinator import FindCoordinatorRequest
from onceflow.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from onceflow.wire.schema import Message
from tests.unit.client.fake_broker import FakeBroker, HangUp, KeepSilent


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


def connect(broker: FakeBroker, timeout_s: float = 5.0) -> Connection:
    return Connection(broker.address, timeout_s=timeout_s)


def raises(_: Message, error: type[Exception]) -> Message:
    raise error


def test_an_answer_comes_back_decoded_in_the_highest_common_version(broker: FakeBroker) -> None:
    broker.versions[66] = (0, 1)
    broker.on(ListTransactionsRequest, lambda _: ListTransactionsResponse(unknown_state_filters=["Odd"]))
    with connect(broker) as connection:
        answer = connection.ask(ListTransactionsRequest(state_filters=["Odd"], duration_filter=5))
        assert connection.version(ListTransactionsRequest) == 1
    assert answer == ListTransactionsResponse(unknown_state_filters=["Odd"])
    assert broker.seen == [(ListTransactionsRequest(state_filters=["Odd"], duration_filter=5), 1)]


def test_a_version_can_be_held_down(broker: FakeBroker) -> None:
    broker.on(EndTxnRequest, lambda _: EndTxnResponse())
    with connect(broker) as connection:
        connection.ask(EndTxnRequest(transactional_id="t"), at_most=4)
        connection.ask(EndTxnRequest(transactional_id="t"))
    assert [version for _, version in broker.seen] == [4, 5]


def test_an_unknown_request_is_not_sent(broker: FakeBroker) -> None:
    del broker.versions[66]
    with connect(broker) as connection:
        with pytest.raises(ApiMissing, match="does not know ListTransactions"):
            connection.ask(ListTransactionsRequest())
        assert connection.is_open
    assert broker.seen == []


@pytest.mark.parametrize(("announced", "at_most"), [((3, 9), None), ((1, 2), 0)])
def test_a_request_without_a_common_version_is_not_sent(
    broker: FakeBroker, announced: tuple[int, int], at_most: int | None
) -> None:
    broker.versions[66] = announced
    with connect(broker) as connection, pytest.raises(ApiMissing, match=f"{announced[0]} to {announced[1]} only"):
        connection.ask(ListTransactionsRequest(), at_most=at_most)
    assert broker.seen == []


@pytest.mark.parametrize("newest", [0, 1, 2, 3])
def test_an_older_broker_is_asked_for_its_versions_in_its_own_way(broker: FakeBroker, newest: int) -> None:
    broker.versions[18] = (0, newest)
    broker.features = {"transaction.version": 2}
    with connect(broker) as connection:
        assert connection.versions() == broker.versions
        assert connection.features() == (broker.features if newest >= 3 else {})


def test_features_of_the_cluster_are_known(broker: FakeBroker) -> None:
    broker.features = {"transaction.version": 2, "group.version": 1}
    with connect(broker) as connection:
        assert connection.features() == broker.features


def test_a_broker_that_does_not_say_its_versions_is_an_error(broker: FakeBroker) -> None:
    broker.on(ApiVersionsRequest, lambda _: ApiVersionsResponse(error_code=58))
    with connect(broker) as connection, pytest.raises(ClientError, match="does not say what it knows: error 58"):
        connection.ask(ListTransactionsRequest())
    assert not connection.is_open


def test_nobody_there_means_nothing_was_sent() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match="nobody listens there"):
            Connection(Address("127.0.0.1", holder.getsockname()[1]), timeout_s=2)


def test_silence_ends_at_the_deadline_and_closes_the_connection(broker: FakeBroker) -> None:
    broker.on(ListTransactionsRequest, lambda request: raises(request, KeepSilent))
    connection = connect(broker)
    before = time.monotonic()
    with pytest.raises(NoAnswer, match=r"did not answer within 0\.2 s"):
        connection.ask(ListTransactionsRequest(), timeout_s=0.2)
    assert time.monotonic() - before > 0.19
    assert not connection.is_open
    with pytest.raises(Unreachable, match="is closed"):
        connection.ask(ListTransactionsRequest())


def test_the_deadline_is_for_the_whole_answer_not_for_each_byte() -> None:
    over = threading.Event()

    def drip(peer: socket.socket) -> None:
        peer.sendall(struct.pack(">i", 1000))
        with contextlib.suppress(OSError):
            while not over.wait(0.05):
                peer.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = Connection(Address(*server.getsockname()), timeout_s=0.4)
        peer, _ = server.accept()
        with peer, connection:
            dripping = threading.Thread(target=drip, args=[peer])
            dripping.start()
            before = time.monotonic()
            with pytest.raises(NoAnswer, match="did not answer"):
                connection.versions()
            assert 0.39 < time.monotonic() - before < 30  # all of it would take 50 s
            over.set()
            dripping.join()


def test_a_connection_that_ends_is_no_answer_and_nothing_is_sent_again(broker: FakeBroker) -> None:
    broker.on(ListTransactionsRequest, lambda request: raises(request, HangUp))
    connection = connect(broker)
    with pytest.raises(NoAnswer, match="ended the connection without an answer"):
        connection.ask(ListTransactionsRequest())
    assert not connection.is_open
    assert len(broker.requests(ListTransactionsRequest)) == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">i", -5),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">i", ANSWER_BYTES_MAX + 1),
        struct.pack(">ii", 4, 2) + b"",  # cut off after the header
        struct.pack(">iib", 5, 2, 1),  # a tagged field in the header that is not there
        struct.pack(">ii", 4, 99),  # the answer to another request
        struct.pack(">iibiib", 14, 2, 0, 0, 0, 0) + b"!",  # shorter than it has to be
    ],
)
def test_what_is_not_an_answer_closes_the_connection(broker: FakeBroker, nonsense: bytes) -> None:
    broker.on(ListTransactionsRequest, lambda _: nonsense)
    connection = connect(broker)
    with pytest.raises(NoAnswer, match="but not a Kafka broker it seems"):
        connection.ask(ListTransactionsRequest())
    assert not connection.is_open


def test_tagged_fields_in_the_header_of_an_answer_are_skipped(broker: FakeBroker) -> None:
    tags = b"\x01\x07\x02ab"  # one field: tag 7, two bytes
    body = b"\0\0\0\0" + b"\0\x33" + b"\x01\x01" + b"\0"  # throttle time, error 51, two empty arrays, no tags
    frame = struct.pack(">i", 2) + tags + body
    broker.on(ListTransactionsRequest, lambda _: struct.pack(">i", len(frame)) + frame)
    with connect(broker) as connection:
        assert connection.ask(ListTransactionsRequest()).error_code == 51


def test_closing_twice_is_fine(broker: FakeBroker) -> None:
    connection = connect(broker)
    connection.close()
    connection.close()
    assert not connection.is_open
    with pytest.raises(Unreachable):
        connection.version(FindCoordinatorRequest)
