"""The lossy proxy between hand-made frames and a tiny broker that answers with what it was asked."""

from __future__ import annotations

import contextlib
import gc
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from onceflow.errors import MalformedMessage
from onceflow.verify.lossy_proxy import PASS, Action, Fate, Frame, Hooks, LossyProxy, RandomFaults

PRODUCE, FETCH, METADATA = 0, 1, 3


PATIENCE_S = 20


def request(api_key: int, correlation_id: int, body: bytes = b"body", version: int = 9) -> bytes:
    payload = struct.pack(">hhi", api_key, version, correlation_id) + body
    return struct.pack(">i", len(payload)) + payload


def response(correlation_id: int, body: bytes = b"body") -> bytes:
    payload = struct.pack(">i", correlation_id) + b"re:" + body
    return struct.pack(">i", len(payload)) + payload


class FakeBroker(socketserver.ThreadingTCPServer):
    """Answers each request with its correlation id and its body, and remembers the bodies it got in full."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Answer)
        self.received: list[bytes] = []
        self.torn = threading.Event()
        self.hung_up = 0
        """Clients that ended their connection."""
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.server_address[1])

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Answer(socketserver.StreamRequestHandler):
    server: FakeBroker

    def handle(self) -> None:
        while prefix := self.rfile.read(4):
            size = int.from_bytes(prefix, "big") if len(prefix) == 4 else -1
            payload = self.rfile.read(size) if size >= 0 else b""
            if len(payload) != size:
                self.server.torn.set()
                return
            self.server.received.append(payload[8:])
            self.wfile.write(response(*struct.unpack(">i", payload[4:8]), payload[8:]))
        self.server.hung_up += 1


class Client:
    """A Kafka client reduced to frames."""

    def __init__(self, proxy: LossyProxy) -> None:
        self.socket = socket.create_connection((proxy.host, proxy.port), timeout=PATIENCE_S)
        self._in = self.socket.makefile("rb")

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def receive(self) -> bytes:
        """The next response, or what there was of it when the connection ended; empty at its end."""
        try:
            prefix = self._in.read(4)
            return prefix + self._in.read(int.from_bytes(prefix, "big")) if len(prefix) == 4 else prefix
        except ConnectionResetError:
            return b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._in.close()
        self.socket.close()


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    fake = FakeBroker()
    yield fake
    fake.stop()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"this did not happen within {PATIENCE_S} s"
        time.sleep(0.002)


def only(api_key: int, fate: Fate, *, delay_s: float = 0.0) -> Callable[[Frame], Action]:
    return lambda frame: Action(fate, delay_s) if frame.api_key == api_key else PASS


def test_without_a_plan_everything_passes_unchanged_and_in_order(broker: FakeBroker) -> None:
    with LossyProxy(broker.address) as proxy, Client(proxy) as client:
        client.send(*(request(PRODUCE, n, b"%d" % n) for n in range(100)))

        assert [client.receive() for _ in range(100)] == [response(n, b"%d" % n) for n in range(100)]
        assert proxy.counters.requests == proxy.counters.responses == 100
        assert proxy.counters.cuts == 0


def test_a_lost_acknowledgement_was_executed_but_never_heard_of(broker: FakeBroker) -> None:
    plan = Hooks(response=only(PRODUCE, Fate.SWALLOW))
    with LossyProxy(broker.address, plan=plan) as proxy, Client(proxy) as client:
        client.send(request(METADATA, 1), request(PRODUCE, 2, b"record"))

        assert client.receive() == response(1)
        assert client.receive() == b""
        assert broker.received == [b"body", b"record"]
        assert (proxy.counters.acks_lost, proxy.counters.cuts) == (1, 1)


def test_a_swallowed_request_never_reaches_the_broker(broker: FakeBroker) -> None:
    plan = Hooks(request=only(PRODUCE, Fate.SWALLOW))
    with LossyProxy(broker.address, plan=plan) as proxy, Client(proxy) as client:
        client.send(request(METADATA, 1))
        client.receive()
        client.send(request(PRODUCE, 2, b"record"))

        assert client.receive() == b""
        assert broker.received == [b"body"]
        assert proxy.counters.requests_swallowed == 1
        assert proxy.counters.acks_lost == 0


def test_a_torn_request_reaches_the_broker_by_half(broker: FakeBroker) -> None:
    plan = Hooks(request=only(PRODUCE, Fate.TEAR))
    with LossyProxy(broker.address, plan=plan) as proxy, Client(proxy) as client:
        client.send(request(PRODUCE, 1, b"x" * 1000))

        assert client.receive() == b""
        assert broker.torn.wait(PATIENCE_S)
        assert broker.received == []
        assert proxy.counters.requests_torn == 1


def test_a_torn_response_reaches_the_client_by_half(broker: FakeBroker) -> None:
    plan = Hooks(response=only(PRODUCE, Fate.TEAR))
    with LossyProxy(broker.address, plan=plan) as proxy, Client(proxy) as client:
        client.send(request(PRODUCE, 1, b"x" * 1000))
        whole = response(1, b"x" * 1000)

        assert client.receive() == whole[: len(whole) // 2]
        assert client.receive() == b""
        assert (proxy.counters.responses_torn, proxy.counters.acks_lost) == (1, 1)


def test_a_delayed_frame_holds_up_what_follows_it(broker: FakeBroker) -> None:
    plan = Hooks(request=only(PRODUCE, Fate.PASS, delay_s=0.1))
    with LossyProxy(broker.address, plan=plan) as proxy, Client(proxy) as client:
        before = time.monotonic()
        client.send(request(PRODUCE, 1), request(METADATA, 2))

        assert [client.receive(), client.receive()] == [response(1), response(2)]
        assert time.monotonic() - before > 0.095
        assert proxy.counters.delayed == 1


def test_a_late_request_reaches_the_broker_after_its_client_was_cut_off(broker: FakeBroker) -> None:
    plan = Hooks(request=only(PRODUCE, Fate.LATE, delay_s=2))  # the new one has to be through by then
    with LossyProxy(broker.address, plan=plan) as proxy, Client(proxy) as client:
        client.send(request(METADATA, 1, b"before"))
        assert client.receive() == response(1, b"before")
        client.send(request(PRODUCE, 2, b"old"))

        assert client.receive() == b""
        with Client(proxy) as again:
            again.send(request(FETCH, 3, b"new"))
            assert again.receive() == response(3, b"new")
        assert broker.received == [b"before", b"new"]
        until(lambda: proxy.counters.delivered_late == 1)
        until(lambda: broker.received == [b"before", b"new", b"old"])
        assert (proxy.counters.requests_late, proxy.counters.cuts) == (1, 1)


def test_what_the_broker_answers_to_a_late_request_is_thrown_away_and_its_connection_closed(broker: FakeBroker) -> None:
    plan = Hooks(request=only(PRODUCE, Fate.LATE))
    with LossyProxy(broker.address, plan=plan) as proxy, Client(proxy) as client:
        client.send(request(PRODUCE, 1, b"old"))

        assert client.receive() == b""
        until(lambda: broker.received == [b"old"] and broker.hung_up == 1)
        assert (proxy.counters.responses, proxy.counters.answered_late) == (0, 1)


def test_cutting_all_connections_does_not_stop_a_late_request(broker: FakeBroker) -> None:
    plan = Hooks(request=only(PRODUCE, Fate.LATE, delay_s=0.2))
    with LossyProxy(broker.address, plan=plan) as proxy, Client(proxy) as client:
        client.send(request(PRODUCE, 1, b"old"))
        assert client.receive() == b""

        assert proxy.cut_all() == 0
        until(lambda: broker.received == [b"old"])


def test_leaving_ends_a_late_request_that_is_not_delivered_yet(broker: FakeBroker) -> None:
    plan = Hooks(request=only(PRODUCE, Fate.LATE, delay_s=60))
    with LossyProxy(broker.address, plan=plan) as proxy, Client(proxy) as client:
        client.send(request(PRODUCE, 1))
        assert client.receive() == b""
    until(lambda: broker.hung_up == 1)
    assert broker.received == []


def test_leaving_closes_connections_that_are_just_being_accepted(broker: FakeBroker) -> None:
    for _ in range(30):
        with LossyProxy(broker.address) as proxy:
            clients = [socket.create_connection((proxy.host, proxy.port), timeout=PATIENCE_S) for _ in range(5)]
        for client in clients:
            with client, contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
    gc.collect()  # a transport that was left open says so when it is collected, and that fails the test


def test_a_response_cannot_be_late_and_is_lost_instead(broker: FakeBroker) -> None:
    plan = Hooks(response=only(PRODUCE, Fate.LATE))
    with LossyProxy(broker.address, plan=plan) as proxy, Client(proxy) as client:
        client.send(request(PRODUCE, 1))
        assert client.receive() == b""
        assert proxy.counters.responses_swallowed == 1


def test_while_frozen_nothing_passes_and_nobody_is_told(broker: FakeBroker) -> None:
    with LossyProxy(broker.address) as proxy, Client(proxy) as client:
        client.send(request(METADATA, 1))
        assert client.receive() == response(1)
        proxy.freeze()
        with Client(proxy) as newcomer:
            client.send(request(METADATA, 2, b"held"))
            newcomer.send(request(METADATA, 3, b"held"))
            for held in (client, newcomer):
                held.socket.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    held.socket.recv(1)
                held.socket.settimeout(PATIENCE_S)
            assert broker.received == [b"body"]

            proxy.resume()
            until(lambda: len(broker.received) == 3)
            assert newcomer.socket.recv(1000) == response(3, b"held")
            assert client.socket.recv(1000) == response(2, b"held")
        assert proxy.counters.cuts == 0


def test_a_frozen_request_arrives_although_its_sender_has_given_up(broker: FakeBroker) -> None:
    with LossyProxy(broker.address) as proxy:
        with Client(proxy) as client:
            client.send(request(METADATA, 1))
            client.receive()
            proxy.freeze()
            client.send(request(PRODUCE, 2, b"held"))
        proxy.resume()
        until(lambda: broker.received == [b"body", b"held"])


def test_refused_connections_are_cut_and_new_ones_closed_until_it_is_over(broker: FakeBroker) -> None:
    with LossyProxy(broker.address) as proxy:
        with Client(proxy) as client:
            client.send(request(METADATA, 1))
            client.receive()
            proxy.refuse()
            assert client.receive() == b""
        with Client(proxy) as client:
            assert client.receive() == b""
        assert (proxy.counters.cut_by_hand, proxy.counters.refused) == (1, 1)

        proxy.resume()
        with Client(proxy) as client:
            client.send(request(METADATA, 2))
            assert client.receive() == response(2)


def test_a_rewritten_response_has_its_new_length_and_is_torn_by_that(broker: FakeBroker) -> None:
    def rewrite(frame: Frame, data: bytes) -> bytes:
        return data.replace(b"body", b"longer body") if frame.api_key == METADATA else data

    plan = Hooks(response=lambda frame: Action(Fate.TEAR) if frame.correlation_id == 3 else PASS)
    with LossyProxy(broker.address, plan=plan, rewrite=rewrite) as proxy, Client(proxy) as client:
        client.send(request(METADATA, 1), request(FETCH, 2), request(METADATA, 3))

        assert [client.receive(), client.receive()] == [response(1, b"longer body"), response(2)]
        whole = response(3, b"longer body")
        assert client.receive() == whole[: len(whole) // 2]


def test_a_response_that_cannot_be_rewritten_is_not_shown(broker: FakeBroker) -> None:
    def rewrite(frame: Frame, data: bytes) -> bytes:
        raise MalformedMessage("nobody can read this")

    with LossyProxy(broker.address, rewrite=rewrite) as proxy, Client(proxy) as client:
        client.send(request(METADATA, 1))
        assert client.receive() == b""
        assert proxy.counters.malformed == 1


def test_the_plan_sees_connection_version_and_size(broker: FakeBroker) -> None:
    seen: list[Frame] = []

    def look(frame: Frame) -> Action:
        seen.append(frame)
        return PASS

    with LossyProxy(broker.address, plan=Hooks(request=look, response=look)) as proxy:
        for _ in range(2):
            with Client(proxy) as client:
                client.send(request(FETCH, 7, b"", version=12))
                client.receive()

    fetch = {"api_key": FETCH, "api_version": 12, "correlation_id": 7}
    assert seen == [Frame(connection=connection, size=size, **fetch) for connection in (1, 2) for size in (8, 7)]


def test_while_the_broker_is_down_connections_are_closed_and_later_ones_work(broker: FakeBroker) -> None:
    address = broker.address
    with LossyProxy(address) as proxy:
        with Client(proxy) as client:
            client.send(request(METADATA, 1))
            assert client.receive() == response(1)
        broker.stop()
        with Client(proxy) as client:
            assert client.receive() == b""
        assert proxy.counters.refused == 1

        again = FakeBroker(address[1])
        try:
            with Client(proxy) as client:
                client.send(request(METADATA, 2))
                assert client.receive() == response(2)
        finally:
            again.stop()


def test_the_upstream_may_become_known_later(broker: FakeBroker) -> None:
    with LossyProxy() as proxy:
        with Client(proxy) as client:
            assert client.receive() == b""
        proxy.upstream = broker.address
        with Client(proxy) as client:
            client.send(request(METADATA, 1))
            assert client.receive() == response(1)


def test_cut_all_ends_open_connections_and_no_others(broker: FakeBroker) -> None:
    with LossyProxy(broker.address) as proxy:
        with Client(proxy) as client:
            client.send(request(METADATA, 1))
            client.receive()
            assert proxy.cut_all() == 1
            assert client.receive() == b""
        assert proxy.cut_all() == 0
        with Client(proxy) as client:
            client.send(request(METADATA, 2))
            assert client.receive() == response(2)
        assert proxy.counters.cut_by_hand == 1


def test_what_is_not_kafka_is_cut_off(broker: FakeBroker) -> None:
    with LossyProxy(broker.address) as proxy, Client(proxy) as client:
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        assert client.receive() == b""
        assert proxy.counters.malformed == 1
        assert broker.received == []


def test_leaving_closes_connections_even_with_a_delay_under_way(broker: FakeBroker) -> None:
    plan = Hooks(request=only(PRODUCE, Fate.PASS, delay_s=60))
    with LossyProxy(broker.address, plan=plan) as proxy:
        client = Client(proxy)
        client.send(request(PRODUCE, 1))
        until(lambda: proxy.counters.delayed == 1)
    with client:
        assert client.receive() == b""


def test_an_unanswered_request_does_not_shift_the_meaning_of_later_responses(broker: FakeBroker) -> None:
    """Responses are matched by correlation id: a Produce with acks=0 has none."""
    plan = Hooks(response=only(PRODUCE, Fate.SWALLOW))
    with LossyProxy(broker.address, plan=plan) as proxy, Client(proxy) as client:
        client.send(request(METADATA, 5), request(FETCH, 6))
        assert [client.receive(), client.receive()] == [response(5), response(6)]


def produce_frame(number: int) -> Frame:
    return Frame(connection=1, api_key=PRODUCE, api_version=9, correlation_id=number, size=100)


def test_random_faults_repeat_from_their_seed_and_stay_within_their_budget() -> None:
    def fates(seed: int) -> list[Action]:
        faults = RandomFaults(seed=seed, lose_ack=0.2, tear_response=0.2, delay=0.1, budget=30)
        return [faults.response(produce_frame(n)) for n in range(500)]

    assert fates(1) == fates(1)
    assert fates(1) != fates(2)
    assert sum(action.fate is not Fate.PASS for action in fates(1)) == 30
    assert {action.fate for action in fates(1)} == {Fate.PASS, Fate.SWALLOW, Fate.TEAR}


def test_random_faults_leave_everything_but_produce_alone() -> None:
    faults = RandomFaults(lose_ack=1.0, cut_before=1.0, delay=1.0)
    fetch = Frame(connection=1, api_key=FETCH, api_version=12, correlation_id=1, size=10)
    assert faults.request(fetch) == faults.response(fetch) == PASS
    assert faults.request(produce_frame(1)).fate is Fate.SWALLOW


def test_a_probability_above_one_is_refused() -> None:
    with pytest.raises(ValueError, match="lose_ack"):
        RandomFaults(lose_ack=2)


def test_there_is_no_address_before_the_proxy_is_entered() -> None:
    with pytest.raises(RuntimeError, match="context manager"):
        _ = LossyProxy().address
