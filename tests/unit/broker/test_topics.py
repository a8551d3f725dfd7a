"""Topics: whatever we die over, the next start finds the old state or the new one, and nothing in between."""

from __future__ import annotations

import contextlib
import json
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceflow.broker.topics import NAME_LENGTH_MAX, PARTITIONS_MAX, Topic, Topics
from onceflow.clock import ManualClock
from onceflow.config import BrokerConfig
from onceflow.errors import CorruptLog, ErrorCode, ProtocolError, StorageError
from onceflow.log.files import FileSystem, RealFileSystem
from onceflow.log.memory_files import MemoryFileSystem, SimulatedCrash
from onceflow.log.small_files import to_json
from tests.unit.log.support import append, flush, make_batch, values

DATA = Path("/data")
State = dict[str, tuple[uuid.UUID, int, dict[str, str], list[list[bytes | None]]]]


def disk() -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.forgets_directories = True
    files.make_directory(DATA)
    files.sync_directory(DATA.parent)
    return files


def open_topics(files: FileSystem, directory: Path = DATA, **given: str) -> Topics:
    config = BrokerConfig(given={name.replace("_", "."): text for name, text in given.items()})
    return Topics(files, directory, config, ManualClock())


def state(topics: Topics) -> State:
    """All that there is to know: ids, numbers of partitions, settings, records."""
    found = {}
    for topic in topics:
        logs = [partition.log for partition in topic.partitions]
        assert [partition.index for partition in topic.partitions] == list(range(len(logs)))
        assert topics.get(topic.name) is topics.by_id(topic.id) is topics.find(topic.id.bytes) is topic
        found[topic.name] = (topic.id, len(logs), topic.overrides, [values(log) for log in logs])
    return found


def folders(files: FileSystem) -> list[str]:
    return [name for name in files.list(DATA) if name != "topics"]


def write(topic: Topic, value: bytes) -> None:
    """A record in every partition, acknowledged."""
    for partition in topic.partitions:
        append(partition.log, make_batch(value=value))
        flush(partition.log)


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ProtocolError) as refused:
        call()
    return refused.value.code


def furnished() -> tuple[MemoryFileSystem, Topics]:
    files = disk()
    topics = open_topics(files)
    for name, partitions in (("a", 2), ("b", 1)):
        write(topics.create(name, partitions, {"retention.ms": "5000"}), name.encode())
    return files, topics


def named(topics: Topics, name: str) -> Topic:
    topic = topics.get(name)
    assert topic is not None
    return topic


# What can be done


def test_a_new_broker_has_no_topics() -> None:
    topics = open_topics(disk())
    assert (len(topics), list(topics), list(topics.partitions())) == (0, [], [])
    assert topics.get("a") is topics.by_id(uuid.uuid4()) is topics.by_id(None) is topics.find(bytes(16)) is None


def test_topics_are_there_after_a_restart_with_their_records() -> None:
    files, topics = furnished()
    before = state(topics)
    assert {name: (found[1], found[3]) for name, found in before.items()} == {
        "a": (2, [[b"a"], [b"a"]]),
        "b": (1, [[b"b"]]),
    }
    assert state(open_topics(files.kill())) == before
    assert state(open_topics(files.crash(random.Random(1)))) == before


def test_a_deleted_topic_is_gone_with_its_folders() -> None:
    files, topics = furnished()
    deleted = named(topics, "a")
    topics.delete(deleted)
    assert topics.get("a") is topics.by_id(deleted.id) is None
    assert all(partition.log.closed for partition in deleted.partitions)
    assert (folders(files), files.list(DATA / "topics")) == (["b-0"], ["b.json"])
    assert list(state(open_topics(files.crash(random.Random(1))))) == ["b"]


def test_a_topic_of_the_same_name_is_another_one() -> None:
    files, topics = furnished()
    old = named(topics, "a")
    topics.delete(old)
    new = topics.create("a", 1, {})
    assert new.id != old.id
    assert state(open_topics(files.kill()))["a"] == (new.id, 1, {}, [[]])


def test_a_topic_grows_and_keeps_what_it_has() -> None:
    files, topics = furnished()
    topic = named(topics, "a")
    topics.grow(topic, 4)
    write(topic, b"x")
    expected = [[b"a", b"x"], [b"a", b"x"], [b"x"], [b"x"]]
    assert state(open_topics(files.crash(random.Random(1))))["a"] == (topic.id, 4, {"retention.ms": "5000"}, expected)


def test_a_topic_is_configured_anew_as_a_whole() -> None:
    files, topics = furnished()
    topic = named(topics, "a")
    topics.configure(topic, {"segment.bytes": "1000"})
    assert {partition.log.config.segment_bytes for partition in topic.partitions} == {1000}
    assert {partition.log.config.retention_ms for partition in topic.partitions} == {7 * 86_400_000}
    again = named(open_topics(files.kill()), "a")
    assert again.overrides == {"segment.bytes": "1000"}
    assert again.partitions[0].log.config.segment_bytes == 1000


def test_what_the_broker_was_told_holds_for_topics_that_were_not() -> None:
    topics = open_topics(disk(), log_segment_bytes="2000")
    plain, told = topics.create("plain", 1, {}), topics.create("told", 1, {"segment.bytes": "3000"})
    assert plain.partitions[0].log.config.segment_bytes == 2000
    assert told.partitions[0].log.config.segment_bytes == 3000


# Refusals


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "a/b", "../a", "é", "a\n", "a:b", "x" * (NAME_LENGTH_MAX + 1), "a\x00b"]
)
def test_illegal_names_are_refused(name: str) -> None:
    files, topics = furnished()
    before = (state(topics), folders(files))
    assert refusal(lambda: topics.create(name, 1, {})) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert refusal(lambda: topics.named(name)) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (state(topics), folders(files)) == before


@pytest.mark.parametrize("name", ["a", "A", "a.b", "a-b_c.D9", "-", "_", "...", "x" * NAME_LENGTH_MAX, "a-0", "a.json"])
def test_legal_names_survive_a_restart(name: str) -> None:
    files = disk()
    topic = open_topics(files).create(name, 2, {})
    assert state(open_topics(files.kill())) == {name: (topic.id, 2, {}, [[], []])}


def test_the_longest_name_is_one_that_a_real_disk_takes(tmp_path: Path) -> None:
    name = "x" * NAME_LENGTH_MAX
    topics = open_topics(RealFileSystem(), tmp_path)
    topics.create(name, 1, {})
    topics.configure(named(topics, name), {"segment.bytes": "1000"})
    assert open_topics(RealFileSystem(), tmp_path).get(name) is not None


def test_names_that_look_like_partitions_of_each_other_are_kept_apart() -> None:
    files = disk()
    topics = open_topics(files)
    for name in ("a", "a-0", "a-0-0", "a-1"):
        write(topics.create(name, 2, {}), name.encode())
    topics.delete(named(topics, "a"))
    left = state(open_topics(files.kill()))
    assert {name: found[3] for name, found in left.items()} == {
        name: [[name.encode()]] * 2 for name in ("a-0", "a-0-0", "a-1")
    }


def test_a_name_that_exists_is_refused() -> None:
    _, topics = furnished()
    before = state(topics)
    assert refusal(lambda: topics.create("a", 1, {})) == ErrorCode.TOPIC_ALREADY_EXISTS
    assert state(topics) == before


@pytest.mark.parametrize(("first", "second"), [("a.b", "a_b"), ("a_b", "a.b"), ("x.y_z", "x_y.z")])
def test_names_that_differ_only_in_dots_and_underscores_collide(first: str, second: str) -> None:
    """As in Kafka, whose metrics would not tell them apart."""
    topics = open_topics(disk())
    topics.create(first, 1, {})
    assert refusal(lambda: topics.create(second, 1, {})) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert [topic.name for topic in topics] == [first]
    topics.delete(named(topics, first))
    topics.create(second, 1, {})


@pytest.mark.parametrize(
    ("partitions", "code"),
    [
        (0, ErrorCode.INVALID_PARTITIONS),
        (-1, ErrorCode.INVALID_PARTITIONS),
        (PARTITIONS_MAX + 1, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_a_number_of_partitions_that_cannot_be(partitions: int, code: ErrorCode) -> None:
    files, topics = furnished()
    assert refusal(lambda: topics.create("new", partitions, {})) == code
    assert folders(files) == ["a-0", "a-1", "b-0"]


@pytest.mark.parametrize("overrides", [{"retention.mss": "1"}, {"retention.ms": "long"}, {"num.partitions": "1"}])
def test_settings_that_a_topic_cannot_have(overrides: dict[str, str]) -> None:
    files, topics = furnished()
    before = state(topics)
    assert refusal(lambda: topics.create("new", 1, overrides)) == ErrorCode.INVALID_CONFIG
    assert refusal(lambda: topics.configure(named(topics, "a"), overrides)) == ErrorCode.INVALID_CONFIG
    assert state(topics) == state(open_topics(files.kill())) == before


def test_a_topic_that_nobody_has() -> None:
    topics = open_topics(disk())
    assert refusal(lambda: topics.named("a")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_only_what_kafka_calls_internal_is_internal() -> None:
    topics = open_topics(disk())
    assert topics.create("__consumer_offsets", 1, {}).is_internal
    assert not topics.create("_schemas", 1, {}).is_internal


# Dying, and failing, at every step

CHANGES: dict[str, Callable[[Topics], object]] = {
    "create": lambda topics: topics.create("c", 2, {"segment.bytes": "1000"}),
    "delete": lambda topics: topics.delete(named(topics, "a")),
    "grow": lambda topics: topics.grow(named(topics, "a"), 4),
    "configure": lambda topics: topics.configure(named(topics, "a"), {"segment.bytes": "1000"}),
}


def without_ids(found: State) -> dict[str, tuple[int, dict[str, str], list[list[bytes | None]]]]:
    return {name: rest for name, (_, *rest) in found.items()}  # type: ignore[misc]


def deaths(change: str) -> Iterator[MemoryFileSystem]:
    """A disk for every step at which a change can be interrupted."""
    for step in range(1000):
        files, topics = furnished()
        files.steps_until_crash = step
        try:
            CHANGES[change](topics)
        except SimulatedCrash:
            yield files
        else:
            assert step > 3
            return
    pytest.fail("never came to an end")


@pytest.mark.parametrize("change", CHANGES)
def test_dying_at_any_step_leaves_the_old_state_or_the_new_one(change: str) -> None:
    _, topics = furnished()
    old = without_ids(state(topics))
    CHANGES[change](topics)
    new = without_ids(state(topics))
    assert old != new
    seen = []
    for files in deaths(change):
        for after in (files.kill(), *(files.crash(random.Random(seed)) for seed in range(6))):
            topics = open_topics(after)
            found = state(topics)
            seen.append(without_ids(found))
            assert seen[-1] in (old, new)
            assert state(open_topics(after.kill())) == found, "the next start finds the same"
            if seen[-1] == old:
                CHANGES[change](topics)
            assert without_ids(state(open_topics(after.kill()))) == new
            assert state(open_topics(after.crash(random.Random(0)))) == state(topics)
    assert old in seen
    assert new in seen


def test_a_delete_that_was_interrupted_frees_the_folders_at_the_next_start() -> None:
    """In any order of what loss of power leaves: a folder must not outlive the file that says what it is."""
    for files in deaths("delete"):
        for after in (files.kill(), *(files.crash(random.Random(seed)) for seed in range(20))):
            if open_topics(after).get("a") is None:
                assert folders(after) == ["b-0"]
                assert after.list(DATA / "topics") == ["b.json"]


def test_a_create_that_was_interrupted_can_be_done_again_and_finds_no_old_records() -> None:
    for files in deaths("create"):
        after = files.kill()
        topics = open_topics(after)
        if topics.get("c") is None:
            topic = topics.create("c", 1, {})
            topics.grow(topic, 3)
            assert state(open_topics(after.kill()))["c"][3] == [[], [], []]


def test_the_records_of_a_deleted_topic_never_come_back_in_a_new_one_of_its_name() -> None:
    for files in deaths("delete"):
        for seed in range(6):
            after = files.crash(random.Random(seed))
            topics = open_topics(after)
            if topics.get("a") is not None:
                continue
            topic = topics.create("a", 1, {})
            topics.grow(topic, 2)
            assert state(open_topics(after.kill()))["a"][3] == [[], []]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("failure", ["write", "sync"])
def test_a_disk_that_refuses_at_any_step_leaves_the_old_state(change: str, failure: str) -> None:
    """Here and now the old one. The next start may find the new one, where only the last sync was refused."""
    for step in range(1000):
        files, topics = furnished()
        before = state(topics)
        target = files.kill()  # what it becomes without a failure
        expected = open_topics(target)
        CHANGES[change](expected)
        if failure == "write":
            files.write_failure = (step, 0)
        else:
            fail_sync_after(files, step)
        try:
            CHANGES[change](topics)
        except StorageError:
            assert state(topics) == before
            again = without_ids(state(open_topics(files.kill())))
            assert again in (without_ids(before), without_ids(state(expected)))
            CHANGES[change](topics)
        else:
            if failure == "write" and files.write_failure is None:
                continue  # it was refused, and that was no harm
            if failure == "sync" and step < 20:
                continue
            break
        assert without_ids(state(topics)) == without_ids(state(expected))
        assert state(open_topics(files.kill())) == state(topics)
    else:
        pytest.fail("never came to an end")


def fail_sync_after(files: MemoryFileSystem, passes: int) -> None:
    before_sync = files.before_sync
    left = iter([False] * passes + [True])

    def refuse() -> None:
        files.sync_failures = int(next(left, False))
        before_sync()

    files.before_sync = refuse  # type: ignore[method-assign]


# What is found on disk


def test_a_file_that_was_never_finished_is_removed() -> None:
    files, topics = furnished()
    files.replace(DATA / "topics" / "c.json.tmp", b"{")
    assert state(open_topics(files)) == state(topics)
    assert files.list(DATA / "topics") == ["a.json", "b.json"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"null", b'{"id": 1, "partitions": 1, "config": {}}', b'{"partitions": "x"}', b"\xff",
     json.dumps({"id": str(uuid.UUID(int=1)), "partitions": 1, "config": {"colour": "green"}}).encode()],
)  # fmt: skip
def test_a_file_that_describes_no_topic_stops_the_start_and_nothing_is_removed(content: bytes) -> None:
    files, _ = furnished()
    files.replace(DATA / "topics" / "a.json", content)
    with pytest.raises(CorruptLog, match=r"a\.json (is damaged|does not describe a topic)"):
        open_topics(files)
    with contextlib.suppress(ValueError):
        described = json.loads(content)
        if isinstance(described, dict):
            files.replace(DATA / "topics" / "a.json", to_json(described))
            with pytest.raises(CorruptLog, match=r"a\.json does not describe a topic"):
                open_topics(files)
    assert folders(files) == ["a-0", "a-1", "b-0"]


def test_an_empty_folder_that_belongs_to_no_topic_is_left_alone_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As of a topic that was being made when the process died."""
    files, _ = furnished()
    open_topics(files).create("c", 2, {})
    files.remove(DATA / "topics" / "c.json")
    topics = open_topics(files)
    assert [topic.name for topic in topics] == ["a", "b"]
    assert folders(files) == ["a-0", "a-1", "b-0", "c-0", "c-1"]
    reported = [record.getMessage() for record in caplog.records]
    assert reported == [f"Folder {DATA}/c-{index} belongs to no topic and is left alone." for index in (0, 1)]


def test_a_folder_with_records_that_belongs_to_no_topic_stops_the_start() -> None:
    files, _ = furnished()
    files.remove(DATA / "topics" / "a.json")
    with pytest.raises(CorruptLog, match=r"Folder /data/a-0 holds records .*: /data/topics/a\.json is missing"):
        open_topics(files)
    assert folders(files) == ["a-0", "a-1", "b-0"]


def test_a_partition_without_its_folder_stops_the_start_unless_somebody_puts_an_empty_one_there() -> None:
    files, _ = furnished()
    files.remove_tree(DATA / "a-1")
    with pytest.raises(CorruptLog, match="/data/a-1 is missing"):
        open_topics(files)
    assert folders(files) == ["a-0", "b-0"]
    files.make_directory(DATA / "a-1")
    topic = open_topics(files).get("a")
    assert topic is not None
    assert [len(values(partition.log)) for partition in topic.partitions] == [1, 0]


def test_a_life_on_a_real_disk(tmp_path: Path) -> None:
    topics = open_topics(RealFileSystem(), tmp_path)
    write(topics.create("a", 2, {"segment.bytes": "1000"}), b"1")
    topics.create("b", 1, {})
    topics.grow(named(topics, "a"), 3)
    topics.delete(named(topics, "b"))
    topics.configure(named(topics, "a"), {"segment.bytes": "2000"})
    before = state(topics)
    assert before["a"][1:] == (3, {"segment.bytes": "2000"}, [[b"1"], [b"1"], []])
    for partition in topics.partitions():
        partition.log.abandon()
    assert state(open_topics(RealFileSystem(), tmp_path)) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-0", "a-1", "a-2", "topics"]
