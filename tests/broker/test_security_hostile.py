"""What no honest client sends, at listeners with TLS and with a login: it costs its connection, and nobody else."""

from __future__ import annotations

import base64
import contextlib
import random
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from onceflow.client.sasl import Login
from onceflow.wire.messages.metadata import MetadataRequest
from onceflow.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from onceflow.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.support.raw_client import frame_of
from tests.support.secured_broker import SecuredBroker
from tests.support.secured_kafka import USERS
from tests.support.waiting import eventually

EXCHANGES = 150
GROWTH_MAX = 30_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    settings = {"socket.connection.setup.timeout.ms": 1500, "connection.failed.authentication.delay.ms": 0}
    with SecuredBroker(tmp_path_factory.mktemp("hostile"), settings) as broker:
        yield broker


@pytest.fixture(autouse=True)
def unharmed(broker: SecuredBroker) -> Iterator[None]:
    """Whatever a test does: honest clients are served before and after, and memory and log stay small."""
    process = psutil.Process(broker.broker.pid)
    before = process.memory_info().rss
    lines_before = broker.log.count("\n")
    yield
    for listener in ("PLAINTEXT", "SSL", "SASL_SSL"):
        with broker.cluster(listener) as cluster:
            assert cluster.nodes()
    eventually(lambda: process.num_fds() < 100, "connections of strangers are closed")
    assert process.memory_info().rss - before < GROWTH_MAX
    assert "Traceback" not in broker.log
    assert broker.log.count("\n") - lines_before < 25


def connected(broker: SecuredBroker, listener: str) -> socket.socket:
    host, port = broker.addresses[listener].rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=10)


def tell(broker: SecuredBroker, listener: str, data: bytes, *, hang_up: bool) -> bytes:
    """Say one thing, and hear all there is to hear until the broker ends it, or until we do."""
    heard = b""
    with connected(broker, listener) as sock, contextlib.suppress(ConnectionError, TimeoutError):
        sock.sendall(data)
        if hang_up:
            with contextlib.suppress(OSError):  # "not connected": the broker has closed it already
                sock.shutdown(socket.SHUT_WR)
        while part := sock.recv(65536):
            heard += part
    return heard


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def damaged(data: bytes, dice: random.Random) -> bytes:
    kind = dice.randrange(5)
    if kind == 0:
        return data[: dice.randrange(len(data) + 1)]
    if kind == 1:
        changed = bytearray(data)
        for _ in range(dice.randrange(1, 5)):
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
        return bytes(changed)
    if kind == 2:
        return data + dice.randbytes(dice.randrange(1, 3000))
    if kind == 3:
        at = dice.randrange(len(data))
        return data[:at] + dice.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0")) + data[at + 4 :]
    return dice.randbytes(dice.randrange(1, 2000))


def test_a_scan_of_broken_tls_handshakes_does_no_harm(broker: SecuredBroker) -> None:
    dice = random.Random(1)
    hello = client_hello()
    for number in range(EXCHANGES):
        tell(broker, ("SSL", "SASL_SSL")[number % 2], damaged(hello, dice), hang_up=True)


def test_plain_kafka_at_a_tls_port_and_tls_at_a_plain_port_are_closed(broker: SecuredBroker) -> None:
    request = frame_of(MetadataRequest(topics=[]), 9)
    for _ in range(20):
        heard = tell(broker, "SSL", request, hang_up=False)
        assert heard[:1] in (b"", b"\x15"), "nothing but an alert"
        for listener in ("PLAINTEXT", "SASL_PLAINTEXT"):
            assert tell(broker, listener, client_hello(), hang_up=False) == b""


def test_records_damaged_after_the_handshake_cost_the_connection(broker: SecuredBroker) -> None:
    dice = random.Random(2)
    for _ in range(20):
        with connected(broker, "SSL") as sock:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            context = ssl.create_default_context(cafile=str(broker.certificates.ca))
            tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            shake_hands(tls, sock, incoming, outgoing)
            tls.write(frame_of(MetadataRequest(topics=[]), 9))
            record = bytearray(outgoing.read())
            record[dice.randrange(5, len(record))] ^= 0x20
            sock.sendall(record)
            with contextlib.suppress(ConnectionError):
                while sock.recv(65536):
                    pass


def shake_hands(tls: ssl.SSLObject, sock: socket.socket, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
    while True:
        try:
            tls.do_handshake()
            sock.sendall(outgoing.read())
            return
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            incoming.write(sock.recv(65536))


# Logins


def handshake(mechanism: str, version: int = 1) -> bytes:
    return frame_of(SaslHandshakeRequest(mechanism=mechanism), version)


def token(data: bytes) -> bytes:
    return frame_of(SaslAuthenticateRequest(auth_bytes=data), 2)


def raw_token(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def test_a_scan_of_broken_logins_lets_nobody_in_and_does_no_harm(broker: SecuredBroker) -> None:
    dice = random.Random(3)
    asked = frame_of(MetadataRequest(topics=[]), 9)
    ways: list[Callable[[], bytes]] = [
        lambda: damaged(handshake("PLAIN") + token(b"\0alice\0wrong"), dice),
        lambda: handshake("PLAIN") + token(damaged(b"\0alice\0wrong", dice)),
        lambda: handshake("SCRAM-SHA-256") + token(damaged(b"n,,n=alice,r=abcdef", dice)),
        lambda: handshake("SCRAM-SHA-512", 0) + raw_token(damaged(b"n,,n=alice,r=abcdef", dice)) + raw_token(b"c=biws"),
        lambda: token(b"\0alice\0wrong") + handshake("PLAIN"),
        lambda: handshake("PLAIN") + handshake("PLAIN"),
        lambda: handshake("PLAIN", 0) + struct.pack(">i", dice.choice((0, -1, 2**31 - 1, 524_289))),
        lambda: handshake(dice.choice(("", "x" * 30_000, "\u00e9\u4e16", "SCRAM-SHA-1"))),
    ]
    for number in range(EXCHANGES):
        heard = tell(broker, "SASL_PLAINTEXT", ways[number % len(ways)]() + asked, hang_up=True)
        assert str(broker.broker.bootstraps[2].rpartition(":")[2]).encode() not in heard
        assert len(heard) < 1000


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda final: final.replace(b"c=biws", b"c=eSws"),  # another channel binding than it began with
        lambda final: final.replace(b"c=biws", b"c=cD10bHMtdW5pcXVlLCw="),
        lambda final: final.replace(b",r=", b",r=x", 1),
        lambda final: final.replace(b",p=", b",m=must,p="),
        lambda final: final.rpartition(b",p=")[0],
        lambda final: final.rpartition(b",p=")[0] + b",p=",
        lambda final: final.rpartition(b",p=")[0] + b",p=" + base64.b64encode(bytes(32)),
        lambda final: final + b"\0",
        lambda final: b"",
        lambda final: b"\xff\xfe",
    ],
)
def test_a_right_password_in_a_spoiled_proof_is_no_login(
    broker: SecuredBroker, spoiled: Callable[[bytes], bytes]
) -> None:
    conversation = Login(mechanism="SCRAM-SHA-256", username="alice", password=USERS["alice"]).conversation()
    with broker.raw("SASL_PLAINTEXT") as client:
        client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
        challenge = client.ask(SaslAuthenticateRequest(auth_bytes=next(conversation))).auth_bytes
        final = spoiled(conversation.send(challenge))
        assert client.ask(SaslAuthenticateRequest(auth_bytes=final)).error_code == 58
        assert client.waits_for_end()


# Those who take their time, and those who come in numbers


def test_who_says_nothing_is_closed_in_time_with_and_without_tls(broker: SecuredBroker) -> None:
    began = time.monotonic()
    silent = [connected(broker, listener) for listener in ("SSL", "SASL_SSL", "SASL_PLAINTEXT") for _ in range(10)]
    half = connected(broker, "SSL")
    half.sendall(client_hello()[:40])
    for sock in (*silent, half):
        with sock:
            assert sock.recv(1) == b"", "it is closed before the socket's own timeout"
    assert time.monotonic() - began > 0.5


def test_a_flood_of_wrong_passwords_holds_up_nobody_who_is_in(broker: SecuredBroker) -> None:
    attempt = handshake("PLAIN") + token(b"\0alice\0wrong")
    with broker.raw() as client:
        flood = [connected(broker, "SASL_PLAINTEXT") for _ in range(60)]
        for sock in flood:
            sock.sendall(attempt)
        slowest = 0.0
        for _ in range(100):
            began = time.monotonic()
            client.ask(MetadataRequest(topics=[]))
            slowest = max(slowest, time.monotonic() - began)
        for sock in flood:
            with sock:
                while sock.recv(4096):
                    pass
    assert slowest < 0.5
