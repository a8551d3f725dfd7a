"""What a task makes of its rows: which topic and partition, in which order and turns, and what it refuses."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import TopicPartition
from onceflow.client.producing import DeliveryTimedOut, WriteRefused
from onceflow.client.settings import ClientSettings
from onceflow.client.shared_transaction import Ticket
from onceflow.client.topic_limits import TopicLimits
from onceflow.errors import ErrorCode
from onceflow.spark import task as module
from onceflow.spark.columns import binary_of_list
from onceflow.spark.murmur2 import partitions_of
from onceflow.spark.packed_rows import pack_rows
from onceflow.spark.sequencer import Refusal, Run, Sequencer, TaskReport
from onceflow.spark.task import WritePlan
from onceflow.spark.unfit_rows import RowRefused, TooLarge, learned
from onceflow.wire.batch import read_header
from onceflow.wire.compression import Codec
from onceflow.wire.records import Record, read_records

TICKET = Ticket("app", 7, 3, 2)
HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""Keys and what Kafka's own partitioner makes of them, by its own tests."""
KEYS = list(HASHES)
OF_FIVE = {key: (hashed & 0x7FFFFFFF) % 5 for key, hashed in HASHES.items()}


class FakeProducing:
    """Topics with partitions; what was sent, in its order."""

    def __init__(self, **topics: int) -> None:
        self._topics = topics
        self.sent: list[dict[TopicPartition, bytes]] = []
        self.problem: Exception | None = None
        self.takes: dict[str, TopicLimits] = {}

    def partition_counts(self, topics: Sequence[str]) -> list[int]:
        if missing := [topic for topic in topics if topic not in self._topics]:
            raise TopicMissingError(f"there is no topic {missing[0]!r}")
        return [self._topics[topic] for topic in topics]

    def limits(self, topics: Sequence[str]) -> dict[str, TopicLimits]:
        return {topic: self.takes.get(topic, TopicLimits()) for topic in topics}

    def send(self, batches: Mapping[TopicPartition, bytes]) -> dict[TopicPartition, int]:
        if self.problem is not None:
            raise self.problem
        self.sent.append(dict(batches))
        return dict.fromkeys(batches, 0)

    def records(self) -> dict[TopicPartition, list[Record]]:
        found: dict[TopicPartition, list[Record]] = defaultdict(list)
        for batches in self.sent:
            for where, data in batches.items():
                found[where] += read_records(data)
        return dict(found)

    def values(self) -> dict[TopicPartition, list[str]]:
        return {where: [(each.value or b"").decode() for each in records] for where, records in self.records().items()}


class FakeTurns:
    """Grants one partition at a time, beginning at 100, so that every switch shows."""

    def __init__(self) -> None:
        self.positions: dict[TopicPartition, int] = defaultdict(lambda: 100)
        self.taken: list[TopicPartition] = []

    def take(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        where = next(iter(wanted))
        self.taken.append(where)
        return {where: self.positions[where]}

    def now_at(self, where: TopicPartition, sequence: int) -> None:
        self.positions[where] = sequence

    def give_back(self) -> None:
        pass


def plan(**settings: Any) -> WritePlan:
    given: dict[str, Any] = {
        "settings": ClientSettings(bootstrap="127.0.0.1:9"),
        "topic": "out",
        "partitioning": "kafka",
        "codec": Codec.NONE,
        "level": None,
        "batch_bytes": 1_000_000,
        "buffer_bytes": 8_000_000,
        "delivery_timeout_s": 1.0,
        "ticket": TICKET,
    }
    return WritePlan(**{**given, **settings})


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def write(producing: FakeProducing, *batches: pa.RecordBatch, task: int = 0, **settings: Any) -> TaskReport:
    sender = module._TurnSender(producing, TICKET, FakeTurns())  # type: ignore[arg-type]
    return module._write(plan(**settings), task, producing, sender, batches)  # type: ignore[arg-type]


# --- the partition


def test_rows_with_keys_go_where_kafkas_own_partitioner_puts_them() -> None:
    producing = FakeProducing(out=5)
    write(producing, rows(key=KEYS, value=KEYS))
    expected: dict[TopicPartition, list[str]] = defaultdict(list)
    for key, partition in OF_FIVE.items():
        expected["out", partition].append(key.decode())
    assert len(expected) > 2
    assert producing.values() == expected


@pytest.mark.parametrize("columns", [{}, {"key": pa.nulls(3, pa.binary())}], ids=["no column", "all null"])
def test_rows_without_keys_fill_one_partition_after_the_other(columns: dict[str, Any]) -> None:
    producing = FakeProducing(out=3)
    several = [rows(value=[f"{at}"] * 3, **columns) for at in range(4)]
    write(producing, *several, task=2, buffer_bytes=1)
    assert [list(each) for each in producing.sent] == [[("out", 2)], [("out", 0)], [("out", 1)], [("out", 2)]]


def test_rows_without_a_key_among_others_go_to_the_tasks_partition_of_the_moment() -> None:
    producing = FakeProducing(out=5)
    here = OF_FIVE[b"21"]
    task = here + 1
    write(producing, rows(key=[b"21", None, b"21", None], value=["a", "1", "b", "2"]), task=task)
    assert producing.values() == {("out", here): ["a", "b"], ("out", task % 5): ["1", "2"]}


def test_a_partition_that_a_row_chooses_wins() -> None:
    producing = FakeProducing(out=5)
    here = OF_FIVE[b"21"]
    other = (here + 1) % 5
    chosen = pa.array([other, None, -1, other], pa.int32())
    write(producing, rows(key=[b"21", b"21", b"21", None], value=["1", "2", "3", "4"], partition=chosen))
    assert producing.values() == {("out", here): ["2", "3"], ("out", other): ["1", "4"]}


@pytest.mark.parametrize("wrong", [4, -2, 2**31 - 1])
def test_a_partition_that_does_not_exist_is_refused(wrong: int) -> None:
    producing = FakeProducing(out=4)
    with pytest.raises(RowRefused, match=f"partition {wrong} of 'out', which has 4"):
        write(producing, rows(value=["a", "b"], partition=pa.array([0, wrong], pa.int32())))
    assert producing.sent == []


def test_by_task_every_row_goes_to_the_tasks_own_partition() -> None:
    producing = FakeProducing(out=4)
    write(producing, rows(key=KEYS, value=KEYS), task=6, partitioning="task", buffer_bytes=1)
    assert list(producing.values()) == [("out", 2)]


# --- the topic


def test_rows_go_to_the_topics_that_they_name() -> None:
    producing = FakeProducing(x=1, y=3)
    batch = rows(topic=["x", "y", "x", "y"], value=["1", "2", "3", "4"], partition=pa.array([0, 2, 0, 1], pa.int32()))
    report = write(producing, batch, topic=None)
    assert producing.values() == {("x", 0): ["1", "3"], ("y", 1): ["4"], ("y", 2): ["2"]}
    assert report.partitions == {"x": [0], "y": [1, 2]}


@pytest.mark.parametrize("partitioning", ["kafka", "task"])
def test_every_topic_gets_what_it_would_get_alone(partitioning: str) -> None:
    widths = {"x": 1, "y": 5, "z": 3}
    keys = [None if number % 7 == 0 else b"%d" % (number % 40) for number in range(300)]
    topics = ["xyz"[number % 3] for number in range(300)]
    values = [str(number) for number in range(300)]
    together = FakeProducing(**widths)
    write(together, rows(topic=topics, key=keys, value=values), task=7, topic=None, partitioning=partitioning)
    alone: dict[TopicPartition, list[str]] = {}
    for topic, width in widths.items():
        producing = FakeProducing(**{topic: width})
        mine = [number for number in range(300) if topics[number] == topic]
        columns = {"key": [keys[number] for number in mine], "value": [values[number] for number in mine]}
        write(producing, rows(**columns), task=7, topic=topic, partitioning=partitioning)
        alone |= producing.values()
    assert together.values() == alone


def test_a_partition_that_one_topic_has_and_the_rows_own_has_not_is_refused() -> None:
    chosen = pa.array([2, 2], pa.int32())
    with pytest.raises(RowRefused, match="partition 2 of 'x', which has 1"):
        write(FakeProducing(x=1, y=3), rows(topic=["y", "x"], value=["1", "2"], partition=chosen), topic=None)


def test_packed_rows_are_written_as_if_they_stood_there_one_by_one() -> None:
    producing = FakeProducing(x=1, y=3)
    pieces = [pack_rows({"x": ([None], [b"1"]), "y": ([b"k", b"k"], [b"2", None])}), pack_rows({"x": ([None], [b"3"])})]
    report = write(producing, rows(packed=pa.array(pieces, pa.binary())), topic=None)
    assert producing.values()["x", 0] == ["1", "3"]
    assert report.rows == 4


def test_the_sinks_own_topic_wins_over_the_column() -> None:
    producing = FakeProducing(out=1)
    write(producing, rows(topic=["x", None], value=["1", "2"]))
    assert producing.values() == {("out", 0): ["1", "2"]}


def test_a_row_without_a_topic_is_refused() -> None:
    producing = FakeProducing(x=1)
    with pytest.raises(RowRefused, match="no topic"):
        write(producing, rows(topic=["x", None], value=["1", "2"]), topic=None)
    assert producing.sent == []


def test_a_topic_that_does_not_exist_is_refused_before_anything_is_sent() -> None:
    producing = FakeProducing(x=1)
    with pytest.raises(TopicMissingError, match="nowhere"):
        write(producing, rows(topic=["x", "nowhere"], value=["1", "2"]), topic=None)
    assert producing.sent == []


# --- the records


def test_keys_values_headers_and_times_are_those_of_the_row() -> None:
    producing = FakeProducing(out=1)
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    write(
        producing,
        rows(
            key=[b"k", None],
            value=[None, b"v"],
            headers=pa.array([[{"key": "h", "value": b"x"}, {"key": "h", "value": None}], None], header),
            timestamp=pa.array([1_700_000_000_123_999, 5_000], pa.timestamp("us", "UTC")),
        ),
    )
    assert producing.records()["out", 0] == [
        Record(0, 1_700_000_000_123, b"k", None, (("h", b"x"), ("h", None))),
        Record(1, 5, None, b"v"),
    ]


def test_a_row_without_a_time_is_written_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "time_ns", lambda: 1_234_567_890)
    producing = FakeProducing(out=1)
    write(producing, rows(value=["a", "b"], timestamp=pa.array([None, 7_000], pa.timestamp("us", "UTC"))))
    write(producing, rows(value=["c"]))
    assert [each.timestamp for each in producing.records()["out", 0]] == [1234, 7, 1234]


def test_what_kafkas_own_producer_would_not_take_is_refused() -> None:
    with pytest.raises(RowRefused):
        write(FakeProducing(out=1), rows(value=["a"], timestamp=pa.array([-5_000_000], pa.timestamp("us", "UTC"))))


def test_the_report_counts_rows_and_bytes_and_names_the_partitions() -> None:
    producing = FakeProducing(out=5)
    batch = rows(key=KEYS, value=KEYS)
    report = write(producing, batch, batch.slice(0, 0), batch)
    assert report.rows == 12
    assert report.partitions == {"out": sorted(set(OF_FIVE.values()))}
    sent = [data for batches in producing.sent for data in batches.values()]
    assert report.bytes == sum(len(data) - 61 for data in sent)


@pytest.mark.parametrize("batches", [[], [rows(value=pa.array([], pa.binary()))]], ids=["no batch", "an empty one"])
def test_a_task_without_rows_writes_nothing(batches: list[pa.RecordBatch]) -> None:
    producing = FakeProducing(out=4)
    assert write(producing, *batches) == TaskReport()
    assert producing.sent == []


def test_rows_are_sent_when_the_buffer_is_full_and_at_the_end() -> None:
    producing = FakeProducing(out=1)
    arrived: list[int] = []

    def incoming() -> Iterator[pa.RecordBatch]:
        for number in range(5):
            arrived.append(len(producing.sent))
            yield rows(value=[b"x" * 100 for _ in range(10)], key=[str(number).encode()] * 10)

    sender = module._TurnSender(producing, TICKET, FakeTurns())  # type: ignore[arg-type]
    module._write(plan(buffer_bytes=2_000), 0, producing, sender, incoming())  # type: ignore[arg-type]
    assert arrived == [0, 0, 1, 1, 2]
    assert [read_header(each["out", 0]).count for each in producing.sent] == [20, 20, 10]


# --- turns


def test_sequences_go_on_where_the_turn_began_and_rows_keep_their_order() -> None:
    producing = FakeProducing(out=2)
    turns = FakeTurns()
    sender = module._TurnSender(producing, TICKET, turns)  # type: ignore[arg-type]
    partitions = pa.array([0, 1] * 20, pa.int32())
    batch = rows(value=[f"{number:03}" * 100 for number in range(40)], partition=partitions)
    module._write(plan(batch_bytes=1_500), 0, producing, sender, [batch, batch])  # type: ignore[arg-type]
    for where, values in producing.values().items():
        expected = [f"{number:03}" for number in range(40) if number % 2 == where[1]]
        assert [value[:3] for value in values] == expected * 2
        headers = [read_header(sent[where]) for sent in producing.sent if where in sent]
        assert len(headers) > 5
        sequence = 100
        for header in headers:
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, sequence)
            assert header.is_transactional
            sequence += header.count
        assert turns.positions[where] == sequence == 140


def test_a_batch_that_is_not_acknowledged_does_not_move_the_sequence() -> None:
    producing = FakeProducing(out=1)
    producing.problem = DeliveryTimedOut("too late")
    turns = FakeTurns()
    sender = module._TurnSender(producing, TICKET, turns)  # type: ignore[arg-type]
    with pytest.raises(DeliveryTimedOut):
        module._write(plan(), 0, producing, sender, [rows(value=["a"])])  # type: ignore[arg-type]
    assert turns.positions["out", 0] == 100


def test_sequences_go_round_after_two_to_the_31() -> None:
    assert module._after(2**31 - 2, 1) == 2**31 - 1
    assert module._after(2**31 - 1, 1) == 0
    assert module._after(2**31 - 3, 5) == 2


def test_alone_a_task_counts_for_itself_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_new_producer", lambda *_: (55, 0))
    producing = FakeProducing(out=1)
    sender = module._OwnSender(producing, None, 1.0)  # type: ignore[arg-type]
    batch = rows(value=["a", "b"])
    module._write(plan(buffer_bytes=1), 0, producing, sender, [batch, batch])  # type: ignore[arg-type]
    headers = [read_header(sent["out", 0]) for sent in producing.sent]
    assert [(each.producer_id, each.producer_epoch, each.base_sequence) for each in headers] == [(55, 0, 0), (55, 0, 2)]
    assert not any(each.is_transactional for each in headers)


# --- rows that a topic cannot take


LETTERS: dict[str, Any] = {"dead_letter_topic": "letters"}


def letters(producing: FakeProducing) -> list[tuple[bytes | None, bytes | None, dict[str, str]]]:
    """What is in the dead-letter topic: key, value, headers."""
    return [
        (each.key, each.value, {name: (value or b"").decode() for name, value in each.headers})
        for (topic, _), records in producing.records().items()
        if topic == "letters"
        for each in records
    ]


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
def test_a_row_that_is_too_large_goes_to_the_dead_letter_topic_and_the_others_where_they_belong(codec: Codec) -> None:
    producing = FakeProducing(out=3, letters=2)
    producing.takes = {"out": TopicLimits(2_000), "letters": TopicLimits(1_000_000)}
    values = [b"a", noise(5_000), b"b", noise(1_500), noise(3_000)]
    keys = [b"1", b"2", None, b"4", None]
    report = write(producing, rows(key=keys, value=values), codec=codec, **LETTERS)
    assert (report.rows, report.dead_letters) == (5, 2)
    assert set(report.partitions) == {"out", "letters"}
    written = [each.value for (topic, _), found in producing.records().items() if topic == "out" for each in found]
    assert sorted(map(bytes, written), key=len) == [b"a", b"b", values[3]]
    assert all(len(each) <= 2_000 for sent in producing.sent for (topic, _), each in sent.items() if topic == "out")
    found = sorted(letters(producing), key=lambda each: len(each[1] or b""))
    assert [(key, value) for key, value, _ in found] == [(None, values[4]), (b"2", values[1])]
    size = found[1][2]["onceflow.error.size"]
    assert found[1][2] == {
        "onceflow.error.reason": "too_large",
        "onceflow.error.message": f"the record takes {int(size):,} bytes, and topic 'out' takes 2,000 "
        "(max.message.bytes)",
        "onceflow.error.topic": "out",
        "onceflow.error.partition": str(0x7FFFFFFF & partitions_of(binary_of_list([b"2"]), 3)[0]),
        "onceflow.error.size": size,
        "onceflow.error.limit": "2000",
    }
    assert 5_000 < int(size) < 5_200


def test_what_fits_when_it_is_compressed_is_not_too_large() -> None:
    producing = FakeProducing(out=1, letters=1)
    producing.takes = {"out": TopicLimits(2_000)}
    assert write(producing, rows(value=[b"x" * 50_000, b"y"]), codec=Codec.GZIP, **LETTERS).dead_letters == 0
    assert set(producing.records()) == {("out", 0)}
    assert all(len(each) <= 2_000 for sent in producing.sent for each in sent.values())


def test_batches_are_cut_to_what_the_topic_takes() -> None:
    producing = FakeProducing(out=1, letters=1)
    producing.takes = {"out": TopicLimits(2_000)}
    values = [noise(100 + number) for number in range(200)]
    assert write(producing, rows(value=values), **LETTERS).dead_letters == 0
    assert [each.value for each in producing.records()["out", 0]] == values
    assert max(len(each) for sent in producing.sent for each in sent.values()) <= 2_000


@pytest.mark.parametrize(("key", "value"), [(5, 9_000), (9_000, 5), (9_000, 9_000), (None, 9_000), (2_500, None)])
@pytest.mark.parametrize("header", [0, 3_000])
def test_what_is_too_large_for_the_dead_letter_topic_is_cut(key: int | None, value: int | None, header: int) -> None:
    producing = FakeProducing(out=1, letters=1)
    producing.takes = {"out": TopicLimits(2_000), "letters": TopicLimits(2_000)}
    whole_key, whole_value = (None if each is None else noise(each) for each in (key, value))
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "own", "value": noise(header)}] if header else None], kind)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([whole_key], pa.binary()), pa.array([whole_value], pa.binary()), headers], ["key", "value", "headers"]
    )
    assert write(producing, batch, **LETTERS).dead_letters == 1
    [(found_key, found_value, told)] = [
        (each.key, each.value, {name: (value or b"") for name, value in each.headers})
        for each in producing.records()["letters", 0]
    ]
    assert (found_key is None, found_value is None) == (key is None, value is None)
    assert (whole_key or b"").startswith(found_key or b"")
    assert (whole_value or b"").startswith(found_value or b"")
    cut = told["onceflow.error.truncated"].decode().split(",")
    assert ("value" in cut) == (found_value != whole_value)
    assert ("key" in cut) == (found_key != whole_key)
    assert ("headers" in cut) == (header > 0 and "own" not in told)
    assert max(len(each) for sent in producing.sent for each in sent.values()) <= 2_000


@pytest.mark.parametrize("codec", list(Codec))
def test_what_was_cut_fits_even_if_compression_makes_it_longer(codec: Codec) -> None:
    producing = FakeProducing(out=1, letters=1)
    producing.takes = {"out": TopicLimits(1_048_588), "letters": TopicLimits(1_048_588)}
    value = random.Random(1).randbytes(3_000_000)
    write(producing, rows(key=["k"], value=[value]), codec=codec, dead_letter_topic="letters")
    [[batch]] = [each.values() for each in producing.sent]
    assert len(batch) <= 1_048_588


def test_a_row_without_a_key_is_a_dead_letter_where_the_topic_is_compacted() -> None:
    producing = FakeProducing(out=1, other=1, letters=1)
    producing.takes = {"out": TopicLimits(needs_keys=True)}
    batch = rows(topic=["out", "out", "other"], key=[b"k", None, None], value=[b"a", b"b", b"c"])
    assert write(producing, batch, topic=None, **LETTERS).dead_letters == 1
    [(key, value, told)] = letters(producing)
    assert (key, value, told["onceflow.error.reason"]) == (None, b"b", "no_key")
    assert told["onceflow.error.message"] == "the row has no key, and topic 'out' is compacted"
    assert producing.values()["other", 0] == ["c"]


def test_dead_letters_have_the_header_and_the_timestamp_of_their_rows() -> None:
    producing = FakeProducing(out=1, letters=1)
    producing.takes = {"out": TopicLimits(2_000)}
    moments = pa.array([1_000_000, 2_000_000], pa.timestamp("us"))
    batch = pa.RecordBatch.from_arrays([pa.array([b"a", noise(3_000)]), moments], ["value", "timestamp"])
    write(producing, batch, header=("batch", "7"), **LETTERS)
    [letter] = producing.records()["letters", 0]
    assert (letter.timestamp, dict(letter.headers)["batch"]) == (2_000, b"7")


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"timestamp": pa.array([-1], pa.timestamp("us"))}, "before 1970"),
        ({"headers": [[{"key": None, "value": b"v"}]]}, "header has no key"),
    ],
)
def test_what_no_topic_takes_is_refused_with_a_dead_letter_topic_too(columns: dict[str, Any], why: str) -> None:
    producing = FakeProducing(out=1, letters=1)
    with pytest.raises(RowRefused, match=why):
        write(producing, rows(value=[b"v"], **columns), dead_letter_topic="letters")
    assert producing.sent == []


def test_row_without_a_key_is_refused_by_name_if_the_dead_letter_topic_is_compacted_too() -> None:
    producing = FakeProducing(out=1, letters=1)
    producing.takes = {"out": TopicLimits(needs_keys=True), "letters": TopicLimits(needs_keys=True)}
    with pytest.raises(RowRefused, match=r"dead-letter topic 'letters' is compacted.*cleanup\.policy"):
        write(producing, rows(key=["k", None], value=[b"a", b"b"]), dead_letter_topic="letters")
    assert producing.sent == []


def test_a_limit_that_a_refusal_told_counts_if_it_is_the_smaller_one() -> None:
    for known, told, expected in ((None, 2_000, 1), (5_000, 2_000, 1), (2_000, 5_000, 1), (5_000, 6_000, 0)):
        producing = FakeProducing(out=1, letters=1)
        producing.takes = {"out": TopicLimits(known)}
        report = write(producing, rows(value=[noise(3_000)]), limits={"out": told}, **LETTERS)
        assert report.dead_letters == expected


@pytest.mark.parametrize(
    ("code", "takes", "values", "words"),
    [
        (
            ErrorCode.MESSAGE_TOO_LARGE,
            TopicLimits(100),
            ["v" * 5_000],
            r"a record for partition 0 of 'out' has 5,0\d\d bytes, more than the 100 that the topic takes "
            r"\(max.message.bytes\): the record with key 'k', a value of 5,000 bytes and the timestamp \d+. Either "
            r"raise max.message.bytes of the topic, leave such rows out, or give the sink a dead_letter_topic",
        ),
        (ErrorCode.MESSAGE_TOO_LARGE, TopicLimits(), ["v"], r"has \d+ bytes, more than the topic takes \(max"),
        (
            ErrorCode.MESSAGE_TOO_LARGE,
            TopicLimits(100),
            ["v"] * 20,
            r"a batch of 20 records .* more than the 100 .*: lower batch_bytes, below 100",
        ),
        (ErrorCode.INVALID_TIMESTAMP, TopicLimits(), ["v"], "has a timestamp that the topic does not take .*key 'k'"),
        (ErrorCode.INVALID_RECORD, TopicLimits(), ["v"], "a record for partition 0 of 'out' was refused.*key 'k'"),
    ],
)
def test_a_refusal_names_the_record_and_what_helps(
    code: ErrorCode, takes: TopicLimits, values: list[str], words: str
) -> None:
    producing = FakeProducing(out=1)
    producing.takes = {"out": takes}
    producing.problem = WriteRefused("out", 0, code)
    with pytest.raises(RowRefused, match=words) as refused:
        write(producing, rows(key=["k"] * len(values), value=values))
    assert isinstance(refused.value, TooLarge) == (code == ErrorCode.MESSAGE_TOO_LARGE and len(values) == 1)


def test_a_refusal_names_the_record_that_the_broker_means() -> None:
    producing = FakeProducing(out=1)
    producing.takes = {"out": TopicLimits(needs_keys=True)}
    producing.problem = WriteRefused("out", 0, ErrorCode.INVALID_RECORD, "no key", [2])
    with pytest.raises(RowRefused, match=r"has no key, and the topic is compacted .*a value of 3 bytes"):
        write(producing, rows(key=["a", "b", None, None], value=["1", "22", "333", "4444"]))


def test_the_driver_learns_the_limit_from_the_kind_of_a_failure() -> None:
    assert learned(TooLarge("sentence", "orders.eu-1_x", 5_000).kind) == ("orders.eu-1_x", 4_999)
    assert [learned(kind) for kind in ("refused", "task", "fenced", "delivery", "")] == [None] * 5


# --- what the driver is told


@pytest.mark.parametrize(
    ("problem", "kind", "words"),
    [
        (WriteRefused("t", 0, ErrorCode.INVALID_PRODUCER_EPOCH), "fenced", "partition 0 of 't'"),
        (WriteRefused("t", 0, ErrorCode.PRODUCER_FENCED), "fenced", "partition 0 of 't'"),
        (TooLarge("a record of 9 bytes", "t", 9), "too_large t 9", "a record of 9 bytes"),
        (WriteRefused("t", 0, ErrorCode.INVALID_PRODUCER_ID_MAPPING), "fenced", "partition 0 of 't'"),
        (WriteRefused("t", 0, ErrorCode.UNKNOWN_PRODUCER_ID), "fenced", "partition 0 of 't'"),
        (WriteRefused("t", 0, ErrorCode.TRANSACTION_ABORTABLE), "transaction", "asks to abort the transaction"),
        (WriteRefused("t", 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), "transaction", "has lost what was written"),
        (WriteRefused("t", 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED), "refused", "WRITE on topic 't'"),
        (RowRefused("no topic"), "refused", "no topic"),
        (TopicMissingError("there is no topic"), "refused", "there is no topic"),
        (DeliveryTimedOut("too late"), "delivery", "too late"),
        (Refusal("the batch is over"), "delivery", "the batch is over"),
        (ZeroDivisionError("division by zero"), "task", "ZeroDivisionError: division by zero"),
    ],
    ids=str,
)
def test_a_failure_is_told_by_kind_and_with_a_sentence(problem: Exception, kind: str, words: str) -> None:
    told, sentence = module._explained(problem)
    assert told == kind
    assert words in sentence


class Context:
    """What a task of Spark's knows about itself."""

    def partitionId(self) -> int:  # noqa: N802 - the names are Spark's
        return 3

    def taskAttemptId(self) -> int:  # noqa: N802
        return 44

    def stageId(self) -> int:  # noqa: N802
        return 7


def test_task_of_a_stage_that_is_run_again_does_not_read_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver knows by the stage which a task is part of."""
    asked: list[int] = []

    def newest(stage: int) -> int:
        asked.append(stage)
        return 1

    def never() -> Iterator[pa.RecordBatch]:
        raise AssertionError("it reads")
        yield

    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: Context()))
    run = Run(prepare=lambda _: None, patience_s=5, stage_attempt=newest)
    sequencer = Sequencer("127.0.0.1")
    try:
        with pytest.raises(Refusal, match="Spark runs stage 7 again"):
            list(module.task_writer(plan(door=sequencer.open(run)))(never()))
    finally:
        sequencer.close()
    assert asked == [7]
    assert run.failure is not None
