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
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.programs.holding import go
from tests.support.raw import Wire
from tests.support.readers import Seen, Watcher, committed, written
from tests.support.spark import DriverProcess
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from onceflow.spark import SinkListener

__all__ = ["COPY_JOB", "Copying", "number_of"]

COPY_JOB = Path(__file__).parent / "programs" / "copy_job.py"
SOURCE_PARTITIONS = 2
TARGET_PARTITIONS = 3
END_S = 240.0


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
        self.marks = folder / "marks"
        self.marks.mkdir()
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
        """The job in a process of its own."""
        return self._start(COPY_JOB, json.dumps(self._options(options)), settings=settings)

    def query(self, spark: SparkSession, *listeners: SinkListener, **options: Any) -> StreamingQuery:
        """The job in this process: for what happens to others than the driver."""
        from tests.spark.programs import copy_job

        return copy_job.start(spark, self._options(options), *listeners)

    @staticmethod
    def finish(query: StreamingQuery) -> None:
        """It comes to the end by itself. Raises what it failed with, and leaves nothing running."""
        try:
            assert query.awaitTermination(END_S), "the query neither ends nor fails"
        finally:
            query.stop()

    def _options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "bootstrap": self.bootstrap,
            "source": self.source,
            "target": self.target,
            "app_id": self.app_id,
            "checkpoint": str(self.checkpoint),
            "marks": str(self.marks),
            **options,
            "read": {"maxOffsetsPerTrigger": str(self.per_batch), **options.get("read", {})},
            "held": {str(batch_id): what for batch_id, what in options.get("held", {}).items()},
        }

    def run(self, **options: Any) -> DriverProcess:
        """A driver that comes to the end by itself."""
        driver = self.driver(**options)
        assert driver.wait(180) == 0, driver.log[-6000:]
        return driver

    def written(self, batch_id: int) -> list[Seen]:
        """What read_uncommitted shows of a micro-batch: also of an attempt at it that failed."""
        return [each for each in written(self.bootstrap, self.target) if _parts(each)[1] == str(batch_id)]

    def await_written(self, batch_id: int) -> list[Seen]:
        """As soon as each task of a held micro-batch has written something: it is in the middle, and stays there."""

        def look() -> list[Seen] | None:
            found = self.written(batch_id)
            tasks = {number_of(each) % SOURCE_PARTITIONS for each in found}
            return found if len(tasks) == SOURCE_PARTITIONS else None

        return eventually(look, f"some of batch {batch_id} is written", timeout_s=180, every_s=0.2)  # type: ignore[return-value]

    def let_go(self, batch_id: int, tasks: Iterable[int] = range(SOURCE_PARTITIONS)) -> None:
        """Held tasks of a micro-batch go on."""
        for task in tasks:
            (self.marks / go(batch_id, task)).touch()

    def watcher(self) -> Watcher:
        return Watcher(self.bootstrap, self.target)

    def output(self) -> list[Seen]:
        return committed(self.bootstrap, self.target)

    def check(self, watcher: Watcher | None = None) -> None:
        """Everything is there once, by whole batches, and nothing that was seen was taken back."""
        found = eventually(self._complete, f"{self.count} records are committed", timeout_s=30)
        numbers = Counter(map(number_of, found))
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


def number_of(seen: Seen) -> int:
    """The record of the input that this is a copy of."""
    return int(_parts(seen)[0])


def _parts(seen: Seen) -> tuple[str, str]:
    assert seen.value is not None
    number, batch_id = seen.value.decode().split("/")[:2]
    assert seen.key == number.encode()
    return number, batch_id
