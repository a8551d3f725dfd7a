"""What the tests' adapter does about kafka-python."""

from __future__ import annotations

import gc
import socket
import warnings
from collections.abc import Iterator
from typing import Any

import tests.support.clients.kafka_python  # noqa: F401  # it is what is tested

# isort: split
from kafka.net.inet import KafkaNetSocket


class Never:
    def __await__(self) -> Iterator[None]:
        yield


class Net:
    """In place of its event loop: a connection is never made."""

    async def wait_write(self, *_: Any, **__: Any) -> None:
        await Never()


def test_a_connection_that_is_given_up_while_it_is_made_is_closed_and_nobody_warns() -> None:
    gc.collect()
    with warnings.catch_warnings(record=True) as warned, socket.create_server(("127.0.0.1", 0)) as server:
        warnings.simplefilter("always")
        address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", server.getsockname())
        connecting = KafkaNetSocket().connect(Net(), address)
        connecting.send(None)
        connecting.close()
        del connecting
        gc.collect()
        accepted, _ = server.accept()
        with accepted:
            assert accepted.recv(1) == b"", "the other end is closed"
    assert [str(each.message) for each in warned] == []
