"""The dump, run as a user runs it: `onceflow log dump FILE`."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import pytest

from onceflow.cli import main
from onceflow.wire.compression import Codec
from onceflow.wire.records import EndTxnMarker, Record, build_batch

T0 = 1_700_000_000_000  # 2023-11-14T22:13:20Z
SEGMENT = "00000000000000000100"


class Dumped(NamedTuple):
    exit_code: int
    lines: list[str]
    complaint: str

    @property
    def items(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


Dump = Callable[..., Dumped]


@pytest.fixture
def dump(capsys: pytest.CaptureFixture[str]) -> Dump:
    def run(*arguments: str | Path) -> Dumped:
        exit_code = main(["log", "dump", *map(str, arguments)])
        output = capsys.readouterr()
        return Dumped(exit_code, output.out.splitlines(), output.err)

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def write(suffix: str, data: bytes) -> Path:
        path = tmp_path / (SEGMENT + suffix)
        path.write_bytes(data)
        return path

    return write


Write = Callable[[str, bytes], Path]


def plain(offset: int = 100) -> bytes:
    records = [
        Record(offset, T0, b"order-1", b"one euro"),
        Record(offset + 1, T0 + 250, None, None, (("trace", b"\x00\xff"), ("empty", None))),
    ]
    return build_batch(records, base_offset=offset, leader_epoch=0)


def transaction(offset: int = 102) -> bytes:
    data = build_batch(
        [Record(offset + i, T0 + i, b"k", b"v" * 30) for i in range(3)],
        base_offset=offset,
        codec=Codec.ZSTD,
        producer_id=4001,
        producer_epoch=7,
        base_sequence=20,
        transactional=True,
        leader_epoch=0,
    )
    marker = EndTxnMarker(commit=True, coordinator_epoch=5).to_record(offset=offset + 3, timestamp=T0 + 9)
    return data + build_batch(
        [marker],
        base_offset=offset + 3,
        producer_id=4001,
        producer_epoch=7,
        transactional=True,
        control=True,
        leader_epoch=0,
    )


# --- .log


def test_a_segment_is_one_line_per_batch(dump: Dump, write: Write) -> None:
    first, second = plain(), transaction()
    marker_at = len(first) + len(second) - 78
    dumped = dump(write(".log", first + second))
    assert dumped.exit_code == 0
    assert dumped.lines == [
        "100..101  2 records  created 2023-11-14T22:13:20.000Z, latest 2023-11-14T22:13:20.250Z  "
        f"uncompressed  no producer id  leader epoch 0  {len(first)} bytes at 0  crc ok",
        "102..104  3 records  created 2023-11-14T22:13:20.000Z, latest 2023-11-14T22:13:20.002Z  zstd  "
        f"producer 4001 epoch 7 sequence 20..22  transactional  leader epoch 0  "
        f"{len(second) - 78} bytes at {len(first)}  crc ok",
        "105  1 record  created 2023-11-14T22:13:20.009Z  uncompressed  producer 4001 epoch 7  "
        f"transactional  control  leader epoch 0  78 bytes at {marker_at}  crc ok",
    ]


def test_records_are_shown_on_request(dump: Dump, write: Write) -> None:
    lines = dump("--records", write(".log", plain() + transaction())).lines
    assert lines[1:3] == [
        '    100  2023-11-14T22:13:20.000Z  key "order-1"  value "one euro"',
        '    101  2023-11-14T22:13:20.250Z  key null  value null  header "trace"="\\x00\\xff"  header "empty"=null',
    ]
    assert lines[-1] == "    105  2023-11-14T22:13:20.009Z  commit  coordinator epoch 5"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"", '""'),
        ("caf\u00e9 \u4f60\u597d".encode(), '"caf\u00e9 \u4f60\u597d"'),
        (b'say "hi" \\ bye', r'"say \"hi\" \\ bye"'),
        (b"\x1b[31mred\n", r'"\x1b[31mred\x0a"'),
        (b"\xff\x00ok", r'"\xff\x00ok"'),
        ("\u202eevil\u0085".encode(), r'"\u202eevil\u0085"'),
        (b"x" * 80, '"' + "x" * 80 + '"'),
        (b"x" * 1000, '"' + "x" * 80 + '"... (1000 bytes)'),
        (b"\xff" * 1000, '"' + r"\xff" * 80 + '"... (1000 bytes)'),
    ],
)
def test_values_are_short_and_safe_to_print(dump: Dump, write: Write, value: bytes, shown: str) -> None:
    batch = build_batch([Record(100, T0, None, value)], base_offset=100)
    assert dump("--records", write(".log", batch)).lines[1].endswith(f"value {shown}")


def test_json_has_a_line_for_each_batch_and_record(dump: Dump, write: Write) -> None:
    path = write(".log", plain() + transaction())
    assert [item["type"] for item in dump("--json", path).items] == ["batch"] * 3
    items = dump("--json", "--records", path).items
    assert [item["type"] for item in items] == ["batch", "record", "record", "batch"] + ["record"] * 3 + [
        "batch",
        "record",
    ]
    assert items[2] == {
        "type": "record",
        "offset": 101,
        "timestamp": T0 + 250,
        "key": None,
        "value": None,
        "headers": [{"key": "trace", "value_hex": "00ff"}, {"key": "empty", "value": None}],
    }
    assert items[3]["codec"] == "zstd"
    assert (items[3]["base_sequence"], items[3]["last_sequence"]) == (20, 22)
    assert items[3]["transactional"]
    assert items[3]["crc_ok"]
    assert (items[-1]["control"], items[-1]["coordinator_epoch"]) == ("commit", 5)


def test_json_values_are_not_shortened(dump: Dump, write: Write) -> None:
    batch = build_batch([Record(100, T0, b"k", b"x" * 5000)], base_offset=100)
    assert dump("--json", "--records", write(".log", batch)).items[1]["value"] == "x" * 5000


def test_times_that_are_not_creation_times_say_so(dump: Dump, write: Write) -> None:
    appended = build_batch([Record(100, 5, b"k", b"v")], base_offset=100, append_time_ms=T0)
    compacted = build_batch([Record(101, T0, b"k", None)], base_offset=101, delete_horizon_ms=T0 + 86_400_000)
    emptied = build_batch([], base_offset=102, last_offset_delta=7, max_timestamp=T0)
    odd = build_batch([Record(110, 2**62, b"k", b"v")], base_offset=110)
    lines = dump(write(".log", appended + compacted + emptied + odd)).lines
    assert "appended 2023-11-14T22:13:20.000Z  uncompressed" in lines[0]
    assert "created 2023-11-14T22:13:20.000Z  tombstones until 2023-11-15T22:13:20.000Z" in lines[1]
    assert lines[2].startswith("102..109  0 records  created 2023-11-14T22:13:20.000Z  uncompressed")
    assert "created 4611686018427387904 ms" in lines[3]


def test_max_stops_after_so_many_batches(dump: Dump, write: Write) -> None:
    path = write(".log", b"".join(plain(100 + 2 * i) for i in range(5)))
    dumped = dump("--max", "2", "--records", path)
    assert len(dumped.lines) == 2 * 3 + 1
    assert dumped.lines[-1] == "Stopped after 2, as --max asks; the file goes on."
    assert dumped.exit_code == 0
    assert len(dump("--max", "2", "--json", path).items) == 2
    assert len(dump("--max", "5", path).lines) == 5


def test_an_empty_segment_has_no_lines(dump: Dump, write: Write) -> None:
    assert dump(write(".log", b"")) == Dumped(0, [], "")


# --- damaged .log files


def test_a_changed_byte_is_a_crc_mismatch_and_the_rest_is_still_shown(dump: Dump, write: Write) -> None:
    data = bytearray(plain() + transaction())
    data[70] ^= 1
    dumped = dump(write(".log", bytes(data)))
    assert dumped.exit_code == 1
    assert [line.rsplit("  ", 1)[1] for line in dumped.lines] == ["CRC MISMATCH", "crc ok", "crc ok"]


@pytest.mark.parametrize("cut", [1, 10, 77])
def test_a_torn_tail_is_reported_with_its_position(dump: Dump, write: Write, cut: int) -> None:
    data = plain() + transaction()
    marker_at = len(data) - 78
    dumped = dump(write(".log", data[:-cut]))
    assert dumped.exit_code == 1
    assert len(dumped.lines) == 3
    left = 78 - cut
    expected = "the batch that begins there has 78" if left >= 61 else "a batch header has 61"
    plural = "byte" if left == 1 else "bytes"
    assert dumped.lines[-1] == f"Torn tail at byte {marker_at}: {left} {plural} left, and {expected}."


def test_a_torn_tail_is_an_object_in_json(dump: Dump, write: Write) -> None:
    dumped = dump("--json", write(".log", plain()[:-1]))
    assert dumped.exit_code == 1
    (problem,) = dumped.items
    assert (problem["type"], problem["position"]) == ("problem", 0)
    assert problem["message"].startswith("Torn tail at byte 0")


@pytest.mark.parametrize(
    ("tail", "sentence"),
    [
        (
            bytes(1000),
            "Zeros at byte {at} instead of a batch: the last 1000 bytes were reserved, or lost in a crash.",
        ),
        (b"x" * 100, "No batch at byte {at} (magic 120, length 2021161080): the rest was not read."),
        (
            struct.pack(">qiib", 102, 80, 0, 1) + bytes(80),
            "Messages of magic 1 at byte {at}: the format from before Kafka 0.11 is not read.",
        ),
    ],
)
def test_what_is_no_batch_is_named(dump: Dump, write: Write, tail: bytes, sentence: str) -> None:
    first = plain()
    dumped = dump(write(".log", first + tail))
    assert dumped.exit_code == 1
    assert dumped.lines[1:] == [sentence.format(at=len(first))]


def test_unreadable_records_are_named_and_the_next_batch_is_shown(dump: Dump, write: Write) -> None:
    data = bytearray(plain() + plain(102))
    data[60] = 3  # three records are announced, two are there
    path = write(".log", bytes(data))
    assert dump(path).lines[0].endswith("CRC MISMATCH")
    dumped = dump("--records", path)
    assert dumped.exit_code == 1
    assert dumped.lines[3] == (
        "The records of the batch at byte 0 are not readable: The records of the batch end in the middle of one."
    )
    assert dumped.lines[4].startswith("102..103")


def test_control_records_that_are_no_markers_are_shown(dump: Dump, write: Write) -> None:
    records = [
        Record(100, T0, b"\0\0\0\2", b"leader"),
        Record(101, T0, b"\0\0\0\x63", b"?"),
        Record(102, T0, b"\0", b"?"),
    ]
    lines = dump("--records", write(".log", build_batch(records, base_offset=100, control=True))).lines
    assert [line.split("  ")[4] for line in lines[1:]] == [
        "control: leader change",
        "control: type 99",
        "control: unreadable",
    ]


# --- the other kinds


def test_an_index_counts_from_the_offset_in_its_name(dump: Dump, write: Write, tmp_path: Path) -> None:
    entries = struct.pack(">iiii", 5, 4096, 9, 8200)
    assert dump(write(".index", entries)) == Dumped(0, ["offset 105  at 4096", "offset 109  at 8200"], "")
    renamed = tmp_path / "copy.index"
    renamed.write_bytes(entries)
    assert dump(renamed).lines == ["base offset + 5  at 4096", "base offset + 9  at 8200"]


def test_a_time_index_shows_times(dump: Dump, write: Write) -> None:
    path = write(".timeindex", struct.pack(">qiqi", T0, 5, T0 + 1, 9))
    assert dump(path).lines == [
        "2023-11-14T22:13:20.000Z  offset 105",
        "2023-11-14T22:13:20.001Z  offset 109",
    ]
    assert dump("--json", "--max", "1", path).items == [
        {"type": "time_index_entry", "position": 0, "timestamp": T0, "offset": 105, "relative_offset": 5}
    ]


def test_space_that_kafka_reserved_in_an_index_is_not_entries(dump: Dump, write: Write) -> None:
    used = struct.pack(">iiii", 5, 4096, 256, 65536)  # the last entry itself ends in zeros
    dumped = dump(write(".index", used + bytes(10 * 1024 * 1024 - len(used))))
    assert dumped.exit_code == 0
    assert dumped.lines[1:] == [
        "offset 356  at 65536",
        "From byte 16 on, 10485744 bytes are reserved and not used yet.",
    ]
    unused = dump(write(".timeindex", bytes(120)))
    assert unused.lines == ["From byte 0 on, 120 bytes are reserved and not used yet."]


def test_a_first_entry_of_zeros_is_an_entry(dump: Dump, write: Write) -> None:
    assert dump(write(".index", bytes(8))).lines == ["offset 100  at 0"]
    assert dump(write(".index", bytes(8) + struct.pack(">ii", 3, 400))).lines[0] == "offset 100  at 0"


@pytest.mark.parametrize(("suffix", "size"), [(".index", 8), (".timeindex", 12)])
def test_a_torn_index_is_reported(dump: Dump, write: Write, suffix: str, size: int) -> None:
    dumped = dump(write(suffix, b"\x01" * size + b"\x02" * 3))
    assert dumped.exit_code == 1
    assert dumped.lines[1:] == [f"Torn tail at byte {size}: 3 bytes left, and an entry has {size}."]


def test_an_index_that_does_not_rise_is_reported(dump: Dump, write: Write) -> None:
    dumped = dump(write(".index", struct.pack(">iiii", 5, 4096, 5, 8200)))
    assert dumped.exit_code == 1
    assert dumped.lines[-1] == "The entry at byte 8 does not come after the one before it."
    dumped = dump(write(".timeindex", struct.pack(">qiqi", T0, 5, T0 - 1, 6)))
    assert dumped.exit_code == 1
    assert dumped.lines[-1] == "The entry at byte 12 goes back behind the one before it."


def snapshot(*entries: tuple[int, ...], count: int | None = None, version: int = 1) -> bytes:
    body = struct.pack(">i", len(entries) if count is None else count)
    body += b"".join(struct.pack(">qhiqiqiq", *entry) for entry in entries)
    return struct.pack(">hI", version, google_crc32c.value(body)) + body


def test_a_snapshot_shows_the_producers(dump: Dump, write: Write) -> None:
    data = snapshot(
        (4001, 7, 22, 104, 2, T0, 5, -1),
        (4001, 7, 1, 110, 3, T0 + 1, 5, 107),  # its sequences wrapped
        (4002, 0, -1, -1, 0, T0, -1, -1),
    )
    assert dump(write(".snapshot", data)) == Dumped(
        0,
        [
            "producers up to offset 100: 3 entries  crc ok",
            "producer 4001 epoch 7  sequence 20..22  offset 102..104  2023-11-14T22:13:20.000Z  coordinator epoch 5",
            "producer 4001 epoch 7  sequence 2147483646..1  offset 107..110  2023-11-14T22:13:20.001Z  "
            "coordinator epoch 5  transaction open since offset 107",
            "producer 4002 epoch 0  no batch  2023-11-14T22:13:20.000Z  coordinator epoch -1",
        ],
        "",
    )


def test_a_snapshot_in_json(dump: Dump, write: Write) -> None:
    items = dump("--json", write(".snapshot", snapshot((4001, 7, 22, 104, 2, T0, 5, -1)))).items
    assert items[0] | {"crc": 0} == {
        "type": "snapshot",
        "version": 1,
        "offset": 100,
        "count": 1,
        "crc": 0,
        "crc_ok": True,
    }
    assert items[1] == {
        "type": "producer",
        "position": 10,
        "producer_id": 4001,
        "producer_epoch": 7,
        "last_sequence": 22,
        "last_offset": 104,
        "offset_delta": 2,
        "timestamp": T0,
        "coordinator_epoch": 5,
        "current_txn_first_offset": -1,
    }


def test_a_damaged_snapshot_is_reported(dump: Dump, write: Write) -> None:
    entry = (4001, 7, 22, 104, 2, T0, 5, -1)
    changed = bytearray(snapshot(entry))
    changed[20] ^= 1
    assert dump(write(".snapshot", bytes(changed))).exit_code == 1

    torn = dump(write(".snapshot", snapshot(entry, entry)[:-6]))
    assert torn.exit_code == 1
    assert torn.lines[0].endswith("CRC MISMATCH")
    assert torn.lines[2:] == [
        "Torn tail at byte 56: 40 bytes left, and an entry has 46.",
        "The snapshot announces 2 entries and has 1.",
    ]

    assert dump(write(".snapshot", b"\x00\x01")).lines == [
        "Torn tail at byte 0: 2 bytes left, and the header of a snapshot has 10."
    ]


# --- .txnindex


def aborted(*entries: tuple[int, int, int, int], version: int = 0) -> bytes:
    return b"".join(struct.pack(">hqqqq", version, *entry) for entry in entries)


def test_a_list_of_aborted_transactions_shows_them(dump: Dump, write: Write) -> None:
    assert dump(write(".txnindex", aborted((4001, 102, 104, 103), (7, 103, 110, 111)))) == Dumped(
        0,
        [
            "producer 4001  aborted from offset 102, marker at 104  stable up to 103 then",
            "producer 7  aborted from offset 103, marker at 110  stable up to 111 then",
        ],
        "",
    )
    (item,) = dump("--json", write(".txnindex", aborted((4001, 102, 104, 103)))).items
    assert item == {
        "type": "aborted",
        "position": 0,
        "version": 0,
        "producer_id": 4001,
        "first_offset": 102,
        "last_offset": 104,
        "last_stable_offset": 103,
    }
    assert dump(write(".txnindex", b"")) == Dumped(0, [], "")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (aborted((7, 1, 3, 4))[:-4], "Torn tail at byte 0: 30 bytes left, and an entry has 34."),
        (aborted((7, 1, 3, 4), (8, 2, 3, 4)), "The entry at byte 34 does not come after the one before it."),
        (aborted((7, 3, 3, 4)), "The transaction at byte 0 ends before it begins."),
        (aborted((7, 1, 3, 4), version=1), "The entry at byte 0 has version 1; 0 is known."),
    ],
    ids=["torn", "not rising", "no length", "version"],
)
def test_a_damaged_list_of_aborted_transactions_is_reported(
    dump: Dump, write: Write, data: bytes, complaint: str
) -> None:
    found = dump(write(".txnindex", data))
    assert (found.exit_code, found.lines[-1]) == (1, complaint)


def test_a_batch_that_a_coordinator_wrote_has_an_offset_and_no_sequence(dump: Dump, write: Write) -> None:
    lines = dump(write(".snapshot", snapshot((9, 1, -1, 104, 2, T0, 5, -1), (10, 2, -1, -1, 0, T0, 5, -1)))).lines
    assert lines[1].startswith("producer 9 epoch 1  offset 102..104  ")
    assert lines[2].startswith("producer 10 epoch 2  no batch  ")


# --- what is not read


def test_what_cannot_be_read_is_one_sentence_on_stderr(dump: Dump, write: Write, tmp_path: Path) -> None:
    missing = tmp_path / "00000000000000000000.log"
    unknown = write(".checkpoint", b"")
    later = write(".snapshot", snapshot(version=2))
    for path, sentence in (
        (missing, "could not be read: No such file or directory."),
        (tmp_path / f"{'x' * 300}.log", "could not be read: File name too long."),
        (unknown, "is of a kind this command does not know; it reads .log, .index, .timeindex, .snapshot, .txnindex."),
        (tmp_path, "is a directory: name one of the files in it."),
        (later, "is a snapshot of version 2; this command reads version 1."),
    ):
        assert dump(path) == Dumped(2, [], f"{path} {sentence}\n")


def test_a_file_that_kafka_is_about_to_delete_is_still_of_its_kind(dump: Dump, write: Write) -> None:
    assert len(dump(write(".log.deleted", plain())).lines) == 1


@pytest.mark.parametrize("wrong", ["0", "-1", "many"])
def test_max_is_a_number_from_1_on(dump: Dump, write: Write, wrong: str) -> None:
    dumped = dump("--max", wrong, write(".log", plain()))
    assert dumped.exit_code == 2
    assert f"{wrong} is not a number from 1 on" in dumped.complaint


def test_the_help_explains_and_has_an_example(dump: Dump) -> None:
    dumped = dump("--help")
    assert dumped.exit_code == 0
    text = "\n".join(dumped.lines)
    for phrase in ("onceflow log dump --records --max 3", "CRC MISMATCH means", "exit code:", "*.timeindex"):
        assert phrase in text


# --- as a process


def onceflow(*arguments: str | Path, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; from onceflow.cli import main; sys.exit(main())", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )


def test_head_may_close_the_pipe(write: Write) -> None:
    process = onceflow("log", "dump", write(".log", b"".join(plain(100 + 2 * i) for i in range(3000))))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
    process.stderr.close()


def test_a_terminal_without_the_character_gets_an_escape(write: Write) -> None:
    path = write(".log", build_batch([Record(100, T0, None, "\u4f60".encode())], base_offset=100))
    with onceflow("log", "dump", "--records", path, PYTHONIOENCODING="latin-1") as process:
        output, _ = process.communicate()
    assert process.returncode == 0
    assert output.rstrip().endswith(rb'value "\u4f60"')


def test_a_large_segment_is_not_loaded(write: Write) -> None:
    """Of batches, and of one batch whose header claims most of the file."""
    path = write(".log", plain())
    size = 600 * 1024 * 1024
    with open(path, "ab") as file:
        claimed = bytearray(plain(102))
        struct.pack_into(">i", claimed, 8, size - len(claimed) - 12)
        file.write(claimed)
        file.truncate(size)  # zeros, that take no space on the disk
    # An address space smaller than the file, so that loading it whole cannot work.
    limited = ["sh", "-c", 'ulimit -v 512000; exec "$@"', "sh", sys.executable, "-m", "onceflow"]
    ran = subprocess.run([*limited, "log", "dump", "--records", path], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "CRC MISMATCH" in ran.stdout
    assert "is too large to show its records" in ran.stdout
