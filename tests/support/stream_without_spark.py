"""A streaming query without Spark: the real source and the real sink, and a checkpoint as Spark keeps it.

    stream = Stream(bootstrap, name, folder)
    checkpoint = Checkpoint()
    stream.feed(3)                          # into the source topic
    stream.run(checkpoint)                  # a driver does what there is to do, one micro-batch if it can
    anomalies = check(stream.history())

What Spark does in between: it asks the source how far the next micro-batch goes, writes that into the offset log, has
it read and written, and notes it in the commit log. A driver begins with the last entry of the offset log, if that is
not in the commit log. A checkpoint that is copied and used later is one that was restored from a backup.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.offsets import committed_offsets
from onceflow.spark.options import SourceOptions
from onceflow.spark.planning import from_json, to_json, topic_ids_in
from onceflow.spark.query import MicroBatch, SourceOffsets
from onceflow.spark.source import StreamReader
from onceflow.verify.history import Record
from onceflow.verify.programs.spark_driver import PADDING
from tests.support.sink_without_spark import Driver, Job

__all__ = ["Checkpoint", "Stream"]

JsonOffsets = dict[str, dict[str, Any]]


@dataclass
class Checkpoint:
    query_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    ends: list[JsonOffsets] = field(default_factory=list)
    """The offset log: where each micro-batch ends."""
    entries: list[str] = field(default_factory=list)
    """What identifies these."""
    commits: int = 0
    """How many of them are in the commit log."""

    def copy(self) -> Checkpoint:
        return deepcopy(self)

    def plan(self, end: JsonOffsets) -> None:
        self.ends.append(end)
        self.entries.append(uuid.uuid4().hex)


class Stream(Job):
    def __init__(self, *where: Any) -> None:
        super().__init__(*where, inputs=0)

    def run(
        self,
        checkpoint: Checkpoint,
        *,
        bootstrap: str | None = None,
        before_noted: Callable[[], None] = lambda: None,
        **options: str,
    ) -> Driver:
        """The next life, until there is nothing new, or something fails: then `problem` says why.

        `bootstrap`: where the source finds the brokers; `options` are the source's. `before_noted` is called when a
        micro-batch is committed in Kafka, and not yet in the checkpoint; if it raises, that is the end of the driver.
        """
        driver = self.driver()
        reader = StreamReader(
            SourceOptions.of(
                {
                    "kafka.bootstrap.servers": bootstrap or self._settings.bootstrap,
                    "subscribe": self._source,
                    "startingOffsets": "earliest",
                    **options,
                }
            )
        )
        try:
            while self._plan(checkpoint, reader):
                self._write(checkpoint, reader, driver)
                before_noted()
                checkpoint.commits = len(checkpoint.ends)
        except Exception as problem:
            driver.problem = problem
        finally:
            reader.stop()
        return driver

    def _plan(self, checkpoint: Checkpoint, reader: StreamReader) -> bool:
        """Whether there is a micro-batch to run."""
        if checkpoint.commits < len(checkpoint.ends):
            return True
        start = checkpoint.ends[-1] if checkpoint.ends else reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            return False
        checkpoint.plan(end)
        return True

    def _write(self, checkpoint: Checkpoint, reader: StreamReader, driver: Driver) -> None:
        start = checkpoint.ends[-2] if len(checkpoint.ends) > 1 else reader.initialOffset()
        end = checkpoint.ends[-1]
        source = SourceOffsets(start=from_json(start), end=from_json(end), topic_ids=topic_ids_in(end))
        batch = MicroBatch(
            query_id=checkpoint.query_id,
            run_id=driver.process,
            batch_id=len(checkpoint.ends) - 1,
            entry=checkpoint.entries[-1],
            sources=(source,),
        )
        reader.latestOffset(end, reader.getDefaultReadLimit())  # as Spark does before it runs the batch
        values = [
            bytes(value)
            for partition in reader.partitions(start, end)
            for rows in reader.read(partition)
            for value in rows.column("value").to_pylist()
        ]
        driver.write(batch, [Record.from_bytes(each) for each in values if each != PADDING.encode()])

    def pad(self, count: int) -> None:
        """Records into the source topic that only move its offsets."""
        self.produce([PADDING.encode()] * count)

    def recreate_source(self) -> None:
        admin = Admin(self._settings)
        admin.delete(self._source)
        admin.create(self._source, partitions=1)

    def group_offsets(self) -> str:
        """Where the app stands by its consumer group, as `startingOffsets` takes it."""
        with Cluster(self._settings) as cluster:
            return json.dumps(to_json(committed_offsets(cluster, self.app_id)))
