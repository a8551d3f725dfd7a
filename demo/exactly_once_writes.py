"""A hundred thousand messages through a network that keeps failing, and a count of what arrived.

An unmodified Kafka client writes numbered messages to an Onceflow broker. In between sits a proxy that loses
acknowledgements, cuts connections and tears requests in half; and in the middle of it all the broker is
killed with -9 and started again on the same files. Then the log is read back and counted. First with an
idempotent producer, then, through the same kind of trouble, without.

    make demo-broker

The exit code is 0 only if with idempotence each message is in the log exactly once and in order.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.errors import OnceflowError
from onceflow.verify.lossy_proxy import Counters, LossyProxy, RandomFaults

TOPIC = "payments"
PARTITIONS = 4
FAULTS_MAX = 150
"""A budget, so that the run ends however unlucky it is."""
START_TIMEOUT_S = 20.0
RUN_TIMEOUT_S = 120.0
CLIENT = {
    "acks": "all",
    "log_level": 0,  # librdkafka would print a line for each of the faults
    # Small batches make many requests, and so many acknowledgements to lose.
    "batch.num.messages": 200,
    "linger.ms": 5,
    "queue.buffering.max.messages": 5_000,
    # Be quick to try again, and never give up within the demo.
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 100,
    "socket.timeout.ms": 5_000,
    "message.timeout.ms": 300_000,
    # Several requests under way at once: a cut takes them all, and the client sends them all again.
    "max.in.flight.requests.per.connection": 5,
}


class Broker:
    """`onceflow broker` as a process of its own, on the same files each time it is started."""

    def __init__(self, directory: Path) -> None:
        self._data = directory / "data"
        self._output = directory / "broker.out"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0  # the first start picks one, later starts keep it

    def start(self, *, advertise: str | None) -> float:
        """Starts and waits until it is ready; returns how many seconds that took."""
        command = [sys.executable, "-m", "onceflow", "broker"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--data", str(self._data)]
        if advertise is not None:
            command += ["--set", f"advertised.listeners=PLAINTEXT://{advertise}"]
        started = time.monotonic()
        said = self._output.stat().st_size if self._output.exists() else 0
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        while True:
            text = self._output.read_bytes()[said:].decode(errors="replace")
            for line in text.splitlines(keepends=True):
                if line.startswith("onceflow broker ready on ") and line.endswith("\n"):
                    self.port = int(line.rpartition(":")[2])
                    return time.monotonic() - started
            if self._process.poll() is not None:
                raise OnceflowError(f"the broker did not start, exit code {self._process.returncode}:\n{text}")
            if time.monotonic() - started > START_TIMEOUT_S:
                self.kill()
                raise OnceflowError(f"the broker was not ready after {START_TIMEOUT_S:g} s:\n{text}")
            time.sleep(0.005)

    def kill(self) -> None:
        """kill -9: no goodbye, no flush, nothing tidied up."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is in the log, compared with what was sent."""

    sent: int
    acknowledged: int
    in_log: int
    lost: int
    doubled: int
    """Copies too many: a message that is there three times counts two."""
    steps_back: int
    """Places where a partition's numbers go down instead of up."""
    trouble: Counters
    restart_s: float
    seconds: float

    @property
    def exact(self) -> bool:
        return self.in_log == self.sent and not (self.lost or self.doubled or self.steps_back)


def judge(logs: dict[int, list[int]], sent: int) -> tuple[int, int, int]:
    """How many numbers are lost, how many records are copies, and how often order breaks."""
    distinct = {number for numbers in logs.values() for number in numbers}
    in_log = sum(map(len, logs.values()))
    steps_back = sum(later < earlier for numbers in logs.values() for earlier, later in pairwise(numbers))
    return sent - len(distinct), in_log - len(distinct), steps_back


def write(broker: Broker, proxy: LossyProxy, messages: int, idempotent: bool, console: Console) -> tuple[int, float]:
    """Sends the numbers 0, 1, 2... and kills the broker half way.

    Returns how many were acknowledged, and how long the broker took to come back.
    """
    acknowledged = failed = 0
    restart_s = 0.0

    def delivered(error: Any, _message: Any) -> None:
        nonlocal acknowledged, failed
        if error is None:
            acknowledged += 1
        else:
            failed += 1

    producer = Producer(
        CLIENT | {"bootstrap.servers": proxy.address, "enable.idempotence": idempotent, "on_delivery": delivered}
    )
    numbers = iter(range(messages))
    number = next(numbers, None)
    deadline = time.monotonic() + RUN_TIMEOUT_S
    with _progress(console, messages) as show:
        while acknowledged + failed < messages and time.monotonic() < deadline:
            with contextlib.suppress(BufferError):  # the queue is full: serve some acknowledgements first
                while number is not None:
                    producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
                    number = next(numbers, None)
            producer.poll(0.05)
            if not restart_s and acknowledged >= messages // 2:
                broker.kill()
                time.sleep(0.5)  # let the client run into the void
                restart_s = broker.start(advertise=proxy.address)
            show(acknowledged, proxy.counters, killed=bool(restart_s))
    return acknowledged, restart_s


def read(bootstrap: str) -> dict[int, list[int]]:
    """Everything in the topic, straight from the broker, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo",  # librdkafka wants one; assign() does not use it
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    logs: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    unfinished = set(logs)
    deadline = time.monotonic() + RUN_TIMEOUT_S
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in logs])
        while unfinished:
            if time.monotonic() > deadline:
                raise OnceflowError(f"partitions {sorted(unfinished)} could not be read to their end")
            batch: list[Any] = consumer.consume(1_000, 0.5)
            for message in batch:
                error = message.error()
                if error is None:
                    logs[message.partition()].append(int(message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
    finally:
        consumer.close()
    return logs


def run(messages: int, seed: int, idempotent: bool, console: Console) -> Verdict:
    """One whole run: start, write through trouble, kill, restart, read back, judge."""
    started = time.monotonic()
    faults = RandomFaults(
        seed=seed,
        lose_ack=0.08,
        cut_before=0.02,
        tear_request=0.02,
        tear_response=0.02,
        delay=0.1,
        budget=FAULTS_MAX,
    )
    with (
        tempfile.TemporaryDirectory(prefix="onceflow-demo-") as directory,
        Broker(Path(directory)) as broker,
        LossyProxy(plan=faults) as proxy,
    ):
        broker.start(advertise=proxy.address)
        proxy.upstream = ("127.0.0.1", broker.port)
        Admin(ClientSettings(bootstrap=proxy.address)).create(TOPIC, partitions=PARTITIONS, replication_factor=1)
        acknowledged, restart_s = write(broker, proxy, messages, idempotent, console)
        # Once more from disk, and without the proxy in between: what counts is what the files say.
        broker.stop()
        broker.start(advertise=None)
        logs = read(f"127.0.0.1:{broker.port}")
    lost, doubled, steps_back = judge(logs, messages)
    return Verdict(
        sent=messages,
        acknowledged=acknowledged,
        in_log=sum(map(len, logs.values())),
        lost=lost,
        doubled=doubled,
        steps_back=steps_back,
        trouble=proxy.counters,
        restart_s=restart_s,
        seconds=time.monotonic() - started,
    )


@contextlib.contextmanager
def _progress(console: Console, total: int) -> Iterator[Any]:
    columns = (
        TextColumn("  acknowledged"),
        BarColumn(bar_width=16),  # all of it fits into 80 columns
        MofNCompleteColumn(),
        TextColumn("{task.fields[trouble]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total, trouble="")

        def show(acknowledged: int, counters: Counters, *, killed: bool) -> None:
            trouble = f"{counters.acks_lost} acks lost, {counters.cuts} cuts" + (", kill -9" if killed else "")
            progress.update(task, completed=acknowledged, trouble=trouble)

        yield show


def _table(exactly: Verdict, plainly: Verdict) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("idempotence on", justify="right")
    table.add_column("idempotence off", justify="right")
    for name, value in (
        ("acknowledgements lost", lambda v: v.trouble.acks_lost),
        ("connections cut", lambda v: v.trouble.cuts),
        ("broker killed with -9", lambda v: 1 if v.restart_s else 0),
        ("messages sent", lambda v: v.sent),
        ("acknowledged", lambda v: v.acknowledged),
        ("records in the log", lambda v: v.in_log),
        ("lost", lambda v: v.lost),
        ("doubled", lambda v: v.doubled),
        ("order broken", lambda v: v.steps_back),
    ):
        table.add_row(name, f"{value(exactly):,}", f"{value(plainly):,}", end_section=name.startswith("broker"))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000, metavar="N")
    parser.add_argument("--seed", type=int, default=2026, metavar="N", help="of the faults")
    args = parser.parse_args()
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # a file has no width of its own, and rich assumes little
    console.print(f"[bold]{args.messages:,} messages through a network that keeps failing[/bold], seed {args.seed}\n")
    try:
        console.print("With an idempotent producer (enable.idempotence=true):")
        exactly = run(args.messages, args.seed, True, console)
        console.print(f"  {_outcome(exactly)}\n")
        console.print("Through the same kind of trouble, without (enable.idempotence=false):")
        plainly = run(args.messages, args.seed, False, console)
        console.print(f"  {_outcome(plainly)}\n")
    except OnceflowError as problem:
        console.print(f"[red]The demo could not run:[/red] {problem}")
        return 1
    except KeyboardInterrupt:
        return 130
    console.print(_table(exactly, plainly))
    console.print()
    for line in _closing_words(exactly, plainly):
        console.print(line)
    return 0 if exactly.exact else 1


def _outcome(verdict: Verdict) -> str:
    came_back = f"; ready again {verdict.restart_s:.2f} s after kill -9" if verdict.restart_s else ""
    if verdict.exact:
        return f"[green]each message once, in order[/green] ({verdict.seconds:.1f} s{came_back})"
    counts = f"{verdict.lost:,} lost, {verdict.doubled:,} doubled, order broken {verdict.steps_back:,} times"
    return f"[yellow]{counts}[/yellow] ({verdict.seconds:.1f} s{came_back})"


def _closing_words(exactly: Verdict, plainly: Verdict) -> Iterator[str]:
    trouble = exactly.trouble
    if exactly.exact:
        counts = f"{exactly.sent:,} sent, {exactly.in_log:,} in the log"
        yield f"[bold green]{counts}: none lost, none doubled, none out of order.[/bold green]"
        yield (
            f"{trouble.acks_lost} acknowledgements were lost, {trouble.cuts} connections cut, and the broker "
            "died in the middle: it still knew what it had."
        )
    else:
        yield (
            f"[bold red]This is not exactly once: {exactly.lost:,} lost, {exactly.doubled:,} doubled, "
            f"order broken {exactly.steps_back:,} times.[/bold red]"
        )
    if not trouble.acks_lost:
        yield "But no acknowledgement was lost this time, so this shows little: try more --messages or another --seed."
    if plainly.doubled:
        yield f"Without idempotence the same kind of trouble left {plainly.doubled:,} copies too many."


if __name__ == "__main__":
    sys.exit(main())
