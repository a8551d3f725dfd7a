"""A group member in a process of its own, to be killed: the only way for most clients not to say goodbye.

As a program it joins its group, says so in one line, and reads until it is killed or its parent is gone.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
from dataclasses import asdict

from tests.support.clients.coordinated import Membership

__all__ = ["DyingProcess"]

JOINED = "joined"
CLIENTS = {
    "confluent": ("tests.support.clients.coordinated.confluent", "CoordinatedConfluentClient"),
    "aiokafka": ("tests.support.clients.coordinated.aio", "CoordinatedAioClient"),
    "kafka-python": ("tests.support.clients.coordinated.kafka_python", "CoordinatedKafkaPythonClient"),
}


class DyingProcess:
    def __init__(self, client: str, bootstrap: str, group: str, topic: str, membership: Membership) -> None:
        command = [sys.executable, "-m", __name__, client, bootstrap, group, topic, json.dumps(asdict(membership))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def join(self) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        assert said == JOINED, f"the member that was to die said {said!r} instead of joining"

    def die(self) -> None:
        self._process.kill()
        self._process.communicate()


def main(client: str, bootstrap: str, group: str, topic: str, membership: str) -> None:
    module, name = CLIENTS[client]
    adapter = getattr(importlib.import_module(module), name)(bootstrap)
    member = adapter.member(group, [topic], Membership(**json.loads(membership)))
    orphaned = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), orphaned.set()), daemon=True).start()
    joined = False
    while not orphaned.is_set():
        member.poll(0.1)
        if member.assignment() and not joined:
            joined = True
            print(JOINED, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
