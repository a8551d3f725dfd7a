"""What a data directory must hold to be taken for one that is whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.errors import CorruptLog
from onceflow.log.memory_files import MemoryFileSystem, SimulatedCrash
from onceflow.log.segment import LOG_SUFFIX
from tests.support.memory_broker import DIRECTORY, MemoryBroker
from tests.support.memory_transactions import MemoryProducer, create_topic

FILES = ("meta.json", "users.json", "acls.json", "features.json", "producer-ids.json")


def used() -> MemoryFileSystem:
    """A directory with a topic and both coordinators' topics, after a clean stop."""
    broker = MemoryBroker()
    create_topic(broker, "a")
    producer = MemoryProducer(broker, "id").init()
    producer.send_add_offsets("group")
    broker.settle()
    producer.send_offset("group", "a", 0, 7)
    broker.settle()
    producer.send_end(commit=True)
    broker.settle()
    for partition in broker.node.topics.partitions():
        partition.log.close()
    return broker.files.kill()


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_is_named(name: str) -> None:
    files = used()
    files.remove(DIRECTORY / name)
    with pytest.raises(CorruptLog, match=rf"^/data/{name} is missing"):
        MemoryBroker(files)


@pytest.mark.parametrize("name", ["users.json", "acls.json", "features.json"])
def test_a_person_may_begin_anew_with_a_file(name: str) -> None:
    files = used()
    files.replace(DIRECTORY / name, b"{}")
    MemoryBroker(files)


def test_dying_while_a_directory_is_made_leaves_one_that_can_be_used() -> None:
    for step in range(1000):
        files = MemoryFileSystem()
        files.steps_until_crash = step
        try:
            MemoryBroker(files)
        except SimulatedCrash:
            MemoryBroker(MemoryBroker(files.kill()).files.kill())
        else:
            assert step > len(FILES)
            return
    pytest.fail("never came to an end")


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets"])
def test_a_coordinators_log_is_read_with_its_checksums_after_a_clean_stop_too(topic: str) -> None:
    files = used()
    [path] = [DIRECTORY / f"{topic}-0" / name for name in files.list(DIRECTORY / f"{topic}-0") if LOG_SUFFIX in name]
    stored = files.read_bytes(path)
    for at in range(len(stored)):
        after = files.kill()
        after.replace(path, flip(at)(stored))
        with pytest.raises(CorruptLog, match=str(Path(topic + "-0") / path.name)):
            MemoryBroker(after)
