"""Rounds of group commit, and checkpoints, in which something goes wrong for one partition."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from onceflow.broker.group_commit import GroupCommit
from onceflow.broker.partition import Partition
from onceflow.clock import ManualClock
from onceflow.config import TopicConfig
from onceflow.errors import CorruptLog, ErrorCode
from onceflow.log.memory_files import MemoryFileSystem
from onceflow.log.partition import PartitionLog
from onceflow.log.recovery import snapshots
from onceflow.monitor.meters import Meters
from tests.unit.log.support import append, make_batch


def unreadable() -> None:
    raise CorruptLog("The state cannot be read again.")


def test_what_goes_wrong_with_one_partition_keeps_nobody_else_from_being_told() -> None:
    """The state of one cannot be read again after a failed flush: the other failure counts, and so does a success."""
    files, told = MemoryFileSystem(), list[tuple[str, ErrorCode]]()
    partitions = [
        Partition(name, 0, PartitionLog(files, Path(f"/data/{name}-0"), TopicConfig(), ManualClock()))
        for name in ("sick", "failing", "sound")
    ]
    partitions[0].on_taken_back = unreadable

    async def one_round() -> None:
        with ThreadPoolExecutor(max_workers=1) as disk_thread:
            loop = asyncio.get_running_loop()
            everybody = loop.create_future()

            def tell(name: str, error: ErrorCode) -> None:
                told.append((name, error))
                if len(told) == len(partitions):
                    everybody.set_result(None)

            commit = GroupCommit(loop, disk_thread, Meters().fsync)
            for partition in partitions:
                append(partition.log, make_batch())
                partition.when_durable(1, lambda error, name=partition.topic: tell(name, error))  # type: ignore[misc]
                commit.wrote(partition)
            files.sync_failures = 2
            await asyncio.wait_for(everybody, 5)

    asyncio.run(one_round())
    refused = ErrorCode.KAFKA_STORAGE_ERROR
    assert told == [("sick", refused), ("failing", refused), ("sound", ErrorCode.NONE)]
    assert [partition.log.end_offset for partition in partitions] == [0, 0, 1]


class SecondSyncFails(MemoryFileSystem):
    """The first one is that of the log, the second one that of an index."""

    syncs = 0

    def before_sync(self) -> None:
        self.syncs += 1
        if self.syncs == 2:
            self.sync_failures = 1
        super().before_sync()


def test_a_checkpoint_does_not_vouch_for_what_another_one_could_not_write() -> None:
    """Both are asked for at once: for the interval, and since a segment was sealed."""
    files, folder = SecondSyncFails(), Path("/data/events-0")
    partition = Partition("events", 0, PartitionLog(files, folder, TopicConfig(), ManualClock(), fsync=False))
    append(partition.log, make_batch())

    async def checkpoints() -> None:
        with ThreadPoolExecutor(max_workers=1) as disk_thread:
            commit = GroupCommit(asyncio.get_running_loop(), disk_thread, Meters().fsync)
            await asyncio.gather(commit.checkpoint(partition), commit.checkpoint(partition))
            assert snapshots(files, folder) == []
            assert partition.log.wants_checkpoint
            await commit.checkpoint(partition)

    asyncio.run(checkpoints())
    assert snapshots(files, folder) == [1]
    assert not partition.log.wants_checkpoint
