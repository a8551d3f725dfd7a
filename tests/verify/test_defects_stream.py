"""Each deliberate defect of how a stream goes on is found, and named for what it does; without it the same course of
events is clean.

Source, sink and broker are the real ones; Spark is not there (`stream_without_spark.py`), but for the last tests, which
are runs of `onceflow verify spark` with its own faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import onceflow
from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.spark import CheckpointMismatch
from onceflow.spark.progress import PROGRESS_TOPIC
from onceflow.spark.source import DataLossError
from onceflow.verify.anomalies import check
from onceflow.verify.fates import FETCH, PASS, Action, Fate, Frame, Hooks
from onceflow.verify.network import Network
from tests.support.brokers import SETTINGS
from tests.support.defects.stream import DEFECTS
from tests.support.sink_without_spark import Driver, without_spark
from tests.support.stream_without_spark import Checkpoint, Stream

PER_BATCH = 3
EMPTY_ANSWERS = 3


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker of their own: a scenario deletes the topic in which all sinks keep their progress."""
    with onceflow.Broker(data_dir=None, settings=SETTINGS) as broker:
        yield broker.bootstrap


@pytest.fixture
def stream(
    bootstrap: str, new_name: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stream]:
    with without_spark(monkeypatch):
        stream = Stream(bootstrap, new_name(), tmp_path)
        yield stream
        stream.close()


# Each returns the driver that trouble befalls. If that one refuses to go on, the next does what its message advises.


def older_checkpoint_is_restored(stream: Stream, _: str) -> Driver:
    checkpoint = Checkpoint()
    stream.feed(PER_BATCH)
    stream.run(checkpoint)
    older = checkpoint.copy()
    for _number in (1, 2):
        stream.feed(PER_BATCH)
        stream.run(checkpoint)
    stream.feed(PER_BATCH)
    driver = stream.run(older)
    if isinstance(driver.problem, CheckpointMismatch):
        assert stream.run(checkpoint).problem is None
    return driver


def fetches_are_answered_without_records(stream: Stream, bootstrap: str) -> Driver:
    stream.feed(PER_BATCH)
    with Network(bootstrap) as network:
        [proxy] = network.nodes.values()
        proxy.plan = Hooks(response=_empties(EMPTY_ANSWERS))
        driver = stream.run(Checkpoint(), bootstrap=network.bootstrap)
        assert network.emptied > 0
    return driver


def _empties(count: int) -> Callable[[Frame], Action]:
    left = count

    def look(frame: Frame) -> Action:
        nonlocal left
        if frame.api_key != FETCH or not left:
            return PASS
        left -= 1
        return Action(Fate.EMPTY)

    return look


def source_topic_is_deleted_and_created_again(stream: Stream, _: str) -> Driver:
    checkpoint = Checkpoint()
    stream.pad(PER_BATCH)
    assert stream.run(checkpoint).problem is None
    stream.recreate_source()
    stream.feed(2 * PER_BATCH)
    driver = stream.run(checkpoint)
    if isinstance(driver.problem, DataLossError):
        assert stream.run(checkpoint, failOnDataLoss="false").problem is None
    return driver


class Killed(Exception):
    """Of a driver, by us."""


def progress_is_deleted_while_the_driver_is_dead(stream: Stream, bootstrap: str) -> Driver:
    """It dies between Kafka's commit and Spark's own."""

    def die() -> None:
        raise Killed

    checkpoint = Checkpoint()
    stream.feed(PER_BATCH)
    assert isinstance(stream.run(checkpoint, before_noted=die).problem, Killed)
    Admin(ClientSettings(bootstrap=bootstrap)).delete(PROGRESS_TOPIC)
    driver = stream.run(checkpoint)
    stream.feed(PER_BATCH)
    if isinstance(driver.problem, CheckpointMismatch):
        assert stream.run(Checkpoint(), startingOffsets=stream.group_offsets()).problem is None
    return driver


class Scenario(NamedTuple):
    play: Callable[[Stream, str], Driver]
    ends_with: type[Exception] | None
    """What becomes of the driver if there is no defect."""
    records: int


SCENARIOS = {
    "skipped by number alone": Scenario(older_checkpoint_is_restored, CheckpointMismatch, 4 * PER_BATCH),
    "empty fetch taken for read": Scenario(fetches_are_answered_without_records, None, PER_BATCH),
    "topic ids ignored": Scenario(source_topic_is_deleted_and_created_again, DataLossError, 2 * PER_BATCH),
    "missing progress taken for a new app": Scenario(
        progress_is_deleted_while_the_driver_is_dead, CheckpointMismatch, 2 * PER_BATCH
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_the_verdict_names_what_a_defect_does(
    name: str, stream: Stream, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    DEFECTS[name].switch_on(monkeypatch)
    driver = SCENARIOS[name].play(stream, bootstrap)
    assert driver.problem is None, "it goes on as if nothing had happened"
    assert DEFECTS[name].anomaly in {each.name for each in check(stream.history())}


@pytest.mark.faults
@pytest.mark.parametrize("name", DEFECTS)
def test_without_the_defect_the_same_course_of_events_is_clean(name: str, stream: Stream, bootstrap: str) -> None:
    scenario = SCENARIOS[name]
    driver = scenario.play(stream, bootstrap)
    assert driver.problem is None if scenario.ends_with is None else isinstance(driver.problem, scenario.ends_with)
    history = stream.history()
    assert check(history) == []
    assert sum(seen.topic.endswith("-output") for seen in history.final) == scenario.records
