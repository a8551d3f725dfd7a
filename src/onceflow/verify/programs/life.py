"""What every worker program begins with: its settings, its history, and how it is told to end.

    life = Life.begin()
    while not life.is_over:
        ...

SIGTERM asks for a clean end: `is_over` becomes true, and the program finishes what it is doing. It also ends when the
process that started it is gone: nothing is left running after a run that was killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import libversion

from onceflow.signals import restore_signals
from onceflow.verify.history import Recorder

__all__ = ["Life"]

RECOVERY_STRATEGY_SINCE: Final = 0x020B0000  # 2.11


class Life:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.process: str = settings["process"]
        """WORKER.LIFE: the name of this process in the history."""
        self.worker: str = settings["worker"]
        self.bootstrap: str = settings["bootstrap"]
        self.record = Recorder(Path(settings["history"]), self.process, settings["zero"])
        self.chance = random.Random(f"{settings['seed']}/{self.process}")
        self._over = threading.Event()
        self._transactions = 0
        self._records = 0

    @classmethod
    def begin(cls) -> Life:
        restore_signals()
        life = cls(json.loads(sys.argv[1]))
        signal.signal(signal.SIGTERM, lambda *_: life._over.set())
        # The parent says its number itself: it may be gone by now, and then ours is another.
        parent = life.settings.get("parent", os.getppid())
        threading.Thread(target=life._watch_parent, args=(parent,), daemon=True).start()
        return life

    def _watch_parent(self, parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.killpg(0, signal.SIGKILL)

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def rest(self, seconds: float) -> None:
        """Sleep, unless the end comes."""
        self._over.wait(seconds)

    def new_transaction(self) -> str:
        """A name for one attempt."""
        self._transactions += 1
        return f"{self.process}/{self._transactions}"

    def new_id(self) -> str:
        """For a record: no other one of the run has it."""
        self._records += 1
        return f"{self.process}-{self._records}"

    def client_config(self, **settings: Any) -> dict[str, Any]:
        """For a librdkafka client; names are written with underscores in place of dots, except callbacks
        (`error_cb`)."""
        own = {name if name.endswith("_cb") else name.replace("_", "."): value for name, value in settings.items()}
        quiet = {"log_level": 0, "error_cb": lambda _: None}  # without it a fatal error is raised out of callbacks
        return {"bootstrap.servers": self.bootstrap, **quiet, **_patient(), **self.settings["client_config"], **own}


def _patient() -> dict[str, Any]:
    """Without it a client whose only broker is away for a moment forgets the broker, and a transaction that waited for
    it waits for ever (librdkafka's issues 5511 and 5456).
    """
    return {"metadata.recovery.strategy": "none"} if libversion()[1] >= RECOVERY_STRATEGY_SINCE else {}
