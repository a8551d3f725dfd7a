"""`onceflow consume`: print what is in a topic.

Reads by assignment, so it needs no consumer group and leaves no trace. Without `--follow` it stops at the
end as it was when it started. That end is an offset, not a count: the last offsets of a partition may be
transaction markers, which are never handed out, so a partition is done at the last record before its end,
at the first one behind it, *or* at librdkafka's end-of-partition event, whichever comes first.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onceflow.cli.common import add_connection, bytes_to_json, connection, counted, whole_number
from onceflow.client.problems import ClientError, Overheard, configured, describe
from onceflow.client.settings import ClientSettings
from onceflow.digits import whole_number_of
from onceflow.errors import ConfigError
from onceflow.printable import json_text, printable

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  onceflow consume orders                               all values, then exit
  onceflow consume orders --keys --offsets --max 10
  onceflow consume orders --from end --follow           what comes from now on
  onceflow consume orders --from 2026-01-31T12:00:00Z   without a time zone: local time
  onceflow consume orders --partition 2 --from 1000 --json | jq -r .value

With --json, keys, values and headers that are not UTF-8 are {"base64": ...}; timestamps are milliseconds
since 1970; a header that occurs several times has a list.
"""

BATCH = 500
POLL_S = 0.2
STALLED_S = 15.0  # without --follow there is something to read until the end: silence means that the broker is gone
Start = str | int | datetime


@dataclass(frozen=True, kw_only=True)
class Span:
    """What to read of one partition: from `start`, and up to but not including `end`; None: for ever."""

    partition: int
    start: int
    end: int | None


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "consume",
        help="print the messages of a topic",
        description="Print the messages of a topic, one per line, up to its end as it is now.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topic", metavar="TOPIC")
    which = parser.add_argument_group("which messages")
    which.add_argument(
        "--from",
        dest="start",
        metavar="WHERE",
        type=_start,
        default="beginning",
        help="beginning (default), end, an offset, or a time such as 2026-01-31T12:00:00Z",
    )
    which.add_argument(
        "--partition",
        metavar="N",
        type=whole_number(0),
        action="append",
        help="only this one; may be repeated",
    )
    which.add_argument("--max", metavar="N", type=whole_number(1), help="stop after so many messages")
    which.add_argument(
        "--follow", action=argparse.BooleanOptionalAction, default=False, help="go on when the end is reached"
    )
    which.add_argument(
        "--isolation",
        choices=["read_committed", "read_uncommitted"],
        default="read_committed",
        help="whether messages of open and aborted transactions are hidden (default: read_committed)",
    )
    how = parser.add_argument_group("how to print")
    how.add_argument("--keys", action="store_true", help="the key and a tab before the value")
    how.add_argument("--headers", action="store_true", help="name=value,... and a tab before the key")
    how.add_argument("--offsets", action="store_true", help="partition:offset and a tab before all that")
    how.add_argument("--null-value", metavar="MARKER", default="null", help="print nulls as this (default: null)")
    how.add_argument("--json", action="store_true", help="a JSON object per line, with everything")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    from onceflow.client.admin import Admin

    settings = connection(args)
    admin = Admin(settings)
    existing = admin.topic(args.topic).partitions
    partitions = sorted(set(existing if args.partition is None else args.partition))
    for partition in partitions:
        if partition not in existing:
            there = counted(len(existing), "partition")
            raise ConfigError(f"topic {args.topic!r} has {there}: there is no {partition}")
    spans = _spans(admin, args, partitions)
    render = _json_line if args.json else _text_line(args)
    reader = Reader(settings, args.topic, read_committed=args.isolation == "read_committed")
    try:
        reader.print(spans, render, limit=args.max)
    finally:
        reader.close()
    return 0


def _start(text: str) -> Start:
    if text in ("beginning", "end"):
        return text
    if (offset := whole_number_of(text)) is not None:
        return offset
    try:
        moment = datetime.fromisoformat(text)
        moment.timestamp()  # which the first and the last day of the calendar do not have in every time zone
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither beginning, end, an offset, nor a time such as 2026-01-31T12:00:00Z"
        ) from None
    return moment


def _spans(admin: Any, args: argparse.Namespace, partitions: list[int]) -> list[Span]:
    """Where to start and where to end in each partition, decided once, before the first read."""
    places = [(args.topic, partition) for partition in partitions]
    ends = admin.offsets(places, read_committed=args.isolation == "read_committed")
    if isinstance(args.start, datetime):
        by_time = admin.offsets_at(places, int(args.start.timestamp() * 1000))
    if isinstance(args.start, int) and all(args.start > latest for _, latest in ends.values()):
        longest = max(latest for _, latest in ends.values())
        raise ClientError(f"there is no offset {args.start} yet: what can be read of {args.topic!r} ends at {longest}")
    spans = []
    for place in places:
        earliest, latest = ends[place]
        if args.start == "beginning":
            start = earliest
        elif args.start == "end":
            start = latest
        elif isinstance(args.start, int):
            start = min(max(args.start, earliest), latest)
        else:
            start = latest if by_time[place] is None else by_time[place]
        spans.append(Span(partition=place[1], start=start, end=None if args.follow else latest))
    return spans


class Reader:
    """A consumer of one topic that prints."""

    def __init__(self, settings: ClientSettings, topic: str, *, read_committed: bool) -> None:
        from confluent_kafka import Consumer

        self._topic = topic
        self._settings = settings
        self._overheard = Overheard()
        with configured():
            self._consumer = Consumer(
                settings.librdkafka(
                    error_cb=self._overheard,
                    # librdkafka insists on a group name where no group is used; nothing is committed to it.
                    defaults={
                        "group.id": "onceflow-consume",
                        "fetch.wait.max.ms": 100,
                        "auto.offset.reset": "earliest",
                    },
                    enable_auto_commit=False,
                    enable_auto_offset_store=False,
                    enable_partition_eof=True,
                    isolation_level="read_committed" if read_committed else "read_uncommitted",
                )
            )

    def print(self, spans: list[Span], render: Callable[[Any], bytes], *, limit: int | None) -> None:
        """Writes the messages of these spans to stdout, at most `limit`."""
        from confluent_kafka import TopicPartition

        ends = {span.partition: span.end for span in spans if span.end is None or span.start < span.end}
        if not ends:
            return
        self._consumer.assign([TopicPartition(self._topic, s.partition, s.start) for s in spans if s.partition in ends])
        out = sys.stdout.buffer
        left = limit
        heard_at = time.monotonic()
        while ends:
            batch: list[Any] = self._consumer.consume(BATCH if left is None else min(BATCH, left), POLL_S)
            if batch:
                heard_at = time.monotonic()
            lines: list[bytes] = []
            for message in batch:
                partition = int(message.partition())
                if message.error() is not None:
                    if self._at_end(message.error()) and ends.get(partition) is not None:
                        self._done(ends, partition)
                    continue
                if partition not in ends:
                    continue  # fetched ahead, before the partition was found to be done
                end = ends[partition]
                if end is None or message.offset() < end:
                    lines.append(render(message))
                if end is not None and message.offset() >= end - 1:
                    self._done(ends, partition)
            if lines:
                out.write(b"".join(lines))
                out.flush()
            if left is not None:
                left -= len(lines)
                if left <= 0:
                    return
            if None not in ends.values() and time.monotonic() - heard_at > STALLED_S:
                raise ClientError(
                    f"{self._settings.bootstrap} fell silent before the end of {self._topic!r} was reached"
                    + (f": {self._overheard.last}" if self._overheard.last else "")
                )

    def close(self) -> None:
        self._consumer.close()

    def _done(self, ends: dict[int, int | None], partition: int) -> None:
        from confluent_kafka import TopicPartition

        del ends[partition]
        if ends:  # the others go on: do not fetch this one in vain
            self._consumer.pause([TopicPartition(self._topic, partition)])

    def _at_end(self, error: Any) -> bool:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._PARTITION_EOF:
            return True
        if error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            return False  # librdkafka tries again; if it is in vain, the stall is noticed
        raise ClientError(f"reading {self._topic!r} failed: {describe(error)}")


def _text_line(args: argparse.Namespace) -> Callable[[Any], bytes]:
    null = args.null_value.encode()
    is_terminal = sys.stdout.isatty()

    def shown(data: bytes | None) -> bytes:
        return null if data is None else data

    def render(message: Any) -> bytes:
        columns: list[bytes] = []
        if args.offsets:
            columns.append(b"%d:%d" % (message.partition(), message.offset()))
        if args.headers:
            pairs = message.headers() or []
            columns.append(b",".join(name.encode() + b"=" + shown(value) for name, value in pairs))
        if args.keys:
            columns.append(shown(message.key()))
        columns.append(shown(message.value()))
        line = b"\t".join(columns)
        return (_for_terminal(line) if is_terminal else line) + b"\n"

    return render


def _for_terminal(line: bytes) -> bytes:
    """What is in records may have several lines; it must not steer the terminal."""
    return printable(line.decode(errors="backslashreplace"), keep="\n\t").encode()


def _json_line(message: Any) -> bytes:
    kind, timestamp_ms = message.timestamp()
    fields = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp_ms if kind else None,  # kind 0: the record has no timestamp
        "key": bytes_to_json(message.key()),
        "value": bytes_to_json(message.value()),
        "headers": _headers(message.headers() or []),
    }
    return json_text(fields).encode() + b"\n"


def _headers(pairs: list[tuple[str, bytes | None]]) -> dict[str, Any]:
    """Name to value; Kafka allows a name several times, and then there is a list in the record's order."""
    grouped: dict[str, list[Any]] = {}
    for name, value in pairs:
        grouped.setdefault(name, []).append(bytes_to_json(value))
    return {name: values[0] if len(values) == 1 else values for name, values in grouped.items()}
