"""What is done in the background goes on, whatever fails."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from onceflow.broker import complaints
from onceflow.broker.chores import every, unless_it_fails
from onceflow.broker.node import Node
from onceflow.clock import ManualClock
from onceflow.config import BrokerConfig
from onceflow.log.memory_files import MemoryFileSystem
from onceflow.log.partition import PartitionLog


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complaints, "_quiet_until_s", {})
    monkeypatch.setattr(complaints, "_unsaid", {})


@pytest.mark.parametrize("is_async", [False, True])
def test_a_round_that_fails_is_logged_and_the_next_ones_come(caplog: pytest.LogCaptureFixture, is_async: bool) -> None:
    rounds = 0
    enough = asyncio.Event()

    def once() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 7:
            enough.set()
        if rounds < 5:
            raise RecursionError(f"round {rounds}")

    async def once_later() -> None:
        once()

    async def run() -> None:
        chore = asyncio.ensure_future(every(0, "Sweeping", once_later if is_async else once))
        await enough.wait()
        chore.cancel()

    asyncio.run(run())
    assert caplog.text.count("Sweeping failed; it is tried again in 0 s.") == 1, "one of four within a minute"
    assert "RecursionError: round 1" in caplog.text


def test_a_pause_that_changes_is_asked_for_after_every_round() -> None:
    pauses = iter([0.0, 0.001, 0.002])
    asked: list[float] = []
    rounds: list[int] = []

    async def run() -> None:
        enough = asyncio.Event()

        def pause() -> float:
            asked.append(next(pauses, 3600.0))
            if asked[-1] == 3600.0:
                enough.set()
            return asked[-1]

        chore = asyncio.ensure_future(every(pause, "Looking", lambda: rounds.append(len(asked))))
        await enough.wait()
        chore.cancel()

    asyncio.run(run())
    assert (asked, rounds) == ([0.0, 0.001, 0.002, 3600.0], [2, 3, 4])


def test_a_chore_that_begins_at_once_does_not_wait_for_its_time() -> None:
    async def run() -> None:
        came = asyncio.Event()
        chore = asyncio.ensure_future(every(3600, "Looking", came.set, at_once=True))
        await came.wait()
        chore.cancel()

    asyncio.run(run())


def test_the_end_of_the_broker_ends_a_chore() -> None:
    async def run() -> None:
        chore = asyncio.ensure_future(every(0, "Sweeping", lambda: None))
        await asyncio.sleep(0)
        chore.cancel()
        with pytest.raises(asyncio.CancelledError):
            await chore

    asyncio.run(run())


def test_where_one_of_many_fails_the_others_are_done(caplog: pytest.LogCaptureFixture) -> None:
    done = []
    for number in range(3):
        with unless_it_fails("Dividing by", number):
            done.append(6 // number)
    assert done == [6, 3]
    assert "Dividing by of 0 failed, and goes on with the others." in caplog.text
    assert [each.levelno for each in caplog.records] == [logging.ERROR]


def test_retention_goes_on_behind_a_partition_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(MemoryFileSystem(), Path("/data"), BrokerConfig(), ManualClock())
    node.topics.create("t", 3, {})
    seen = []

    def apply_retention(log: PartitionLog, now_ms: int) -> int:
        seen.append(log.directory.name)
        if log.directory.name == "t-0":
            raise ValueError("a defect")
        return 1

    monkeypatch.setattr(PartitionLog, "apply_retention", apply_retention)
    caplog.set_level(logging.INFO)
    node.apply_retention()
    node.close()
    assert seen == ["t-0", "t-1", "t-2"]
    assert "Retention of /data/t-0 failed" in caplog.text
    assert "Retention freed 1 bytes of t-2." in caplog.text
