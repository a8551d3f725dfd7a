"""Apache Kafka's own tool reads our files, logs, indexes and producer snapshots, and finds nothing to complain of.

Also what transactions leave, before and after compaction: markers, aborted transactions, and one that is open.
"""

from __future__ import annotations

import random
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from onceflow.clock import SystemClock
from onceflow.config import TopicConfig
from onceflow.log.compaction import Cleaner
from onceflow.log.files import RealFileSystem
from onceflow.log.partition import PartitionLog
from onceflow.wire.batch import read_header
from onceflow.wire.records import EndTxnMarker, Record, build_batch
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_jars import classpath, java
from tests.support.raw import now_ms
from tests.support.raw_client import RawClient

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PRODUCER_BATCHES = 40
SUFFIXES = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
SETTINGS = {"log.segment.bytes": 3000, "log.index.interval.bytes": 100}


@dataclass
class Dump:
    """What `DumpLogSegments` printed, by the kind of file."""

    text: str
    complaints: str
    """What it has to complain of goes to stderr, at the end, with the name of the file."""
    sections: dict[Path, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lines: list[str] = []
        for line in self.text.splitlines():
            if line.startswith("Dumping "):
                lines = self.sections.setdefault(Path(line.removeprefix("Dumping ")), [])
            else:
                lines.append(line)

    def lines(self, folder: str, suffix: str) -> list[str]:
        """Of all files of a kind in a partition's folder, in the order of their offsets."""
        files = sorted(path for path in self.sections if path.parent.name == folder and path.suffix == suffix)
        return [line for path in files for line in self.sections[path]]


def dump_log_segments(files: list[Path]) -> Dump:
    command = [java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath()]
    command += ["org.apache.kafka.tools.DumpLogSegments", "--print-data-log", "--deep-iteration"]
    command += ["--files", ",".join(map(str, files))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return Dump(done.stdout, done.stderr)


@dataclass
class Written:
    """What was produced to one partition, and by whom."""

    producer: tuple[int, int]
    records: list[Record] = field(default_factory=list)


def write(client: RawClient, written: list[Written], dice: random.Random) -> None:
    start = now_ms() - 1_000_000
    for partition, own in enumerate(written):
        for _ in range(PRODUCER_BATCHES):
            first = len(own.records)
            fresh = [
                Record(
                    offset=at,
                    timestamp=start + dice.randrange(900_000),  # in any order
                    key=dice.choice((None, b"key%d" % at)),
                    value=b"value %d" % (first + at) + b"v" * dice.randrange(80),
                    headers=(("h", b"1"),) if dice.random() < 0.2 else (),
                )
                for at in range(dice.randrange(1, 5))
            ]
            records = build_batch(
                fresh,
                base_offset=0,
                codec=partition,
                producer_id=own.producer[0],
                producer_epoch=own.producer[1],
                base_sequence=first,
            )
            assert client.produce("dumped", records, partition=partition).base_offset == first
            own.records += [record._replace(offset=first + record.offset) for record in fresh]


@pytest.fixture(scope="module")
def written_and_dump(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Written], Dump]:
    """A life with a crash in the middle, so that half of the indexes was made again by recovery."""
    dice = random.Random(20)
    broker = BrokerProcess(tmp_path_factory.mktemp("dump") / "data", settings=SETTINGS)
    with broker:
        with broker.client() as client:
            assert client.make_topic("dumped", partitions=len(CODECS)) == 0
            written = [Written(client.new_producer()) for _ in CODECS]
            write(client, written, dice)
        broker.kill()
        broker.start()
        with broker.client() as client:
            write(client, written, dice)
        assert broker.stop() == 0
    files = sorted(
        path for path in broker.data.glob("dumped-*/*") if path.suffix in (".log", ".index", ".timeindex", ".snapshot")
    )
    return written, dump_log_segments([*files, *damaged_copy(broker.data)])


def damaged_copy(data: Path) -> list[Path]:
    """One segment with a wrong entry in each index: does the tool look at all?"""
    control = data / "control-0"
    control.mkdir()
    files = []
    for suffix in (".log", ".index", ".timeindex"):
        files.append(control / f"{0:020d}{suffix}")
        content = bytearray((data / "dumped-0" / files[-1].name).read_bytes())
        if suffix != ".log":
            content[3 if suffix == ".index" else 7] ^= 1  # the offset, or the timestamp, of the first entry
        files[-1].write_bytes(content)
    return files


@pytest.fixture(params=range(len(CODECS)), ids=CODECS)
def partition(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def complaints_of(dump: Dump) -> list[tuple[str, str]]:
    """(folder and suffix of the file, what is wrong with it)

    Without one of the tool's own: 4.3.1 says "-1 is followed by N" of every segment that does not begin with offset 0,
    of Kafka's own as of ours.
    """
    found = []
    path = Path()
    for line in dump.complaints.splitlines():
        if line.startswith("  "):
            if line.strip() != f"-1 is followed by {int(path.stem)}":
                found.append((f"{path.parent.name} {path.suffix}", line.strip()))
        elif line:
            path = Path(line.partition(" in ")[2].removeprefix(":"))
    return found


@pytest.mark.tried("kafka-dump-log", "logs, indexes and producer snapshots are sound")
def test_kafka_finds_nothing_to_complain_of(written_and_dump: tuple[list[Written], Dump]) -> None:
    _, dump = written_and_dump
    # The two entries that we damaged to see whether the tool looks at all, and nothing else.
    assert [file for file, _ in complaints_of(dump)] == ["control-0 .index", "control-0 .timeindex"], dump.complaints


def test_kafka_sees_the_records_that_were_produced(
    written_and_dump: tuple[list[Written], Dump], partition: int
) -> None:
    written, dump = written_and_dump
    lines = [line for line in dump.lines(f"dumped-{partition}", ".log") if line.startswith("| offset: ")]
    seen = []
    for line in lines:
        found = re.fullmatch(
            r"\| offset: (\d+) CreateTime: (\d+) keySize: (-?\d+) valueSize: (\d+) sequence: (\d+) "
            r"headerKeys: \[(.*?)\](?: key: (\S+))? payload: (.*)",
            line,
        )
        assert found is not None, line
        offset, timestamp, _, _, sequence, header_keys, key, payload = found.groups()
        assert offset == sequence
        seen.append((int(offset), int(timestamp), key, payload, header_keys))
    assert seen == [
        (
            record.offset,
            record.timestamp,
            None if record.key is None else record.key.decode(),
            (record.value or b"").decode(),
            "h" if record.headers else "",
        )
        for record in written[partition].records
    ]


@pytest.mark.tried("kafka-dump-log", "batches of every codec")
def test_kafka_sees_valid_batches_of_the_codec_and_the_producer(
    written_and_dump: tuple[list[Written], Dump], partition: int
) -> None:
    written, dump = written_and_dump
    batches = [line for line in dump.lines(f"dumped-{partition}", ".log") if line.startswith("baseOffset: ")]
    assert len(batches) == 2 * PRODUCER_BATCHES
    for line in batches:
        assert " isvalid: true" in line
        assert f" compresscodec: {CODECS[partition]} " in line
        assert f" producerId: {written[partition].producer[0]} " in line
        assert " partitionLeaderEpoch: 0 " in line


def test_there_was_something_to_check_in_every_kind_of_file(
    written_and_dump: tuple[list[Written], Dump], partition: int
) -> None:
    _, dump = written_and_dump
    folder = f"dumped-{partition}"
    segments = [path for path in dump.sections if path.parent.name == folder and path.suffix == ".log"]
    assert len(segments) > 2
    assert len([line for line in dump.lines(folder, ".index") if line.startswith("offset: ")]) > 10
    assert len([line for line in dump.lines(folder, ".timeindex") if line.startswith("timestamp: ")]) > 5


def test_kafka_reads_the_producers_state(written_and_dump: tuple[list[Written], Dump], partition: int) -> None:
    written, dump = written_and_dump
    own = written[partition]
    newest = max(
        path for path in dump.sections if path.parent.name == f"dumped-{partition}" and path.suffix == ".snapshot"
    )
    entries = [line for line in dump.sections[newest] if line.startswith("producerId: ")]
    assert entries
    assert {line.split()[1] for line in entries} == {str(own.producer[0])}
    last = len(own.records) - 1
    assert re.search(rf"lastSequence: {last}\b", entries[-1]), entries[-1]
    assert re.search(rf"lastOffset: {last}\b", entries[-1]), entries[-1]


# Transactions


class Transactions:
    """A log that is written to without a broker: producers are numbers, each with a key of its own."""

    def __init__(self, folder: Path) -> None:
        self.files = RealFileSystem()
        self.config = TopicConfig(
            segment_bytes=600, index_interval_bytes=100, compact=True, delete=False, min_cleanable_dirty_ratio=0.0
        )
        self.log = PartitionLog(self.files, folder, self.config, SystemClock(), fsync=False)
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}

    def write(self, producer_id: int) -> None:
        records = [Record(0, now_ms(), b"key %d" % producer_id, b"value")]
        batch = bytearray(
            build_batch(
                records,
                base_offset=0,
                producer_id=producer_id,
                producer_epoch=self.epochs.get(producer_id, 0),
                base_sequence=self.sequences.get(producer_id, 0),
                transactional=True,
            )
        )
        self.sequences[producer_id] = self.sequences.get(producer_id, 0) + 1
        self.log.append(memoryview(batch), read_header(batch))

    def end(self, producer_id: int, *, commit: bool, bumped: bool) -> None:
        if bumped:
            self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
            self.sequences[producer_id] = 0
        epoch = self.epochs.get(producer_id, 0)
        self.log.append_marker(producer_id, epoch, EndTxnMarker(commit, 7), bumped=bumped)

    def play(self) -> None:
        for number in range(10):
            for producer_id in (1, 2, 1):
                self.write(producer_id)
            self.end(1, commit=number % 2 == 0, bumped=False)
            self.end(2, commit=number % 3 == 0, bumped=True)
        self.log.roll()
        self.write(3)

    def checkpoint(self) -> None:
        checkpoint = self.log.begin_checkpoint()
        assert checkpoint is not None
        checkpoint.run()
        self.log.complete_checkpoint(checkpoint)

    def entries(self) -> list[str]:
        """As the tool prints them."""
        return [
            f"version: 0 producerId: {e.producer_id} firstOffset: {e.first_offset} "
            f"lastOffset: {e.last_offset} lastStableOffset: {e.last_stable_offset}"
            for segment in self.log.segments
            for e in segment.aborted
        ]


@pytest.mark.tried("kafka-dump-log", "markers and aborted transactions, before and after compaction")
@pytest.mark.parametrize("compacted", [False, True], ids=["as written", "compacted"])
def test_kafka_reads_what_transactions_leave(tmp_path: Path, compacted: bool) -> None:
    own = Transactions(tmp_path / "txns-0")
    own.play()
    own.checkpoint()
    if compacted:
        before = own.log.size
        for step in Cleaner(own.files).clean(own.log, now_ms()):
            step()
        assert own.log.size < before
    wanted = own.entries()
    assert len(wanted) == 11
    own.log.close()
    dump = dump_log_segments(sorted(path for path in (tmp_path / "txns-0").iterdir() if path.suffix in SUFFIXES))
    complaints = [complaint for _, complaint in complaints_of(dump)]
    if compacted:  # gaps, and batches without records, are what compaction leaves, Kafka's own too
        complaints = [c for c in complaints if " is followed by " not in c and not c.endswith("log timestamp: -1")]
    assert complaints == [], dump.complaints
    assert dump.lines("txns-0", ".txnindex") == wanted
    lines = dump.lines("txns-0", ".log")
    assert all(" isvalid: true" in line for line in lines if line.startswith("baseOffset: "))
    markers = re.findall(r"endTxnMarker: (COMMIT|ABORT) coordinatorEpoch: 7", "\n".join(lines))
    assert (markers.count("ABORT"), len(markers)) == (11, 20)
    opened = [line for line in dump.lines("txns-0", ".snapshot") if line.startswith("producerId: 3 ")]
    assert opened
    assert re.search(r"currentTxnFirstOffset: (?:OptionalLong\[)?50\b", opened[-1]), opened[-1]
