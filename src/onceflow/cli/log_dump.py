"""`onceflow log dump`: what is in a segment file, for people and for `jq`.

One reader per kind of file, and each yields plain dictionaries: a line of `--json` is such a dictionary, a
line of text is made from one. Whatever is wrong with a file becomes an item of type `problem` where it was
found, and the exit code is 1. Files are read a piece at a time: a segment may be larger than the memory.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import google_crc32c

from onceflow.cli.output import say
from onceflow.digits import whole_number_of
from onceflow.errors import MalformedMessage
from onceflow.wire import batch as wire_batch
from onceflow.wire.batch import HEADER_SIZE, BatchHeader
from onceflow.wire.compression import Codec
from onceflow.wire.records import EndTxnMarker, Record, control_type, read_records

__all__ = ["add_parser", "run"]

WHOLE: Final = 0
DAMAGED: Final = 1
NOT_READ: Final = 2

CHUNK: Final = 1024 * 1024
RECORDS_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of a batch that is larger than this, packed or unpacked, no records are shown: they would have to be in
memory, and a real batch has a few megabytes."""
TEXT_WIDTH: Final = 80

Item = dict[str, Any]

HELP: Final = "show what is in a segment file: batches, records, index entries, producers"
DESCRIPTION: Final = """\
Show what is in one file of a partition's directory. The file is only read, so this is safe beside a
running broker (whose newest batch may then look torn: it is being written). Files written by Apache Kafka
have the same format.

  *.log         one line per record batch; --records shows what is inside
  *.index       at which byte of the .log an offset is found
  *.timeindex   from which offset on a time is found
  *.snapshot    the producers that the partition remembers, to recognize what they send twice
  *.txnindex    the transactions that were aborted, which a read_committed reader skips

CRC MISMATCH means that the bytes of a batch changed after they were written. A torn tail is what a crash in
the middle of a write leaves; the broker cuts it off when it starts."""
EPILOG: Final = """\
examples:
  onceflow log dump data/orders-0/00000000000000000000.log
  onceflow log dump --records --max 3 data/orders-0/00000000000000000000.log
  onceflow log dump --json FILE | jq 'select(.transactional) | .producer_id'

exit code:
  0 the file is whole; 1 something in it is damaged, the output says what and where; 2 it was not read"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `log dump` to the commands of `onceflow`."""
    log = subparsers.add_parser("log", help="look into the files of a partition")
    verbs = log.add_subparsers(title="commands", metavar="COMMAND", required=True)
    parser = verbs.add_parser(
        "dump",
        help=HELP,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="a file of a partition: .log, .txnindex, ...")
    parser.add_argument("--records", action="store_true", help="show the records of each batch (.log only)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line, with values in full")
    parser.add_argument("--max", type=_positive, metavar="N", help="stop after N batches or entries")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    number = whole_number_of(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return number


def run(args: argparse.Namespace) -> int:
    path: Path = args.file
    if os.path.isdir(path):  # Path.is_dir raises where a name is too long
        return _refuse(f"{path} is a directory: name one of the files in it.")
    read = KINDS.get(_suffix(path))
    if read is None:
        return _refuse(f"{path} is of a kind this command does not know; it reads {', '.join(KINDS)}.")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A record may hold a character that the terminal's encoding has not. That must not end the dump.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with open(path, "rb") as file:
            items = read(_Source(file, path, with_records=args.records))
            exit_code = _dump(items, as_json=args.json, items_max=args.max)
            sys.stdout.flush()
            return exit_code
    except BrokenPipeError:
        raise  # about our output, not about the file: `onceflow.cli.main` knows what to do
    except _NotReadError as error:
        return _refuse(f"{path} {error}.")
    except OSError as error:
        return _refuse(f"{path} could not be read: {error.strerror or error}.")


def _suffix(path: Path) -> str:
    """What kind of file this is; Kafka appends a second suffix while it replaces or deletes one."""
    suffixes = path.suffixes
    while suffixes and suffixes[-1] in (".deleted", ".swap", ".cleaned"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _refuse(sentence: str) -> int:
    say(sentence, err=True)
    return NOT_READ


def _dump(items: Iterator[Item], *, as_json: bool, items_max: int | None) -> int:
    exit_code = WHOLE
    shown = 0
    for item in items:
        if item["type"] in COUNTED:
            if shown == items_max:
                if not as_json:
                    say(f"Stopped after {shown}, as --max asks; the file goes on.")
                break
            shown += 1
        if item["type"] == "problem" or item.get("crc_ok") is False:
            exit_code = DAMAGED
        say(json.dumps(item) if as_json else TEXTS[item["type"]](item))
    return exit_code


class _NotReadError(Exception):
    """A file of a known kind that is not readable. The message continues a sentence begun with its name."""


class _Source:
    """An open file with the size it had when it was opened: what is appended later is not in this dump."""

    def __init__(self, file: BinaryIO, path: Path, *, with_records: bool) -> None:
        self.file = file
        self.with_records = with_records
        self.size = os.fstat(file.fileno()).st_size
        name = path.name.split(".")[0]
        self.base_offset = whole_number_of(name)

    def read(self, length: int) -> bytes:
        """Exactly so many bytes: the caller has compared with `size`."""
        data = self.file.read(length)
        if len(data) != length:
            raise _NotReadError("became shorter while it was read")
        return data

    def chunks(self, length: int) -> Iterator[bytes]:
        while length:
            step = min(length, CHUNK)
            yield self.read(step)
            length -= step


def _problem(position: int, message: str) -> Item:
    return {"type": "problem", "position": position, "message": message}


def _torn(at: int, left: int, expected: str) -> Item:
    return _problem(at, f"Torn tail at byte {at}: {_plural(left, 'byte')} left, and {expected}.")


# --- .log


def _read_log(source: _Source) -> Iterator[Item]:
    at = 0
    while at < source.size:
        left = source.size - at
        if left < HEADER_SIZE:
            yield _torn(at, left, f"a batch header has {HEADER_SIZE}")
            return
        raw_header = source.read(HEADER_SIZE)
        header = wire_batch.read_header(raw_header)
        if header.magic != wire_batch.MAGIC or header.length < wire_batch.MIN_LENGTH:
            yield _problem(at, _no_batch(at, left, raw_header, header))
            return
        if header.size > left:
            yield _torn(at, left, f"the batch that begins there has {header.size}")
            return
        yield from _read_batch(source, at, header, raw_header)
        at += header.size


def _no_batch(at: int, left: int, raw_header: bytes, header: BatchHeader) -> str:
    if not any(raw_header):
        return f"Zeros at byte {at} instead of a batch: the last {left} bytes were reserved, or lost in a crash."
    if header.magic in (0, 1):
        return f"Messages of magic {header.magic} at byte {at}: the format from before Kafka 0.11 is not read."
    return f"No batch at byte {at} (magic {header.magic}, length {header.length}): the rest was not read."


def _read_batch(source: _Source, at: int, header: BatchHeader, raw_header: bytes) -> Iterator[Item]:
    keep = source.with_records and header.size <= RECORDS_BYTES_MAX
    kept = [raw_header]
    crc = google_crc32c.value(raw_header[wire_batch.ATTRIBUTES_AT :])
    for chunk in source.chunks(header.size - HEADER_SIZE):
        crc = google_crc32c.extend(crc, chunk)
        if keep:
            kept.append(chunk)
    yield _batch_item(at, header, crc_ok=crc == header.crc)
    if keep:
        yield from _read_batch_records(at, header, b"".join(kept))
    elif source.with_records:
        yield _problem(at, f"The batch at byte {at} is too large to show its records: {header.size} bytes.")


def _batch_item(at: int, header: BatchHeader, *, crc_ok: bool) -> Item:
    horizon = header.delete_horizon_ms
    return {
        "type": "batch",
        "position": at,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.count,
        "timestamp_type": "append" if header.is_append_time else "create",
        # Where there is a delete horizon, it has taken the place of this timestamp.
        "base_timestamp": header.base_timestamp if horizon is None else None,
        "max_timestamp": header.max_timestamp,
        "delete_horizon_ms": horizon,
        "codec": _codec_name(header.compression),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "leader_epoch": header.leader_epoch,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
        "crc_ok": crc_ok,
    }


def _codec_name(number: int) -> str:
    try:
        return Codec(number).name.lower()
    except ValueError:
        return f"codec {number}"


def _read_batch_records(at: int, header: BatchHeader, batch: bytes) -> Iterator[Item]:
    try:
        for record in read_records(batch, max_bytes=RECORDS_BYTES_MAX):
            yield _record_item(header, record)
    except MalformedMessage as error:
        yield _problem(at, f"The records of the batch at byte {at} are not readable: {error}")


def _record_item(header: BatchHeader, record: Record) -> Item:
    item: Item = {"type": "record", "offset": record.offset, "timestamp": record.timestamp}
    if header.is_control:
        item |= _control_fields(record)
    item |= _bytes_fields("key", record.key) | _bytes_fields("value", record.value)
    item["headers"] = [
        _bytes_fields("key", key.encode("utf-8", "surrogateescape")) | _bytes_fields("value", value)
        for key, value in record.headers
    ]
    return item


CONTROL_TYPES: Final = (
    "abort",
    "commit",
    # Records of Kafka's controllers, found in `__cluster_metadata`.
    "leader change",
    "snapshot header",
    "snapshot footer",
    "kraft version",
    "kraft voters",
)


def _control_fields(record: Record) -> Item:
    try:
        kind = control_type(record)
        if kind in (0, 1):
            marker = EndTxnMarker.read(record)
            return {"control": CONTROL_TYPES[kind], "coordinator_epoch": marker.coordinator_epoch}
    except MalformedMessage:
        return {"control": "unreadable"}
    return {"control": CONTROL_TYPES[kind] if 0 <= kind < len(CONTROL_TYPES) else f"type {kind}"}


def _bytes_fields(name: str, data: bytes | None) -> Item:
    """JSON has no bytes: text stays text under `name`, anything else is hexadecimal under `name_hex`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_hex": data.hex()}


# --- .index and .timeindex

_INDEX_ENTRY: Final = struct.Struct(">ii")
_TIME_INDEX_ENTRY: Final = struct.Struct(">qi")


def _read_index(source: _Source) -> Iterator[Item]:
    last = (-1, -1)
    for at, (relative_offset, log_position) in _index_entries(source, _INDEX_ENTRY):
        offset = _offset_fields(source, relative_offset)
        yield {"type": "index_entry", "position": at, **offset, "log_position": log_position}
        if relative_offset <= last[0] or log_position <= last[1]:
            yield _problem(at, f"The entry at byte {at} does not come after the one before it.")
        last = (relative_offset, log_position)
    yield from _after_entries(source, _INDEX_ENTRY)


def _read_time_index(source: _Source) -> Iterator[Item]:
    last = (-1, -1)
    for at, (timestamp, relative_offset) in _index_entries(source, _TIME_INDEX_ENTRY):
        offset = _offset_fields(source, relative_offset)
        yield {"type": "time_index_entry", "position": at, "timestamp": timestamp, **offset}
        # Both may stay the same: the largest timestamp so far stands with the offset where it was met.
        if timestamp < last[0] or relative_offset < last[1]:
            yield _problem(at, f"The entry at byte {at} goes back behind the one before it.")
        last = (timestamp, relative_offset)
    yield from _after_entries(source, _TIME_INDEX_ENTRY)


def _offset_fields(source: _Source, relative_offset: int) -> Item:
    """An index counts from the offset in its file's name; under another name only the difference is known."""
    if source.base_offset is None:
        return {"relative_offset": relative_offset}
    return {"offset": source.base_offset + relative_offset, "relative_offset": relative_offset}


def _index_entries(source: _Source, layout: struct.Struct) -> Iterator[tuple[int, Any]]:
    return _unpack(source, layout, 0, _used_bytes(source, layout) // layout.size)


def _used_bytes(source: _Source, layout: struct.Struct) -> int:
    """Where the entries end. Kafka reserves the full size of an index while it is in use: zeros follow."""
    if source.size <= layout.size:
        return source.size  # nobody reserves a single entry: this one is of the first record at byte 0
    end = source.size
    while end:
        start = max(0, end - CHUNK)
        source.file.seek(start)
        data = source.read(end - start).rstrip(b"\x00")
        if data:
            # The last entry may itself end in zeros, so up to its end.
            return min(source.size, -(-(start + len(data)) // layout.size) * layout.size)
        end = start
    return 0


def _after_entries(source: _Source, layout: struct.Struct) -> Iterator[Item]:
    used = _used_bytes(source, layout)
    torn = source.size % layout.size
    if torn:
        yield _torn(source.size - torn, torn, f"an entry has {layout.size}")
    elif used < source.size:
        yield {"type": "reserved", "position": used, "size": source.size - used}


def _unpack(source: _Source, layout: struct.Struct, at: int, count: int) -> Iterator[tuple[int, Any]]:
    """So many entries from `at` on, each with its position."""
    source.file.seek(at)
    while count:
        step = min(count, CHUNK // layout.size)
        for fields in layout.iter_unpack(source.read(step * layout.size)):
            yield at, fields
            at += layout.size
        count -= step


# --- .snapshot

_SNAPSHOT_HEADER: Final = struct.Struct(">hIi")
_SNAPSHOT_CRC_END: Final = 6
_SNAPSHOT_VERSION: Final = 1
_PRODUCER_ENTRY: Final = struct.Struct(">qhiqiqiq")


class _ProducerEntry(NamedTuple):
    """One batch of a producer. Kafka keeps the last one of each; we keep up to five, the oldest first."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def _read_snapshot(source: _Source) -> Iterator[Item]:
    if source.size < _SNAPSHOT_HEADER.size:
        yield _torn(0, source.size, f"the header of a snapshot has {_SNAPSHOT_HEADER.size}")
        return
    version, crc, count = _SNAPSHOT_HEADER.unpack(source.read(_SNAPSHOT_HEADER.size))
    if version != _SNAPSHOT_VERSION:
        raise _NotReadError(f"is a snapshot of version {version}; this command reads version {_SNAPSHOT_VERSION}")
    crc_ok = crc == _snapshot_crc(source)
    yield {
        "type": "snapshot",
        "version": version,
        "offset": source.base_offset,
        "count": count,
        "crc": crc,
        "crc_ok": crc_ok,
    }
    whole, torn = divmod(source.size - _SNAPSHOT_HEADER.size, _PRODUCER_ENTRY.size)
    for at, fields in _unpack(source, _PRODUCER_ENTRY, _SNAPSHOT_HEADER.size, whole):
        yield {"type": "producer", "position": at, **_ProducerEntry._make(fields)._asdict()}
    if torn:
        yield _torn(source.size - torn, torn, f"an entry has {_PRODUCER_ENTRY.size}")
    if whole != count:
        yield _problem(source.size - torn, f"The snapshot announces {count} entries and has {whole}.")


def _snapshot_crc(source: _Source) -> int:
    source.file.seek(_SNAPSHOT_CRC_END)
    crc = 0
    for chunk in source.chunks(source.size - _SNAPSHOT_CRC_END):
        crc = google_crc32c.extend(crc, chunk)
    return crc


# --- .txnindex

_ABORTED_ENTRY: Final = struct.Struct(">hqqqq")
_ABORTED_VERSION: Final = 0


class _AbortedEntry(NamedTuple):
    """One transaction; its last offset is that of the abort marker."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def _read_aborted(source: _Source) -> Iterator[Item]:
    whole, torn = divmod(source.size, _ABORTED_ENTRY.size)
    last_offset = -1
    for at, fields in _unpack(source, _ABORTED_ENTRY, 0, whole):
        entry = _AbortedEntry._make(fields)
        if entry.version != _ABORTED_VERSION:
            yield _problem(at, f"The entry at byte {at} has version {entry.version}; {_ABORTED_VERSION} is known.")
            return
        yield {"type": "aborted", "position": at, **entry._asdict()}
        if not 0 <= entry.first_offset < entry.last_offset:
            yield _problem(at, f"The transaction at byte {at} ends before it begins.")
        if entry.last_offset <= last_offset:
            yield _problem(at, f"The entry at byte {at} does not come after the one before it.")
        last_offset = entry.last_offset
    if torn:
        yield _torn(source.size - torn, torn, f"an entry has {_ABORTED_ENTRY.size}")


# --- text


def _batch_text(item: Item) -> str:
    parts = [
        _range(item["base_offset"], item["last_offset"]),
        _plural(item["count"], "record"),
        _times_text(item),
        "uncompressed" if item["codec"] == "none" else item["codec"],
        _producer_text(item),
    ]
    parts += [flag for flag in ("transactional", "control") if item[flag]]
    if item["leader_epoch"] >= 0:
        parts.append(f"leader epoch {item['leader_epoch']}")
    parts += [f"{_plural(item['size'], 'byte')} at {item['position']}", _crc_text(item)]
    return "  ".join(parts)


def _times_text(item: Item) -> str:
    first, last = item["base_timestamp"], item["max_timestamp"]
    if item["timestamp_type"] == "append":
        text = f"appended {_time(last)}"
    elif first in (None, wire_batch.NO_TIMESTAMP, last):
        text = f"created {_time(last)}"
    else:
        # The first record is not always the oldest.
        text = f"created {_time(first)}, latest {_time(last)}"
    horizon = item["delete_horizon_ms"]
    return text if horizon is None else f"{text}  tombstones until {_time(horizon)}"


def _producer_text(item: Item) -> str:
    if item["producer_id"] == wire_batch.NO_PRODUCER_ID:
        return "no producer id"
    text = f"producer {item['producer_id']} epoch {item['producer_epoch']}"
    if item["base_sequence"] == wire_batch.NO_SEQUENCE:
        return text
    return f"{text} sequence {_range(item['base_sequence'], item['last_sequence'])}"


def _record_text(item: Item) -> str:
    parts = [f"    {item['offset']}", _time(item["timestamp"])]
    if "coordinator_epoch" in item:
        return "  ".join([*parts, item["control"], f"coordinator epoch {item['coordinator_epoch']}"])
    if "control" in item:
        parts.append(f"control: {item['control']}")
    parts += [f"key {_quoted(item, 'key')}", f"value {_quoted(item, 'value')}"]
    parts += [f"header {_quoted(header, 'key')}={_quoted(header, 'value')}" for header in item["headers"]]
    return "  ".join(parts)


def _index_text(item: Item) -> str:
    return f"{_offset_text(item)}  at {item['log_position']}"


def _time_index_text(item: Item) -> str:
    return f"{_time(item['timestamp'])}  {_offset_text(item)}"


def _offset_text(item: Item) -> str:
    if "offset" in item:
        return f"offset {item['offset']}"
    return f"base offset + {item['relative_offset']}"


def _reserved_text(item: Item) -> str:
    return f"From byte {item['position']} on, {item['size']} bytes are reserved and not used yet."


def _snapshot_text(item: Item) -> str:
    until = "" if item["offset"] is None else f" up to offset {item['offset']}"
    return f"producers{until}: {_plural(item['count'], 'entry', 'entries')}  {_crc_text(item)}"


def _producer_entry_text(item: Item) -> str:
    delta, last_sequence, last_offset = item["offset_delta"], item["last_sequence"], item["last_offset"]
    parts = [f"producer {item['producer_id']} epoch {item['producer_epoch']}"]
    if last_sequence != wire_batch.NO_SEQUENCE:
        parts.append(f"sequence {_range((last_sequence - delta) & wire_batch.MAX_SEQUENCE, last_sequence)}")
    # Without a sequence: written for the producer by a coordinator.
    parts.append(f"offset {_range(last_offset - delta, last_offset)}" if last_offset >= 0 else "no batch")
    parts += [_time(item["timestamp"]), f"coordinator epoch {item['coordinator_epoch']}"]
    if item["current_txn_first_offset"] >= 0:
        parts.append(f"transaction open since offset {item['current_txn_first_offset']}")
    return "  ".join(parts)


def _aborted_text(item: Item) -> str:
    return (
        f"producer {item['producer_id']}  aborted from offset {item['first_offset']}, marker at {item['last_offset']}  "
        f"stable up to {item['last_stable_offset']} then"
    )


def _problem_text(item: Item) -> str:
    return str(item["message"])


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}..{last}"


def _plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _crc_text(item: Item) -> str:
    return "crc ok" if item["crc_ok"] else "CRC MISMATCH"


_EPOCH: Final = datetime.datetime(1970, 1, 1)


def _time(timestamp: int) -> str:
    if timestamp == wire_batch.NO_TIMESTAMP:
        return "no time"
    try:
        moment = _EPOCH + datetime.timedelta(milliseconds=timestamp)
    except OverflowError:
        return f"{timestamp} ms"  # no time that a calendar has, but it is what is stored
    return moment.isoformat(timespec="milliseconds") + "Z"


def _quoted(item: Item, name: str) -> str:
    """A key or value in one short line that no terminal takes for a command."""
    text: str | None
    if name in item:
        text = item[name]
    else:
        text = bytes.fromhex(item[f"{name}_hex"]).decode("utf-8", "surrogateescape")
    if text is None:
        return "null"
    shown = text[:TEXT_WIDTH]
    if not shown.isprintable() or '"' in shown or "\\" in shown:
        shown = "".join(map(_escaped, shown))
    if len(text) <= TEXT_WIDTH:
        return f'"{shown}"'
    return f'"{shown}"... ({len(text.encode("utf-8", "surrogateescape"))} bytes)'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as "surrogateescape" carries it
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


KINDS: Final[dict[str, Callable[[_Source], Iterator[Item]]]] = {
    ".log": _read_log,
    ".index": _read_index,
    ".timeindex": _read_time_index,
    ".snapshot": _read_snapshot,
    ".txnindex": _read_aborted,
}

COUNTED: Final = frozenset({"batch", "index_entry", "time_index_entry", "producer", "aborted"})
"""What `--max` counts."""

TEXTS: Final[dict[str, Callable[[Item], str]]] = {
    "batch": _batch_text,
    "record": _record_text,
    "index_entry": _index_text,
    "time_index_entry": _time_index_text,
    "reserved": _reserved_text,
    "snapshot": _snapshot_text,
    "producer": _producer_entry_text,
    "aborted": _aborted_text,
    "problem": _problem_text,
}
