"""What befalls the Spark job of the workload `spark` besides dead processes: an older checkpoint, a topic created anew.

Both take several starts of the driver. The steps are a generator, which yields while it waits for something, so the
nemesis can do other things meanwhile and end it at any moment; `finally` has what must be put back then.

    older checkpoint   a copy is made while the job runs; some micro-batches later the driver is killed, and starts
                       again with the copy. The sink has to refuse it (`CheckpointMismatch`). Then the newest checkpoint
                       comes back, and the job goes on.
    recreated topic    a topic of padding appears, and the job reads it. The driver is killed, the topic deleted,
                       created again and filled with more records than before. The source has to refuse it
                       (`DataLossError`). Then the job goes on with failOnDataLoss=false, and reads the new topic from
                       its beginning.

Whether the job was refused is told, and not judged here: a job that goes on with what it should refuse shows in its
records, and they are what the verdict is about.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from onceflow.client.admin import Admin, TopicExistsError, TopicMissingError
from onceflow.client.cluster import Cluster
from onceflow.client.offsets import LATEST, committed_offsets, list_offsets
from onceflow.client.problems import ClientError
from onceflow.digits import whole_number_of
from onceflow.verify.history import Outcome, Record, Recorder
from onceflow.verify.programs.spark_driver import PADDING, refusal
from onceflow.verify.stage import Stage
from onceflow.verify.workers import Worker

__all__ = ["OlderCheckpoint", "RecreatedTopic"]

BATCHES_BEHIND: Final = 2
"""How many micro-batches are committed after the copy, at least."""
LOOK_EVERY_S: Final = 0.2
ASK_S: Final = 2.0
PADDING_RECORDS: Final = 20
NEW_RECORDS: Final = 50
"""More than before: the offset where the job stood exists in the new topic, too."""
KEYS: Final = 5

_OVER: Final = object()

Steps = Generator[None, None, None]


class _Fault(ABC):
    def __init__(self, driver: Worker) -> None:
        self._driver = driver
        self._steps = self._go()
        self._said_before = 0
        self._next_look = 0.0
        self.target = driver.process_name
        self.busy = driver.name
        self.struck: str | None = None

    @abstractmethod
    def _go(self) -> Steps: ...

    def step(self) -> bool:
        if time.monotonic() < self._next_look:
            return False
        is_over = next(self._steps, _OVER) is _OVER
        self._next_look = time.monotonic() + LOOK_EVERY_S
        return is_over

    def end(self) -> None:
        self._steps.close()

    def _hold(self) -> None:
        self._driver.hold()
        self._said_before = self._driver.log_path.stat().st_size

    def _refused_with(self, error: str) -> str | None:
        """The life that has ended with this error since the driver was last held."""
        with self._driver.log_path.open("rb") as log:
            log.seek(self._said_before)
            said = log.read().decode(errors="replace")
        lives = (f"{self._driver.name}.{life}" for life in range(1, self._driver.life + 1))
        return next((life for life in lives if refusal(life, error) in said), None)


def _patiently(act: Callable[[], None]) -> Steps:
    """Again and again, as long as a broker is away."""
    while True:
        try:
            act()
        except ClientError:
            yield
        else:
            return


class OlderCheckpoint(_Fault):
    def __init__(self, driver: Worker, checkpoint: Path) -> None:
        super().__init__(driver)
        self._checkpoint = checkpoint

    def _go(self) -> Steps:
        older, newest = (self._checkpoint.with_name(f"{self._checkpoint.name}-{name}") for name in ("older", "newest"))
        try:
            yield from self._steps_with(older, newest)
        finally:
            if newest.exists():
                self._bring_back(newest)
            shutil.rmtree(older, ignore_errors=True)

    def _steps_with(self, older: Path, newest: Path) -> Steps:
        while last_batch(self._checkpoint) < 0:
            yield
        back_up(self._checkpoint, older)
        while last_batch(self._checkpoint) < last_batch(older) + BATCHES_BEHIND:
            yield
        self._hold()
        behind, reached = last_batch(older), last_batch(self._checkpoint)
        self._checkpoint.rename(newest)
        older.rename(self._checkpoint)
        self._driver.release()
        while (life := self._refused_with("CheckpointMismatch")) is None and last_batch(self._checkpoint) <= reached:
            yield
        between = f"the checkpoint of batch {behind} instead of {reached}"
        if life is None:
            self.struck = f"{between}; {self._driver.process_name} went on with it"
            shutil.rmtree(newest)
            return
        self.struck = f"{between}; {life} was refused"
        self._bring_back(newest)
        while last_batch(self._checkpoint) <= reached:
            yield

    def _bring_back(self, newest: Path) -> None:
        self._hold()
        shutil.rmtree(self._checkpoint)
        newest.rename(self._checkpoint)
        self._driver.release()


def last_batch(checkpoint: Path) -> int:
    """The last one that Spark has noted as done; -1 if there is none."""
    return max(_numbered(checkpoint / "commits"), default=-1)


def _numbered(folder: Path) -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError):
        yield from (number for each in folder.iterdir() if (number := whole_number_of(each.name)) is not None)


def back_up(checkpoint: Path, copy: Path) -> None:
    """A copy of a checkpoint that is in use, good to start from: its state is as new as its log, or newer."""
    shutil.rmtree(copy, ignore_errors=True)
    parts = ["commits", "offsets", *(each.name for each in checkpoint.iterdir() if each.is_dir())]
    for part in dict.fromkeys(parts):
        with contextlib.suppress(shutil.Error):  # what Spark has removed or renamed meanwhile
            shutil.copytree(checkpoint / part, copy / part, ignore=shutil.ignore_patterns("*.tmp"))
    for file in (each for each in checkpoint.iterdir() if each.is_file()):
        shutil.copy2(file, copy / file.name)
    planned = last_batch(copy) + 1
    for number in list(_numbered(copy / "offsets")):
        if number > planned:
            (copy / "offsets" / str(number)).unlink()


class RecreatedTopic(_Fault):
    def __init__(self, stage: Stage, driver: Worker, topic: str, *, group: str, created: Callable[[str], None]) -> None:
        """`created` is told the topic before it gets records that are part of the run."""
        super().__init__(driver)
        self._topic = topic
        self._group = group
        self._created = created
        self._settings = replace(stage.settings(), timeout_s=ASK_S)
        self._stage = stage
        self._ids = 0
        self._recorder: Recorder | None = None

    def _go(self) -> Steps:
        yield from _patiently(self._create_with_padding)
        yield from self._await_job(PADDING_RECORDS)
        self._hold()
        has_gone_on = False
        try:
            self._created(self._topic)
            yield from _patiently(self._create_anew)
            self._driver.release()
            while (life := self._refused_with("DataLossError")) is None and self._committed() < NEW_RECORDS:
                yield
            has_gone_on = life is None
            what = f"{self._topic}, read up to {PADDING_RECORDS}, has {NEW_RECORDS} new records"
            self.struck = f"{what}; {life or self._driver.process_name} {'went on' if has_gone_on else 'was refused'}"
        finally:
            if not has_gone_on:
                self._driver.hold()
                self._driver.release(fail_on_data_loss="false")
        yield from self._await_job(NEW_RECORDS)
        self._driver.release(fail_on_data_loss="true")  # that is for the next life

    def end(self) -> None:
        super().end()
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def _await_job(self, offset: int) -> Steps:
        while self._committed() < offset:
            yield

    def _committed(self) -> int:
        place = (self._topic, 0)
        try:
            with Cluster(self._settings) as cluster:
                return committed_offsets(cluster, self._group, [place], patience_s=0).get(place, -1)
        except ClientError:
            return -1

    def _create_with_padding(self) -> None:
        """Once: the job sees the topic as soon as it is there."""
        with contextlib.suppress(TopicExistsError):
            Admin(self._settings).create(self._topic, partitions=1)
        place = (self._topic, 0)
        with Cluster(self._settings) as cluster:
            if list_offsets(cluster, {place: LATEST}, read_committed=False, patience_s=ASK_S)[place] == 0:
                self._send([(None, PADDING.encode())] * PADDING_RECORDS)

    def _create_anew(self) -> None:
        """With records that have to arrive. Those of an attempt that failed are gone with its topic, unacknowledged."""
        admin, recorder = Admin(self._settings), self._own_recorder()
        with contextlib.suppress(TopicMissingError):
            admin.delete(self._topic)
        admin.create(self._topic, partitions=1)
        ids = [f"{recorder.process}-{self._ids + number}" for number in range(1, NEW_RECORDS + 1)]
        self._ids += NEW_RECORDS
        values = [Record(id=id, key=f"k{number % KEYS}") for number, id in enumerate(ids)]
        op = recorder.begin("write", transaction=None, records=[[self._topic, 0, id] for id in ids])
        self._send([(str(each.key).encode(), each.to_bytes()) for each in values])
        recorder.end(op, Outcome.OK, written=[[self._topic, 0, at, id] for at, id in enumerate(ids)])

    def _send(self, records: Sequence[tuple[bytes | None, bytes]]) -> None:
        """Raises `ClientError` unless all of them are acknowledged."""
        config = self._settings.librdkafka(
            error_cb=lambda _: None, enable_idempotence=True, message_timeout_ms=int(1000 * ASK_S)
        )
        errors: list[object] = []
        producer = Producer(config)
        for key, value in records:
            producer.produce(self._topic, value, key, partition=0, on_delivery=lambda error, _: errors.append(error))
        producer.flush(2 * ASK_S)
        if errors != [None] * len(records):
            raise ClientError(f"not all records of {self._topic} were acknowledged")

    def _own_recorder(self) -> Recorder:
        if self._recorder is None:
            process = f"filler-{self._topic.rpartition('-')[2]}.1"
            self._recorder = Recorder(self._stage.folder / "history" / f"{process}.jsonl", process, self._stage.zero)
        return self._recorder
