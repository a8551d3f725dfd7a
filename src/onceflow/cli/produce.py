"""`onceflow produce`: lines in, messages out, and an honest count at the end.

Reading a line and sending it are apart: `LineFormat` turns a line into a `Message` or refuses it, `Sender`
hands messages to librdkafka and counts what came back. A message counts as acknowledged only when the
broker said so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from onceflow.cli.common import (
    add_connection,
    bytes_from_json,
    connection,
    counted,
    name_and_value,
    whole_number,
)
from onceflow.cli.output import say
from onceflow.client.problems import Overheard, configured, describe
from onceflow.client.settings import ClientSettings
from onceflow.digits import INT64_MAX
from onceflow.errors import ConfigError

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  printf 'one\\ntwo\\n' | onceflow produce orders
  onceflow produce orders --file orders.txt --key-separator , --compression zstd
  onceflow produce orders --null-value NULL --key-separator :     a line k:NULL deletes k in a compacted topic
  onceflow consume orders --json | onceflow produce copy --json   keys, headers and partitions included

A line of --json is {"key": ..., "value": ..., "headers": {...}, "partition": ..., "timestamp": ...};
everything but the value may be left out. Bytes that are not text are {"base64": ...}, null is null, a
header that occurs several times has a list, and numbers and objects are sent as their JSON text.

The exit code is 0 only if the broker acknowledged every message.
"""

JSON_FIELDS = {"key", "value", "headers", "partition", "timestamp"}
JSON_IGNORED = {"topic", "offset"}  # `consume --json` prints them; where a message goes is decided here
INTERRUPTED_FLUSH_S = 5.0
Header = tuple[str, bytes | None]


class Message(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class BadLineError(Exception):
    """A line that cannot be a message; the text says why."""


@dataclass(frozen=True, kw_only=True)
class LineFormat:
    """What a line means."""

    json: bool = False
    key_separator: bytes | None = None
    null_value: bytes | None = None
    headers: tuple[Header, ...] = ()

    def parse(self, line: bytes) -> Message:
        """The message in a line, without its line end. Raises `BadLineError`."""
        return self._from_json(line) if self.json else self._from_text(line)

    def _from_text(self, line: bytes) -> Message:
        key, value = None, line
        if self.key_separator is not None:
            key, found, value = line.partition(self.key_separator)
            if not found:
                raise BadLineError(f"there is no key separator {self.key_separator.decode()!r} in it")
        return Message(key=key, value=None if value == self.null_value else value, headers=self.headers)

    def _from_json(self, line: bytes) -> Message:
        import json

        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as problem:  # JSONDecodeError and UnicodeDecodeError alike
            raise BadLineError(f"it is not JSON ({problem})") from None
        if not isinstance(fields, dict):
            raise BadLineError('it is not a JSON object such as {"key": "k", "value": "v"}')
        unknown = sorted(fields.keys() - JSON_FIELDS - JSON_IGNORED)
        if unknown:
            raise BadLineError(f"it has an unknown field {unknown[0]!r}; there are {', '.join(sorted(JSON_FIELDS))}")
        if "value" not in fields:
            raise BadLineError('it has no "value"; to send an empty one say "value": null')
        try:
            return Message(
                key=bytes_from_json(fields.get("key")),
                value=bytes_from_json(fields["value"]),
                headers=self.headers + tuple(_headers(fields.get("headers"))),
                partition=_number(fields, "partition"),
                timestamp_ms=_number(fields, "timestamp"),
            )
        except ValueError as problem:
            raise BadLineError(str(problem)) from None


def _headers(value: Any) -> Iterator[Header]:
    if value is None:
        return
    if not isinstance(value, dict):
        raise ValueError('its "headers" are not an object such as {"name": "value"}')
    for name, one_or_many in value.items():
        name.encode()  # raises for half of a surrogate pair, which JSON lets in and librdkafka does not survive
        for one in one_or_many if isinstance(one_or_many, list) else [one_or_many]:
            yield name, bytes_from_json(one)


def _number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= INT64_MAX:  # a bool is an int to isinstance
        raise ValueError(f'its "{name}" is not a whole number from 0 up')
    return value


class Tally:
    """What became of the messages."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.failed: Counter[str] = Counter()
        self.fatal: str | None = None
        """Why the producer as a whole has ended: it may not write, or was fenced."""

    def delivered(self, error: Any, _message: Any) -> None:
        """librdkafka's delivery report, once per message."""
        if error is None:
            self.acknowledged += 1
        else:
            self.refused(error)

    def refused(self, error: Any) -> None:
        """A fatal error ends all messages, with errors that only say that they were ended."""
        from confluent_kafka import KafkaError

        ended = (KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
        self.failed[self.fatal if self.fatal and error.code() in ended else describe(error)] += 1


class Sender:
    """A producer for one topic that counts outcomes."""

    def __init__(self, topic: str, partitions: int, partition: int | None, configuration: dict[str, Any]) -> None:
        from confluent_kafka import KafkaException, Producer

        self._refusal = KafkaException  # imported once, not for each message
        self._topic = topic
        self._partitions = partitions
        self._partition = partition
        self.tally = Tally()
        with configured():
            self._producer = Producer(configuration | {"on_delivery": self.tally.delivered})

    def send(self, message: Message) -> None:
        partition = self._partition if message.partition is None else message.partition
        if partition is not None and partition >= self._partitions:
            raise BadLineError(
                f"its partition {partition} is not one of the {self._partitions} of topic {self._topic!r}"
            )
        options: dict[str, Any] = {"key": message.key}
        if message.headers:
            options["headers"] = list(message.headers)
        if partition is not None:
            options["partition"] = partition
        if message.timestamp_ms is not None:
            options["timestamp"] = message.timestamp_ms
        while True:
            try:
                self._producer.produce(self._topic, message.value, **options)
            except BufferError:  # a full queue: wait for the broker to take some of it
                self._serve(0.1)
                continue
            except self._refusal as refused:  # too large for the client's own limit, mostly
                self.tally.refused(refused.args[0])
            self._serve(0)
            return

    def finish(self, timeout_s: float | None = None) -> None:
        """Waits until all are acknowledged or given up; what is open after `timeout_s` counts as failed."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while len(self._producer) and (until is None or time.monotonic() < until):
            self._serve(0.1)
        if left := len(self._producer):
            self.tally.failed["interrupted before an answer came"] += left
            self._producer.purge()

    def _serve(self, timeout_s: float) -> None:
        """Lets delivery reports come.

        A fatal error comes as an exception, once, and before the reports of the messages that it ends. `poll` returns
        with it. `flush` would not: it goes on with the reports, and where Python runs, the exception gets lost.
        """
        try:
            self._producer.poll(timeout_s)
        except self._refusal as fatal:
            self.tally.fatal = describe(fatal.args[0])


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "produce",
        help="send lines as messages",
        description="Send each line of standard input, or of a file, as a message, and report how many were "
        "acknowledged.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topic", metavar="TOPIC")
    lines = parser.add_argument_group("what a line is")
    lines.add_argument("--file", metavar="F", help="read this file instead of standard input")
    lines.add_argument("--json", action="store_true", help="each line is a JSON object, see below")
    lines.add_argument("--key-separator", metavar="SEP", help="what stands before the first SEP in a line is the key")
    lines.add_argument("--null-value", metavar="MARKER", help="a value equal to MARKER is sent as null (a tombstone)")
    lines.add_argument(
        "--header",
        metavar="NAME=VALUE",
        type=name_and_value,
        action="append",
        default=[],
        help="a header for every message",
    )
    sending = parser.add_argument_group("how to send")
    sending.add_argument("--partition", metavar="N", type=whole_number(0), help="default: by key, else spread")
    sending.add_argument("--compression", choices=["none", "gzip", "snappy", "lz4", "zstd"], default="none")
    sending.add_argument("--acks", choices=["0", "1", "all"], help="default: all")
    sending.add_argument(
        "--idempotent",
        action=argparse.BooleanOptionalAction,
        help="no duplicates when a lost acknowledgement makes the client send again (the default, "
        "unless --acks is 0 or 1)",
    )
    sending.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=whole_number(1),
        default=30,
        help="give a message up that is not acknowledged after so long (default: 30)",
    )
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    from onceflow.client.admin import Admin

    line_format = _line_format(args)
    settings = connection(args)
    configuration = _configuration(args, settings, Overheard())
    with _source(args.file) as source:
        partitions = len(Admin(settings).topic(args.topic).partitions)
        if args.partition is not None and args.partition >= partitions:
            raise ConfigError(
                f"topic {args.topic!r} has {counted(partitions, 'partition')}: there is no {args.partition}"
            )
        sender = Sender(args.topic, partitions, args.partition, configuration)
        started = time.monotonic()
        interrupted, bad_line = False, None
        try:
            with _progress(args.file) as watched:
                bad_line = _send_all(watched(source), line_format, sender)
            sender.finish()
        except KeyboardInterrupt:
            interrupted = True
            sender.finish(INTERRUPTED_FLUSH_S)
    _report(sender.tally, settings.bootstrap, time.monotonic() - started, confirmed=configuration["acks"] != "0")
    if bad_line is not None:
        say(f"onceflow: {bad_line}", err=True)
    if interrupted:
        return 130
    return 1 if sender.tally.failed or bad_line is not None else 0


def _line_format(args: argparse.Namespace) -> LineFormat:
    if args.json and (args.key_separator is not None or args.null_value is not None):
        raise ConfigError("with --json each line says what is key and null: leave out --key-separator and --null-value")
    if args.key_separator == "":
        raise ConfigError("--key-separator is empty: there would be no end of the key")
    return LineFormat(
        json=args.json,
        key_separator=_encoded(args.key_separator),
        null_value=_encoded(args.null_value),
        headers=tuple((name, value.encode()) for name, value in args.header),
    )


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _configuration(args: argparse.Namespace, settings: ClientSettings, error_cb: Any) -> dict[str, Any]:
    acks = args.acks or "all"
    idempotent = acks == "all" if args.idempotent is None else args.idempotent
    if idempotent and acks != "all":
        raise ConfigError(f"--idempotent needs the broker's word for every message: it does not go with --acks {acks}")
    return settings.librdkafka(
        error_cb=error_cb,
        # Many small lines are the usual case; a few milliseconds of waiting make batches of them.
        defaults={"linger.ms": 20, "message.timeout.ms": args.timeout * 1000},
        acks=acks,
        enable_idempotence=idempotent,
        compression_type=args.compression,
    )


def _source(path: str | None) -> AbstractContextManager[BinaryIO]:
    if path is None:
        if sys.stdin.isatty():
            say("Type a message per line; Ctrl-D ends.", err=True)
        return nullcontext(sys.stdin.buffer)
    try:
        return open(path, "rb")
    except OSError as problem:
        raise ConfigError(f"cannot read {path!r}: {(problem.strerror or str(problem)).lower()}") from None


def _send_all(lines: Iterable[bytes], line_format: LineFormat, sender: Sender) -> str | None:
    """Sends line by line. Stops at a line that makes no sense and returns a sentence about it."""
    for number, line in enumerate(lines, start=1):
        try:
            sender.send(line_format.parse(line.removesuffix(b"\n")))
        except BadLineError as problem:
            return f"line {number} was not sent, nor were those after it: {problem}"
    return None


@contextmanager
def _progress(path: str | None) -> Iterator[Any]:
    """A bar while a file is read by a person; otherwise nothing."""
    if path is None or not sys.stderr.isatty():
        yield lambda source: source
        return

    import os

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("sending"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=os.path.getsize(path) or None)

        def watched(source: Iterable[bytes]) -> Iterator[bytes]:
            read = 0
            for line in source:
                read += len(line)
                if read >= 65536:
                    progress.advance(task, read)
                    read = 0
                yield line
            progress.advance(task, read)

        yield watched


def _report(tally: Tally, bootstrap: str, seconds: float, *, confirmed: bool) -> None:
    done = "acknowledged by" if confirmed else "sent, without asking for acknowledgement, to"
    say(f"{counted(tally.acknowledged, 'message')} {done} {bootstrap} in {seconds:.2f} s", err=True)
    for reason, number in tally.failed.most_common():
        say(f"{counted(number, 'message')} not acknowledged: {reason}", err=True)
