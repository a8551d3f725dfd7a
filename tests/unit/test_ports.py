"""A port that is reserved is given to the server that names it, and to nobody else."""

from __future__ import annotations

import errno
import gc
import socket
import struct
import sys

import pytest

from onceflow import ports as module
from onceflow.ports import SERVER_PORTS, ReservedPort

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a bound socket keeps out the server as well")

IP_LOCAL_PORT_RANGE = 51
"""Linux 6.3: which ports the kernel may choose for a socket."""


def is_held(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody has the port, listening or not."""
    with socket.socket() as other:
        try:
            other.bind((host, port))
        except OSError as refused:
            return refused.errno == errno.EADDRINUSE
        return False


@on_linux
def test_port_is_held_and_nobody_listens_there() -> None:
    reserved = ReservedPort()
    assert is_held(reserved.number)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", reserved.number), timeout=5)


@on_linux
def test_server_comes_and_goes_as_often_as_it_likes() -> None:
    reserved = ReservedPort()
    for _ in range(3):
        server = socket.create_server(("127.0.0.1", reserved.number))
        with server, socket.create_connection(server.getsockname(), timeout=5):
            server.accept()[0].close()
        assert is_held(reserved.number)


@on_linux
def test_kernel_gives_it_to_no_socket_that_asks_for_any_port() -> None:
    reserved = ReservedPort()
    only_this = struct.pack("@I", reserved.number | reserved.number << 16)
    with socket.socket() as server, socket.create_server(("127.0.0.1", 0)) as elsewhere, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            for each in (server, client):
                each.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, only_this)
        except OSError:
            pytest.skip("this Linux is older than 6.3")
        with pytest.raises(OSError, match="in use"):
            server.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="Cannot assign"):
            client.connect(elsewhere.getsockname())


def test_two_are_two() -> None:
    assert len({each.number for each in [ReservedPort() for _ in range(20)]}) == 20


@on_linux
@pytest.mark.parametrize("end", [ReservedPort.close, lambda _: None], ids=["closed", "forgotten"])
def test_port_is_free_again_once_it_is(end: object) -> None:
    reserved = ReservedPort()
    number = reserved.number
    assert callable(end)
    end(reserved)
    del reserved
    gc.collect()
    assert not is_held(number)


def test_elsewhere_it_is_one_that_kernels_do_not_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_lets_a_server_in", lambda *_: False)
    reserved = ReservedPort()
    assert reserved.number in SERVER_PORTS
    assert not is_held(reserved.number)
    reserved.close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b"])
def test_host_that_nothing_can_listen_on_is_an_error(host: str) -> None:
    with pytest.raises((OSError, UnicodeError)):
        ReservedPort(host)
