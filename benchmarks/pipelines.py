"""Measure the reference pipelines as users run them: `onceflow run NAME` on a broker of this machine.

    python -m benchmarks.pipelines                    all three, our broker and Apache Kafka (about 25 minutes)
    python -m benchmarks.pipelines orders --quick

Full load: a topic that is full already, records per second over the micro-batches after the first few
(`WARM_BATCHES`), which compile and start what the others use. Latency: records come at 1,000 per second, five every
5 ms, for a minute and a half before what is measured; a record's time is from the moment it is handed to its producer
to the moment a read_committed consumer has the first output of its micro-batch. Which micro-batch it was in, the
checkpoint says; which one an output belongs to, its header.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.brokers import FLAVOURS, KAFKA, ONCEFLOW
from benchmarks.environment import environment
from benchmarks.plan import FULL
from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.pipelines.job import BATCH_HEADER
from onceflow.pipelines.judging import offset_log
from onceflow.pipelines.reference import REFERENCES, Message, Reference, reference_named

Place = tuple[str, int]
RESULTS = Path(__file__).parent / "results" / "pipelines"
BROKERS = (ONCEFLOW.name, KAFKA.name)
RATE = 1_000
AT_ONCE = 5
TRIGGERS = ("0", "100ms", "1s")
WARM_BATCHES = 4
WARM_S = 90.0
SEED = 7
STOP_S = 60.0
FACTS = ("processor", "memory", "Python", "Java", "Onceflow", "Apache Kafka", "load before the run")


@dataclass(frozen=True, kw_only=True)
class Measured:
    pipeline: str
    broker: str
    what: str
    """"full load", or the trigger."""
    records: int
    batches: int
    per_second: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None


def main() -> int:
    args = arguments()
    # Ended by `kill` or `timeout`, brokers and jobs have to end too: unwind instead of dying on the spot.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    facts = environment(FULL)
    found: list[Measured] = []
    for broker in args.brokers:
        for name in args.pipelines or REFERENCES:
            with FLAVOURS[broker].start() as running:
                found += _measure(Bench(name, broker, running.bootstrap, args), console)
    print_and_save(found, facts, args.out, console)
    return 0


def _measure(bench: Bench, console: Console) -> Iterator[Measured]:
    parts = [
        *([bench.full_load] if bench.args.full_load else []),
        *(lambda each=each: bench.latency(each) for each in bench.args.triggers),
    ]
    for part in parts:
        measured = part()
        console.print(measured.pipeline, *_row(measured), sep="  ")
        yield measured


class Bench:
    """One pipeline on one broker."""

    def __init__(self, name: str, broker: str, bootstrap: str, args: argparse.Namespace) -> None:
        self.name, self.broker, self.bootstrap, self.args = name, broker, bootstrap, args
        self.reference: Reference = reference_named(name)

    def full_load(self) -> Measured:
        prefix = "full-"
        self._create(prefix)
        self._fill(prefix)
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [*self._command(prefix, folder), "--until-now", "--per-batch", str(self.args.per_batch)],
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            raise RuntimeError(f"onceflow run ended with {done.returncode}: {done.stderr[-2000:]}")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        warm = [each for each in lines[WARM_BATCHES:] if each["in"] >= self.args.per_batch // 2]
        if not warm:
            raise RuntimeError(
                f"{len(lines)} micro-batches are too few to measure: more --records, or fewer --per-batch"
            )
        rate = sum(each["in"] for each in warm) / sum(each["seconds"] for each in warm)
        return self._measured("full load", sum(each["in"] for each in lines), len(lines), per_second=rate)

    def latency(self, trigger: str) -> Measured:
        prefix = f"paced-{trigger}-"
        self._create(prefix)
        with tempfile.TemporaryDirectory() as folder, self._running(prefix, folder, trigger):
            seen = Seen(
                self.bootstrap, {f"{prefix}{name}": count for name, count in self.reference.pipeline.written().items()}
            )
            with seen:
                sent = self._pace(prefix)
                seen.wait_until_quiet()
            batches = offset_log(Path(folder) / "checkpoint")
            latencies = sorted(_latencies(sent, batches, seen.first))
            if not latencies:
                raise RuntimeError(f"nothing came out: {(Path(folder) / 'log').read_text()[-3000:]}")
        return self._measured(
            f"trigger {trigger}",
            len(latencies),
            len(seen.first),
            p50_s=statistics.median(latencies),
            p99_s=latencies[int(len(latencies) * 0.99)],
        )

    def _measured(self, what: str, records: int, batches: int, **values: float) -> Measured:
        return Measured(pipeline=self.name, broker=self.broker, what=what, records=records, batches=batches, **values)

    def _command(self, prefix: str, folder: str) -> list[str]:
        words = ["--bootstrap", self.bootstrap, "--prefix", prefix, "--checkpoint", f"{folder}/checkpoint", "--json"]
        return [sys.executable, "-m", "onceflow", "run", self.name, *words]

    def _create(self, prefix: str) -> None:
        """Kept for ever: the samples are of a day long ago, and a broker deletes what is a week old."""
        admin = Admin(ClientSettings(bootstrap=self.bootstrap))
        for name, count in self.reference.pipeline.topics().items():
            admin.create(f"{prefix}{name}", partitions=count, configs={"retention.ms": "-1"})

    def _fill(self, prefix: str) -> None:
        producer = _producer(self.bootstrap)
        for number, each in enumerate(self.reference.generate(SEED, self.args.records)):
            _produce(producer, prefix, each)
            if number % 5_000 == 0:
                producer.poll(0)
        producer.flush()

    @contextlib.contextmanager
    def _running(self, prefix: str, folder: str, trigger: str) -> Iterator[None]:
        command = [
            *self._command(prefix, folder),
            "--trigger",
            trigger,
            "--spark-conf",
            "spark.sql.streaming.minBatchesToRetain=100000",
        ]
        with open(Path(folder) / "log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(STOP_S)

    def _pace(self, prefix: str) -> dict[Place, list[tuple[int, float]]]:
        """A few records every few milliseconds. Returns when each was handed over: (offset, time) by partition."""
        sent: dict[Place, list[tuple[int, float]]] = {}
        producer = _producer(self.bootstrap, linger_ms=5)  # its default
        count = int(RATE * (WARM_S + self.args.seconds))
        began = time.monotonic()
        for number, each in enumerate(self.reference.generate(SEED, count)):
            if number % AT_ONCE == 0:
                producer.poll(0)
                time.sleep(max(0.0, began + number / RATE - time.monotonic()))
            _produce(producer, prefix, each, sent)
        producer.flush()
        limit = began + WARM_S
        return {place: [(at, when) for at, when in records if when > limit] for place, records in sent.items()}


class Seen:
    """A read_committed consumer that notes when it first saw something of each micro-batch."""

    def __init__(self, bootstrap: str, topics: dict[str, int]) -> None:
        self.first: dict[int, float] = {}
        self._last = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, each, 0) for topic, count in topics.items() for each in range(count)]
        )

    def __enter__(self) -> Seen:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()

    def wait_until_quiet(self, quiet_s: float = 5.0) -> None:
        while time.monotonic() - self._last < quiet_s:
            time.sleep(0.1)

    def _run(self) -> None:
        while not self._over.is_set():
            messages = self._consumer.consume(10_000, timeout=0.05)
            now = time.monotonic()
            for message in messages:
                if message.error() is None:
                    self._last = now
                    self.first.setdefault(int(dict(message.headers())[BATCH_HEADER]), now)


def _latencies(
    sent: Mapping[Place, Sequence[tuple[int, float]]],
    log: Mapping[int, Mapping[Place, int]],
    first: Mapping[int, float],
) -> Iterator[float]:
    """Of records whose micro-batch has written something."""
    numbers = sorted(log)
    for place, records in sent.items():
        ends = [log[each].get(place, 0) for each in numbers]
        for offset, when in records:
            index = bisect.bisect_right(ends, offset)
            if index < len(numbers) and numbers[index] in first:
                yield first[numbers[index]] - when


def _producer(bootstrap: str, linger_ms: int = 20) -> Any:
    return Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": linger_ms, "enable.idempotence": True, "log_level": 0}
    )


def _produce(producer: Any, prefix: str, each: Message, sent: dict[Any, Any] | None = None) -> None:
    topic, handed = f"{prefix}{each.topic}", time.monotonic()

    def acknowledged(error: Any, message: Any) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        if sent is not None:
            sent.setdefault((topic, message.partition()), []).append((message.offset(), handed))

    while True:
        try:
            producer.produce(
                topic, each.value, each.key, each.partition, timestamp=each.timestamp, on_delivery=acknowledged
            )
            return
        except BufferError:
            producer.poll(0.1)


COLUMNS = ("broker", "what", "records", "batches", "records/s", "p50", "p99")


def _row(each: Measured) -> list[str]:
    times = ["" if value is None else f"{value:.2f} s" for value in (each.p50_s, each.p99_s)]
    rate = "" if each.per_second is None else f"{each.per_second:,.0f}"
    return [each.broker, each.what, f"{each.records:,}", f"{each.batches}", rate, *times]


def print_and_save(found: Sequence[Measured], facts: dict[str, str], out: Path, console: Console) -> None:
    table = Table("pipeline", *COLUMNS, box=SIMPLE_HEAD)
    for each in found:
        table.add_row(each.pipeline, *_row(each))
    console.print(table)
    out.mkdir(parents=True, exist_ok=True)
    everything = {"facts": facts, "measured": [asdict(each) for each in found]}
    (out / "pipelines.json").write_text(json.dumps(everything, indent=2) + "\n")
    rows = [["pipeline", *COLUMNS], ["---"] * (len(COLUMNS) + 1), *([each.pipeline, *_row(each)] for each in found)]
    notes = [f"- {name}: {facts[name]}" for name in FACTS]
    (out / "pipelines.md").write_text(
        "\n".join(["# Pipelines", "", *(f"| {' | '.join(row)} |" for row in rows), "", *notes, ""])
    )
    console.print(f"Written to {out}: pipelines.json, pipelines.md")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pipelines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pipelines", nargs="*", metavar="PIPELINE", help=f"of {', '.join(REFERENCES)} (default: all)")
    parser.add_argument("--brokers", nargs="+", default=list(BROKERS), choices=BROKERS)
    parser.add_argument("--no-full-load", dest="full_load", action="store_false", help="latency only")
    parser.add_argument("--triggers", nargs="*", default=list(TRIGGERS), metavar="TIME")
    parser.add_argument("--records", type=int, default=3_200_000, help="for full load (default: %(default)s)")
    parser.add_argument("--per-batch", type=int, default=200_000)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help=f"of measured latency, after {WARM_S:g} s (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="2,400,000 records, 10 s, our broker: for a first look")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.quick:
        args.records, args.seconds, args.brokers = 2_400_000, 10.0, BROKERS[:1]
    return args


if __name__ == "__main__":
    sys.exit(main())
