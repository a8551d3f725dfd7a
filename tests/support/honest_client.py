"""`python -m tests.support.honest_client BOOTSTRAP`: a client in a process of its own, to whom nothing bad may happen.

It produces, fetches what it has produced and asks what there is, again and again, and writes how long it waited: one
line per request, `when seconds`. It ends with its standard input, and with an error at the first wrong answer.
"""

from __future__ import annotations

import select
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Final

from onceflow.wire.messages.api_versions import ApiVersionsRequest
from tests.support.raw import batch
from tests.support.raw_client import RawClient

__all__ = ["HonestClient"]

PAUSE_S: Final = 0.01
TOPIC: Final = "honest"


class HonestClient:
    """The process, and what it has seen."""

    def __init__(self, bootstrap: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.honest_client", bootstrap],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._waits: list[tuple[float, float]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, name="honest client", daemon=True)
        self._reader.start()
        self.await_rounds(20)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            when, took = map(float, line.split())
            with self._news:
                self._waits.append((when, took))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def __enter__(self) -> HonestClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._reader.join(30)
        if self._process.stdout is not None:
            self._process.stdout.close()
        if error is None:
            assert self._process.returncode == 0, "The honest client got a wrong answer, or none."

    def await_rounds(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until it has been answered so many times more."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            wanted = len(self._waits) + count
            while len(self._waits) < wanted:
                assert self._reader.is_alive(), "The honest client got a wrong answer, or none."
                left = deadline - time.monotonic()
                assert left > 0, f"The honest client was not answered for {timeout_s} s."
                self._news.wait(left)

    def waits_s(self, since: float) -> list[float]:
        """How long it waited for what was answered since then (`time.monotonic`), in order of length."""
        with self._news:
            return sorted(took for when, took in self._waits if when + took >= since)


def _main(bootstrap: str) -> None:
    with RawClient(bootstrap, timeout_s=60.0) as client:
        client.make_topic(TOPIC, config={"retention.bytes": 1 << 20, "segment.bytes": 1 << 20})
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            began = time.monotonic()
            produced = client.produce(TOPIC, batch(b"value"))
            assert produced.error_code == 0, produced
            _report(began)
            began = time.monotonic()
            fetched = client.fetch(TOPIC, produced.base_offset, max_wait_ms=0)
            assert fetched.error_code == 0, fetched
            assert fetched.records, fetched
            _report(began)
            began = time.monotonic()
            client.ask(ApiVersionsRequest(client_software_name="honest", client_software_version="1"))
            _report(began)


def _report(began: float) -> None:
    print(began, time.monotonic() - began, flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
