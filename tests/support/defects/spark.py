"""Deliberate defects of the Spark sink, to see whether the verifier finds them.

Each function takes one protection away, for as long as the patch lasts. `DEFECTS` names the anomaly that a verdict has
to speak of then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from onceflow.client.problems import ClientError
from onceflow.client.producing import Producing
from onceflow.client.shared_transaction import OutcomeUnknown, SharedTransaction
from onceflow.spark import batch_writer
from onceflow.spark.batch_writer import BatchWriter, Recorded
from onceflow.spark.progress import PARTITION, PROGRESS_TOPIC
from onceflow.spark.query import MicroBatch
from onceflow.spark.sequencer import Run, TaskReport
from onceflow.spark.sink import KafkaSink
from onceflow.wire.records import build_batch, read_records

__all__ = ["DEFECTS", "Defect"]

Patch = pytest.MonkeyPatch


class Defect(NamedTuple):
    switch_on: Callable[[Patch], None]
    anomaly: str
    """What the verdict has to name."""


def progress_outside_the_transaction(patch: Patch) -> None:
    """The progress record is written by a producer of its own, as a driver would that commits its offsets by itself."""

    def record(writer: BatchWriter, recorded: Recorded, transaction: SharedTransaction) -> None:
        transaction.commit_offsets(writer.app_id, recorded.offsets)
        assert recorded.progress is not None
        batch = recorded.progress.to_batch(producer_id=0, epoch=0, sequence=0)
        producing = Producing(writer.cluster, transactional_id=None, version_max=12, delivery_timeout_s=10)
        producing.send({(PROGRESS_TOPIC, PARTITION): build_batch(read_records(batch), base_offset=0)})

    patch.setattr(BatchWriter, "_record", record)


def progress_read_before_fencing(patch: Patch) -> None:
    """What is read may be history by the time that nobody else can write any more."""

    def prepare(sink: KafkaSink, batch: MicroBatch) -> None:
        if sink._writer.is_fenced and sink._known_run == batch.run_id:
            return
        sink._progress = sink._writer.progress(batch.batch_id)
        sink._writer.fence(batch.batch_id)
        sink._known_run = batch.run_id

    patch.setattr(KafkaSink, "_prepare", prepare)


def transactional_id_of_its_own_for_every_run(patch: Patch) -> None:
    """Nobody is fenced by anybody. Nor does anybody wait for offsets that a transaction is still to decide about, as
    the look at the consumer group would: behind a fence there are none."""
    own = SharedTransaction.__init__

    def init(transaction: SharedTransaction, cluster: Any, transactional_id: str, **rest: Any) -> None:
        own(transaction, cluster, f"{transactional_id}-{uuid4().hex[:6]}", **rest)

    patch.setattr(SharedTransaction, "__init__", init)
    patch.setattr(BatchWriter, "group_offsets", lambda *_: {})


def retried_task_allowed_to_write(patch: Patch) -> None:
    """An attempt that broke off is forgotten, and what it has sent is not."""

    def break_off(run: Run, task: int, attempt: str, kind: str, sentence: str) -> None:
        with run._changed:
            if run._writers.get(task) == attempt and task not in run._reports:
                del run._writers[task]
                run._changed.notify_all()

    patch.setattr(Run, "break_off", break_off)


def commit_although_a_task_failed(patch: Patch) -> None:
    """What the others have written is committed, with the progress."""
    run_tasks = BatchWriter._run_tasks

    def carefree_tasks(writer: BatchWriter, *arguments: Any) -> dict[int, int]:
        try:
            return run_tasks(writer, *arguments)
        except batch_writer._Spoiled:
            return {}

    def carefree_look(writer: BatchWriter, run: Run, *_: Any) -> dict[int, TaskReport]:
        return dict(run._reports)

    patch.setattr(BatchWriter, "_run_tasks", carefree_tasks)
    patch.setattr(BatchWriter, "_verified", carefree_look)


def unanswered_commit_taken_for_a_failure(patch: Patch) -> None:
    """The batch is run again, although it may be visible already."""
    commit = SharedTransaction.commit

    def impatient(transaction: SharedTransaction) -> None:
        try:
            commit(transaction)
        except OutcomeUnknown:
            transaction.fence()
            raise ClientError("there was no answer: so it must have failed") from None

    patch.setattr(SharedTransaction, "commit", impatient)


DEFECTS = {
    "progress record outside the transaction": Defect(progress_outside_the_transaction, "lost write"),
    "progress read before fencing": Defect(progress_read_before_fencing, "duplicate"),
    "a transactional id of its own for every run": Defect(transactional_id_of_its_own_for_every_run, "fenced write"),
    "retried task allowed to write": Defect(retried_task_allowed_to_write, "duplicate"),
    "commit although a task failed": Defect(commit_although_a_task_failed, "lost write"),
    "unanswered commit taken for a failure": Defect(unanswered_commit_taken_for_a_failure, "duplicate"),
}
