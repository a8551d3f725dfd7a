"""Group commit: many writers share one round of fsync.

While a round runs in the disk thread, appends go on and gather; when it ends, everything it covered is acknowledged
and the next round starts with all that came meanwhile. The more load, the more writes share a round.

There is one disk thread, and checkpoints use it too: two syncs of one file at the same time could each be told half the
truth about an error (the kernel reports a lost page once). For the same reason a log has one checkpoint at a time: the
next one begins when it is known what of the last one is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from time import perf_counter

from onceflow.broker.disk_trouble import DiskTrouble
from onceflow.broker.partition import Partition
from onceflow.errors import ErrorCode, StorageError
from onceflow.log.partition import Checkpoint, Flush
from onceflow.monitor.meters import Stopwatch

__all__ = ["GroupCommit"]

logger = logging.getLogger(__name__)


def _outcomes(jobs: list[Flush], stopwatch: Stopwatch) -> list[StorageError | None]:
    """Runs in the disk thread."""
    began = perf_counter()
    outcomes = [_outcome(job.run) for job in jobs]
    stopwatch.observe(perf_counter() - began)
    return outcomes


def _outcome(run: Callable[[], None]) -> StorageError | None:
    try:
        run()
    except StorageError as error:
        return error
    except Exception as error:
        # Whatever it is (a topic that is deleted meanwhile takes its files away), a round must end, or nobody would
        # ever be answered again.
        return StorageError(f"A flush could not be done: {error}.")
    return None


class GroupCommit:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        disk_thread: Executor,
        stopwatch: Stopwatch,
        trouble: DiskTrouble | None = None,
    ) -> None:
        """`stopwatch` is shown how long each round takes."""
        self._loop = loop
        self._disk_thread = disk_thread
        self._stopwatch = stopwatch
        self._trouble = DiskTrouble() if trouble is None else trouble
        self._dirty: dict[Partition, None] = {}
        self._running = False
        self._checkpointing: set[Partition] = set()

    def wrote(self, partition: Partition) -> None:
        """A partition has unsynced records; a round that covers them will follow."""
        self._dirty[partition] = None
        if not self._running:
            self._running = True
            self._loop.call_soon(self._start_round)  # what else arrived in this turn of the loop comes along

    def _start_round(self) -> None:
        partitions = [partition for partition in self._dirty if not partition.log.closed]
        self._dirty.clear()
        if not partitions:
            self._running = False
            return
        jobs = [partition.log.begin_flush() for partition in partitions]
        round_ = self._loop.run_in_executor(self._disk_thread, _outcomes, jobs, self._stopwatch)
        round_.add_done_callback(partial(self._end_round, partitions, jobs))

    def _end_round(
        self, partitions: list[Partition], jobs: list[Flush], round_: asyncio.Future[list[StorageError | None]]
    ) -> None:
        if round_.cancelled():
            return
        outcomes = list(zip(partitions, jobs, round_.result(), strict=True))
        # Failures first: they take back what came meanwhile too, and the next round must not find it and count it as
        # flushed. Then the next round, before the answers go out: the disk should not wait for us.
        for partition, _, error in outcomes:
            if error is not None and not partition.log.closed:
                self._fail(partition, error)
        self._start_round()
        for partition, job, error in outcomes:
            if partition.log.closed:
                partition.wake()
            elif error is None:
                partition.log.complete_flush(job)
                partition.wake()

    def _fail(self, partition: Partition, error: StorageError) -> None:
        self._dirty.pop(partition, None)
        try:
            partition.log.fail_flush()
            if partition.on_taken_back is not None:
                partition.on_taken_back()
        except Exception:
            # The others of this round must be told all the same, of a failure above all: with the next round, a log
            # that was not taken back would count as flushed.
            logger.exception(
                "%s-%d could not be read again after a failed flush. Restart the broker: until then it may know more "
                "than its disk does.",
                partition.topic,
                partition.index,
            )
        self._trouble.refused(partition, error)  # now: the log is back at what is on disk
        partition.refuse_waiters(ErrorCode.KAFKA_STORAGE_ERROR)

    async def checkpoint(self, partition: Partition) -> None:
        """Write a checkpoint of a partition in the disk thread; if one is being written, another one soon."""
        if partition in self._checkpointing:
            partition.log.wants_checkpoint = True
            return
        self._checkpointing.add(partition)
        try:
            await self._checkpoint(partition)
        finally:
            self._checkpointing.discard(partition)

    async def _checkpoint(self, partition: Partition) -> None:
        try:
            job: Checkpoint | None = partition.log.begin_checkpoint()
        except StorageError as refused:
            logger.error("No checkpoint of %s-%d: %s", partition.topic, partition.index, refused)
            return
        if job is None:
            return
        error = await self._loop.run_in_executor(self._disk_thread, _outcome, job.run)
        if partition.log.closed:
            return
        if error is None:
            partition.log.complete_checkpoint(job)
        elif any(segment not in partition.log.segments for segment in job.segments):
            partition.log.wants_checkpoint = True  # retention freed one of them meanwhile: again, without it
        else:
            logger.error("No checkpoint of %s-%d: %s", partition.topic, partition.index, error)
