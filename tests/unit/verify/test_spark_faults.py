"""The faults of the spark workload's own, step by step, with a driver that does what the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import onceflow
from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.verify.history import History, Record, Seen
from onceflow.verify.observers import everything_committed
from onceflow.verify.programs.spark_driver import PADDING, refusal
from onceflow.verify.stage import Stage
from onceflow.verify.workers import Worker
from onceflow.verify.workloads import spark_faults
from onceflow.verify.workloads.spark_faults import (
    NEW_RECORDS,
    PADDING_RECORDS,
    OlderCheckpoint,
    RecreatedTopic,
    back_up,
    last_batch,
)


class SomeDriver:
    """A worker as far as a fault knows it."""

    name = "driver"

    def __init__(self, folder: Path) -> None:
        self.log_path = folder / "driver.log"
        self.log_path.touch()
        self.life = 1
        self.is_held = False
        self.settings: dict[str, Any] = {}

    @property
    def process_name(self) -> str:
        return f"driver.{self.life}"

    def hold(self) -> None:
        self.is_held = True

    def release(self, **settings: Any) -> None:
        self.settings |= settings
        self.life += self.is_held
        self.is_held = False

    def says(self, words: str) -> None:
        with self.log_path.open("a") as log:
            log.write(f"{words}\n")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SomeDriver:
    monkeypatch.setattr(spark_faults, "LOOK_EVERY_S", 0.0)
    return SomeDriver(tmp_path)


# --- older checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    commit(path, 0, 1, 2)
    (path / "metadata").write_text("the query's id")
    return path


def commit(checkpoint: Path, *batches: int) -> None:
    for log in ("offsets", "commits", "state"):
        (checkpoint / log).mkdir(parents=True, exist_ok=True)
        for batch in batches:
            (checkpoint / log / str(batch)).write_text(f"{log} {batch}")


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_copy_of_a_checkpoint_in_use_is_one_to_start_from(checkpoint: Path, tmp_path: Path) -> None:
    for batch in (3, 4):  # planned while the commit log was being copied
        (checkpoint / "offsets" / str(batch)).touch()
    (checkpoint / "offsets" / ".5.0815.tmp").touch()
    copy = tmp_path / "copy"
    back_up(checkpoint, copy)
    assert names(copy) == ["commits", "metadata", "offsets", "state"]
    assert names(copy / "commits") == ["0", "1", "2"]
    assert names(copy / "offsets") == ["0", "1", "2", "3"]
    assert last_batch(copy) == last_batch(checkpoint) == 2


def restored(driver: SomeDriver, checkpoint: Path) -> OlderCheckpoint:
    """As far as to when a driver starts with the older one, of batch 2; the newest is of batch 4."""
    fault = OlderCheckpoint(cast(Worker, driver), checkpoint)
    assert not fault.step()
    commit(checkpoint, 3)
    assert not fault.step()
    assert driver.life == 1
    commit(checkpoint, 4)
    assert not fault.step()
    assert (driver.life, driver.is_held, last_batch(checkpoint)) == (2, False, 2)
    return fault


def test_when_the_older_checkpoint_was_refused_the_newest_comes_back(driver: SomeDriver, checkpoint: Path) -> None:
    fault = restored(driver, checkpoint)
    driver.says(refusal("driver.2", "CheckpointMismatch"))
    assert not fault.step()
    assert (driver.life, driver.is_held, last_batch(checkpoint)) == (3, False, 4)
    assert not fault.step()
    commit(checkpoint, 5)
    assert fault.step(), "the job is at work again"
    fault.end()
    assert fault.struck == "the checkpoint of batch 2 instead of 4; driver.2 was refused"
    assert names(checkpoint.parent) == ["checkpoint", "driver.log"]


def test_a_job_without_a_commit_has_no_older_checkpoint_yet(driver: SomeDriver, tmp_path: Path) -> None:
    fault = OlderCheckpoint(cast(Worker, driver), tmp_path / "checkpoint")
    assert not fault.step()
    commit(tmp_path / "checkpoint", 0)
    assert not fault.step()
    assert last_batch(tmp_path / "checkpoint-older") == 0
    fault.end()


def test_another_error_is_no_refusal(driver: SomeDriver, checkpoint: Path) -> None:
    fault = restored(driver, checkpoint)
    driver.says("driver.2: the query has failed: the broker is away")
    assert not fault.step()
    assert (fault.struck, last_batch(checkpoint)) == (None, 2)


def test_a_job_that_goes_on_with_the_older_checkpoint_is_left_alone(driver: SomeDriver, checkpoint: Path) -> None:
    fault = restored(driver, checkpoint)
    commit(checkpoint, 3, 4)
    assert not fault.step()
    commit(checkpoint, 5)
    assert fault.step()
    fault.end()
    assert fault.struck == "the checkpoint of batch 2 instead of 4; driver.2 went on with it"
    assert (driver.life, last_batch(checkpoint)) == (2, 5)
    assert names(checkpoint.parent) == ["checkpoint", "driver.log"]


def test_ended_before_it_was_refused_it_brings_the_newest_checkpoint_back(driver: SomeDriver, checkpoint: Path) -> None:
    fault = restored(driver, checkpoint)
    fault.end()
    assert (fault.struck, last_batch(checkpoint)) == (None, 4)
    assert (driver.life, driver.is_held) == (3, False)
    assert names(checkpoint.parent) == ["checkpoint", "driver.log"]


def test_ended_before_anything_was_replaced_it_leaves_no_trace(driver: SomeDriver, checkpoint: Path) -> None:
    fault = OlderCheckpoint(cast(Worker, driver), checkpoint)
    assert not fault.step()
    fault.end()
    assert driver.life == 1
    assert names(checkpoint.parent) == ["checkpoint", "driver.log"]


# --- recreated topic


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with onceflow.Broker(data_dir=None) as broker:
        yield broker.bootstrap


class Recreation:
    """A fault with its topic, and a job that has committed as far as the test says."""

    def __init__(self, bootstrap: str, topic: str, driver: SomeDriver, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._settings = ClientSettings(bootstrap=bootstrap)
        self._topic = topic
        self._folder = folder
        (folder / "history").mkdir()
        self.committed = -1
        self.created: list[str] = []
        patch.setattr(RecreatedTopic, "_committed", lambda _: self.committed)
        stage = cast(Stage, _SomeStage(bootstrap, folder))
        self.fault = RecreatedTopic(stage, cast(Worker, driver), topic, group="app", created=self.created.append)

    def records(self) -> list[Seen]:
        return everything_committed(self._settings, [(self._topic, 0)], 20)

    def written(self) -> list[list[Any]]:
        [write] = History.load((self._folder / "history").glob("*.jsonl"), ()).of("write")
        assert write.is_ok
        return list(write.told["written"])

    def id(self) -> str:
        return Admin(self._settings).topic_ids([self._topic])[self._topic]


class _SomeStage:
    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._bootstrap = bootstrap
        self.folder = folder
        self.zero = 0.0

    def settings(self) -> ClientSettings:
        return ClientSettings(bootstrap=self._bootstrap)


@pytest.fixture
def recreation(
    bootstrap: str,
    driver: SomeDriver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_name: Callable[[], str],
) -> Recreation:
    return Recreation(bootstrap, f"{new_name()}-1", driver, tmp_path, monkeypatch)


def test_a_topic_of_padding_is_read_then_created_anew_with_more_records(
    recreation: Recreation, driver: SomeDriver
) -> None:
    fault = recreation.fault
    assert not fault.step()
    assert [each.record for each in recreation.records()] == [Record.from_bytes(PADDING.encode())] * PADDING_RECORDS
    before = recreation.id()
    assert (driver.life, recreation.created) == (1, [])
    recreation.committed = PADDING_RECORDS
    assert not fault.step()
    assert (driver.life, driver.is_held) == (2, False)
    assert recreation.id() != before
    found = recreation.records()
    assert [[*each[:3], each.record.id] for each in found] == recreation.written()
    assert [each.offset for each in found] == list(range(NEW_RECORDS))
    assert recreation.created == [found[0].topic]
    fault.end()


def recreated(recreation: Recreation) -> RecreatedTopic:
    assert not recreation.fault.step()
    recreation.committed = PADDING_RECORDS
    assert not recreation.fault.step()
    return recreation.fault


def test_when_the_new_topic_was_refused_the_job_goes_on_without_the_old_one(
    recreation: Recreation, driver: SomeDriver
) -> None:
    fault = recreated(recreation)
    driver.says(refusal("driver.2", "DataLossError"))
    assert not fault.step()
    assert (driver.life, driver.settings) == (3, {"fail_on_data_loss": "false"})
    recreation.committed = NEW_RECORDS
    assert fault.step()
    fault.end()
    assert driver.settings == {"fail_on_data_loss": "true"}, "for the next life"
    assert driver.life == 3
    assert str(fault.struck).endswith(
        f"read up to {PADDING_RECORDS}, has {NEW_RECORDS} new records; driver.2 was refused"
    )


def test_a_job_that_goes_on_with_the_new_topic_is_left_alone(recreation: Recreation, driver: SomeDriver) -> None:
    fault = recreated(recreation)
    recreation.committed = NEW_RECORDS
    assert fault.step()
    fault.end()
    assert driver.life == 2
    assert str(fault.struck).endswith("driver.2 went on")


def test_ended_before_it_was_refused_it_lets_the_job_go_on(recreation: Recreation, driver: SomeDriver) -> None:
    fault = recreated(recreation)
    fault.end()
    assert fault.struck is None
    assert (driver.life, driver.is_held, driver.settings) == (3, False, {"fail_on_data_loss": "false"})
