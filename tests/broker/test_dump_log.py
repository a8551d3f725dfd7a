"""Apache Kafka's own tool reads our files, logs, indexes and producer snapshots, and finds nothing to complain of."""

from __future__ import annotations

import random
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from onceflow.wire.records import Record, build_batch
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_jars import classpath, java
from tests.support.raw import now_ms
from tests.support.raw_client import RawClient

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PRODUCER_BATCHES = 40
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
        path
        for path in broker.data.glob("dumped-*/*")
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot")
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
