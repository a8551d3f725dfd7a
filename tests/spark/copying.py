"""A topic copied to another one by a driver program that things happen to, and what must be true in the end.

Every record of the input is a number; the job writes it with the number of its micro-batch. Whatever was killed, in
the end

- every number is in the output once;
- every micro-batch is there as a whole (each but the last has `per_batch` records by construction);
- what a reader in read_committed saw while things happened is what is there in the end, in the same order: nothing
  that was shown was taken back.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.raw import Wire
from tests.support.readers import Seen, Watcher, committed
from tests.support.spark import DriverProcess
from tests.support.waiting import eventually

__all__ = ["COPY_JOB", "Copying"]

COPY_JOB = Path(__file__).parent / "programs" / "copy_job.py"
SOURCE_PARTITIONS = 2
TARGET_PARTITIONS = 3


class Copying:
    """The topics and the drivers of one such job."""

    def __init__(
        self,
        bootstrap: str,
        name: str,
        folder: Path,
        start: Callable[..., DriverProcess],
        *,
        count: int,
        per_batch: int,
        create_topic: Callable[..., Any] | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self.source, self.target, self.app_id = f"{name}-in", f"{name}-out", f"{name}-app"
        self.checkpoint = folder / "checkpoint"
        self.count = count
        self.per_batch = per_batch
        self._folder = folder
        self._start = start
        with Wire(bootstrap.partition(",")[0]) as wire:
            create = create_topic or wire.create_topic
            create(self.source, SOURCE_PARTITIONS)
            create(self.target, TARGET_PARTITIONS)
        self._fill()

    def _fill(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 2})
        for number in range(self.count):
            producer.produce(self.source, str(number), key=str(number), partition=number % SOURCE_PARTITIONS)
        assert producer.flush(60) == 0

    def driver(self, *, settings: Mapping[str, object] | None = None, **options: Any) -> DriverProcess:
        arguments = {
            "bootstrap": self.bootstrap,
            "source": self.source,
            "target": self.target,
            "app_id": self.app_id,
            "checkpoint": str(self.checkpoint),
            "flag": str(self._folder / "flag"),
            **options,
        }
        arguments["read"] = {"maxOffsetsPerTrigger": str(self.per_batch), **options.get("read", {})}
        return self._start(COPY_JOB, json.dumps(arguments), settings=settings)

    def run(self, **options: Any) -> DriverProcess:
        """A driver that comes to the end by itself."""
        driver = self.driver(**options)
        assert driver.wait(180) == 0, driver.log[-6000:]
        return driver

    def watcher(self) -> Watcher:
        return Watcher(self.bootstrap, self.target)

    def output(self) -> list[Seen]:
        return committed(self.bootstrap, self.target)

    def check(self, watcher: Watcher | None = None) -> None:
        """Everything is there once, by whole batches, and nothing that was seen was taken back."""
        found = eventually(self._complete, f"{self.count} records are committed", timeout_s=30)
        numbers = Counter(int(_parts(each)[0]) for each in found)
        assert numbers == Counter(range(self.count))
        sizes = Counter(_parts(each)[1] for each in found)
        assert set(sizes.values()) == {self.per_batch}, sizes
        if watcher is not None:
            seen = watcher.wait_for(self.count)
            assert sorted(seen, key=lambda each: each[:2]) == found

    def _complete(self) -> list[Seen] | None:
        found = self.output()
        assert len(found) <= self.count, f"{len(found)} records where {self.count} should be"
        return found if len(found) == self.count else None


def _parts(seen: Seen) -> tuple[str, str]:
    assert seen.value is not None
    number, _, batch_id = seen.value.decode().partition("/")
    assert seen.key == number.encode()
    return number, batch_id
