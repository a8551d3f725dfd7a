"""Rows that their topic can never take: larger than its `max.message.bytes`, or without a key where it is compacted.

Without `dead_letter_topic` such a row fails the micro-batch, at each start again; `explained` says which row it is, and
what helps. With it the row is written to that topic instead, in the same transaction: with its key, its timestamp and
its value, and headers that say why it is there.

    onceflow.error.reason      too_large, or no_key
    onceflow.error.message     a sentence
    onceflow.error.topic       where it was to go
    onceflow.error.partition   and into which partition
    onceflow.error.size        bytes of its record batch, as it would have been sent
    onceflow.error.limit       max.message.bytes of the topic (of a row that is too large)
    onceflow.error.truncated   what was cut to fit into the dead-letter topic: key, value, headers; if anything was

**Rows are looked at before anything is sent**: a broker refuses a batch when others of the micro-batch are written
already, which spoils the transaction. A broker checks a batch as it is sent, compressed: so a row counts as too large
if it is so in a batch of its own, compressed as all are. Where a topic's settings may not be read, or a broker refuses
what they allow, a refusal tells the limit: the micro-batch runs again with it (`TooLarge`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceflow.client.producing import WriteRefused
from onceflow.client.topic_limits import TopicLimits
from onceflow.errors import ErrorCode, OnceflowError
from onceflow.spark.columns import array_of, binary_of_list
from onceflow.spark.encoding import BATCH_BYTES_MAX, Packed, Rows, record_sizes
from onceflow.wire.batch import HEADER_SIZE, read_header
from onceflow.wire.records import Record, read_records

__all__ = [
    "ABOUT_RECORDS",
    "PREFIX",
    "RowRefused",
    "TooLarge",
    "Unfit",
    "dead_letters",
    "explained",
    "find_unfit",
    "learned",
    "limits_with",
    "room_in",
]

PREFIX: Final = "onceflow.error."
_TOO_LARGE: Final = "too_large"
_NO_KEY: Final = "no_key"
_SHOWN: Final = 60
_FRAME_BYTES: Final = HEADER_SIZE + 64
"""Of a batch of one record, without what is in it."""
_LONGER: Final = 500
"""What cannot be compressed takes up to 10 bytes more for each block of 16 to 64 kB, with gzip, snappy and lz4."""
_RAISED: Final = "raise max.message.bytes of the topic, leave such rows out, or give the sink a dead_letter_topic"

Numbers = npt.NDArray[np.integer[Any]]
Header = tuple[str, bytes | None]


class RowRefused(OnceflowError):
    """A row cannot be written as it is; the message says what is wrong with it."""


class TooLarge(RowRefused):
    """A record that was refused for its size, alone in its batch."""

    def __init__(self, sentence: str, topic: str, size: int) -> None:
        super().__init__(sentence)
        self.topic = topic
        self.size = size

    @property
    def kind(self) -> str:
        """For the driver, which gets no more than two texts. No topic has a blank in its name."""
        return f"{_TOO_LARGE} {self.topic} {self.size}"


def learned(kind: str) -> tuple[str, int] | None:
    """The topic and the most that it takes, if this is the kind of a `TooLarge`."""
    word, _, rest = kind.partition(" ")
    topic, _, size = rest.partition(" ")
    return (topic, int(size) - 1) if word == _TOO_LARGE else None


# --- before anything is sent


@dataclass(frozen=True)
class Unfit:
    """A row, by its number, and what is wrong with it."""

    row: int
    topic: str
    partition: int
    reason: str
    size: int
    limit: int | None = None

    @property
    def message(self) -> str:
        if self.reason == _NO_KEY:
            return f"the row has no key, and topic {self.topic!r} is compacted"
        return (
            f"the record takes {self.size:,} bytes, and topic {self.topic!r} takes {self.limit:,} (max.message.bytes)"
        )


def room_in(limits: Sequence[TopicLimits], batch_bytes: int) -> int:
    """How large batches may be, before compression, that all these topics take. Compression may make random bytes
    longer."""
    return min([batch_bytes, *(_safe(each.bytes_max) for each in limits if each.bytes_max is not None)])


def _safe(bytes_max: int) -> int:
    return bytes_max - bytes_max // 20


def find_unfit(
    rows: Rows,
    topics: Sequence[str],
    limits: Sequence[TopicLimits],
    codes: Numbers | None,
    partitions: Numbers,
    packed_alone: Callable[[Rows], Packed],
    now_ms: int,
) -> list[Unfit]:
    """The rows that their topics cannot take. `codes`: which of the topics each row goes to; None: there is one."""
    most = np.array([2**62 if each.bytes_max is None else _safe(each.bytes_max) for each in limits])
    sizes = record_sizes(rows, now_ms) + HEADER_SIZE
    found: list[Unfit] = []
    for row in np.flatnonzero(sizes > (most[0] if codes is None else most[codes])).tolist():
        topic = 0 if codes is None else int(codes[row])
        size, limit = packed_alone(rows.slice(row, 1)).size, limits[topic].bytes_max
        if limit is not None and size > limit:
            found.append(Unfit(row, topics[topic], int(partitions[row]), _TOO_LARGE, size, limit))
    if any(each.needs_keys for each in limits):
        known = {each.row for each in found}
        for row in _without_key(rows):
            topic = 0 if codes is None else int(codes[row])
            if limits[topic].needs_keys and row not in known:
                found.append(Unfit(row, topics[topic], int(partitions[row]), _NO_KEY, int(sizes[row])))
    return found


def _without_key(rows: Rows) -> list[int]:
    if rows.keys is None:
        return list(range(len(rows)))
    if not rows.keys.null_count:
        return []
    found: list[int] = np.flatnonzero(rows.keys.is_null().to_numpy(zero_copy_only=False)).tolist()
    return found


def dead_letters(
    rows: Rows, unfit: Sequence[Unfit], limits: TopicLimits, every_header: tuple[str, str] | None = None
) -> Rows:
    """These rows, as they are written to the dead-letter topic. `every_header`: of each and every row."""
    first: list[Header] = [] if every_header is None else [(every_header[0], every_header[1].encode())]
    whole = limits.bytes_max or BATCH_BYTES_MAX
    room = whole - _FRAME_BYTES - whole // _LONGER
    letters = [_letter(rows, each, first, room) for each in unfit]
    keys, values, headers = (list(each) for each in zip(*letters, strict=True))
    return Rows(
        keys=binary_of_list(keys),
        values=binary_of_list(values),
        headers=_lists(headers),
        timestamps_ms=None if rows.timestamps_ms is None else rows.timestamps_ms[[each.row for each in unfit]],
    )


def _lists(headers: Sequence[Sequence[Header]]) -> pa.ListArray:
    """(Arrow's own way from Python objects imports pandas, which takes longer than all the rest.)"""
    names = binary_of_list([name.encode() for each in headers for name, _ in each]).view(pa.string())
    values = binary_of_list([value for each in headers for _, value in each])
    ends = np.cumsum([0, *map(len, headers)], dtype=np.int32)
    return pa.ListArray.from_arrays(array_of(ends), pa.StructArray.from_arrays([names, values], ["key", "value"]))


def _letter(
    rows: Rows, unfit: Unfit, first: list[Header], room: int
) -> tuple[bytes | None, bytes | None, list[Header]]:
    key = None if rows.keys is None else rows.keys[unfit.row].as_py()
    value = rows.values[unfit.row].as_py()
    own = [] if rows.headers is None else rows.headers[unfit.row].as_py() or []
    headers: list[Header] = [(each["key"], each["value"]) for each in own]
    told = first + _told(unfit)
    left = room - _size(told) - len(PREFIX) - 40  # and the header that says what was cut
    cut = []
    if _size(headers) > left // 4 and _size(headers) + len(key or b"") + len(value or b"") > left:
        headers, cut = [], ["headers"]
    left -= _size(headers)
    if key is not None and len(key) > max(left // 4, left - len(value or b"")):
        key = key[: max(left // 4, 0)]
        cut.append("key")
    left -= len(key or b"")
    if value is not None and len(value) > left:
        value = value[: max(left, 0)]
        cut.append("value")
    if cut:
        told.append((f"{PREFIX}truncated", ",".join(cut).encode()))
    return key, value, headers + told


def _told(unfit: Unfit) -> list[Header]:
    found = {
        "reason": unfit.reason,
        "message": unfit.message,
        "topic": unfit.topic,
        "partition": unfit.partition,
        "size": unfit.size,
    }
    if unfit.limit is not None:
        found["limit"] = unfit.limit
    return [(f"{PREFIX}{name}", str(value).encode()) for name, value in found.items()]


def _size(headers: Sequence[Header]) -> int:
    """At most, with the lengths before them."""
    return sum(len(name.encode()) + len(value or b"") + 10 for name, value in headers)


# --- when a broker has refused a batch


ABOUT_RECORDS: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
    }
)
"""Refusals of what is in a batch: it will be refused again, whenever it is sent."""


def explained(refusal: WriteRefused, batch: bytes, limits: TopicLimits) -> RowRefused:
    """Which record it is, what is wrong with it, and what helps."""
    where = f"for partition {refusal.partition} of {refusal.topic!r}"
    match refusal.code:
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE:
            return _too_large(refusal.topic, where, batch, limits)
        case ErrorCode.INVALID_TIMESTAMP:
            record = _named(refusal, batch, lambda each: str(each.timestamp) in str(refusal))
            return RowRefused(
                f"a record {where} has a timestamp that the topic does not take (message.timestamp.before.max.ms, "
                f"message.timestamp.after.max.ms): {refusal} ({_words(record)})"
            )
        case _:
            record = _named(refusal, batch, lambda each: limits.needs_keys and each.key is None)
            if limits.needs_keys and record is not None and record.key is None:
                return RowRefused(
                    f"a row {where} has no key, and the topic is compacted ({_words(record)}): give every row a key, "
                    "leave such rows out, or give the sink a dead_letter_topic"
                )
            return RowRefused(f"a record {where} was refused: {refusal} ({_words(record)})")


def _too_large(topic: str, where: str, batch: bytes, limits: TopicLimits) -> RowRefused:
    takes = (
        "than the topic takes" if limits.bytes_max is None else f"than the {limits.bytes_max:,} that the topic takes"
    )
    header = read_header(batch)
    if header.count != 1:
        lower = "" if limits.bytes_max is None else f", below {limits.bytes_max:,}"
        return RowRefused(
            f"a batch of {header.count:,} records {where} has {len(batch):,} bytes, more {takes} (max.message.bytes): "
            f"lower batch_bytes{lower}"
        )
    [record] = read_records(batch)
    return TooLarge(
        f"a record {where} has {len(batch):,} bytes, more {takes} (max.message.bytes): {_words(record)}. Either "
        f"{_RAISED}",
        topic,
        len(batch),
    )


def _named(refusal: WriteRefused, batch: bytes, is_meant: Callable[[Record], bool]) -> Record | None:
    """The record that is wrong, as one sees from what is in it, or as the broker says."""
    records = list(read_records(batch))
    if len(records) == 1:
        return records[0]
    meant = [each for each in records if is_meant(each)] or [records[at] for at in refusal.records if at < len(records)]
    return meant[0] if meant else None


def _words(record: Record | None) -> str:
    if record is None:
        return "which of the batch, the broker does not say"
    key = "no key" if record.key is None else f"key {_excerpt(record.key)}"
    value = "no value" if record.value is None else f"a value of {len(record.value):,} bytes"
    return f"the record with {key}, {value} and the timestamp {record.timestamp}"


def _excerpt(data: bytes) -> str:
    text = repr(data[:_SHOWN].decode("utf-8", "replace"))
    return text if len(data) <= _SHOWN else f"{text}..."


def limits_with(known: Mapping[str, TopicLimits], learned_bytes: Mapping[str, int]) -> dict[str, TopicLimits]:
    """What settings say, or less where a refusal has told so."""
    return {
        topic: each._replace(bytes_max=min(filter(None, (each.bytes_max, learned_bytes[topic]))))
        if topic in learned_bytes
        else each
        for topic, each in known.items()
    }
