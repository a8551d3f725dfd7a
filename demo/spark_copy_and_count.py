"""A Spark job that is killed again and again while it copies and counts, and a comparison of what came out.

Orders lie in a topic of an embedded Onceflow broker. A Spark job (`copy_and_count_job.py`) copies them to a second
topic and keeps a count per customer in a third one. Driver, JVM and workers are killed with -9 at random moments and
started anew, until the job gets to the end. Then the topics are read as any consumer reads them (read_committed):
every order must have been copied once, and every customer's count must be right.

    make demo

The exit code is 0 only if so. With --bootstrap it runs on a Kafka of yours, in topics of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from tests.support.kafka_jars import JarsMissing, JavaMissing
from tests.support.readers import Seen, Watcher, committed
from tests.support.spark import DriverProcess

import onceflow
from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.settings import ClientSettings
from onceflow.client.transactions import Transaction, describe_transactions
from onceflow.errors import OnceflowError

JOB = Path(__file__).with_name("copy_and_count_job.py")
CUSTOMERS = 200
SOURCE_PARTITIONS = 2
MICRO_BATCHES = 80
"""At least so many, so that there is always one to kill."""
TRANSACTIONS_MAX = 4
MOMENT_S_MAX = 0.5
"""A driver dies in one of its first transactions, or up to this time after it: whichever and when, chance decides."""
DRIVER_S_MAX = 300.0
LOOK_EVERY_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Names:
    app_id: str
    orders: str
    copies: str
    counts: str

    @classmethod
    def with_ending(cls, ending: str) -> Names:
        return cls(
            app_id=f"copy-and-count{ending}",
            orders=f"orders{ending}",
            copies=f"orders-copied{ending}",
            counts=f"orders-per-customer{ending}",
        )


@dataclass(frozen=True, kw_only=True)
class Kill:
    """What it was like to die there."""

    number: int
    visible: int
    left_open: int
    """The partitions of the transaction that it left open; 0 if it died between two."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the topics hold, compared with what they should."""

    orders: int
    copies: int
    missing: int
    duplicates: int
    """Copies too many: an order that is there three times counts two."""
    taken_back: int
    """Copies that a reader was shown while the job ran, and that are not there in the end."""
    customers: int
    counts_right: int
    counts_repeated: int
    """The same count of the same customer, written more than once: a micro-batch that was done twice."""
    kills: int
    transactions_left_open: int
    seconds: float

    @property
    def exact(self) -> bool:
        wrong = self.missing or self.duplicates or self.taken_back or self.counts_repeated
        return self.copies == self.orders and self.counts_right == self.customers and not wrong


def order(number: int) -> tuple[bytes, bytes]:
    """Key and value: a customer, and the number of the order. Some customers order more than others."""
    return b"customer-%d" % (number // 7 % (1 + number % CUSTOMERS)), b"order-%d" % number


def judge(
    orders: int,
    copies: Sequence[Seen],
    counts: Sequence[Seen],
    shown: Sequence[Seen],
    kills: Sequence[Kill],
    began: float,
) -> Verdict:
    wanted = {order(number) for number in range(orders)}
    found = Counter((each.key, each.value) for each in copies)
    right = Counter(key for key, _ in wanted)
    last = {each.key: int(each.value or b"0") for each in counts}  # in the order of the log, so the last one stays
    return Verdict(
        orders=orders,
        copies=len(copies),
        missing=len(wanted - found.keys()),
        duplicates=len(copies) - len(found),
        taken_back=len(set(shown) - set(copies)),
        customers=len(right),
        counts_right=sum(last.get(customer) == count for customer, count in right.items()),
        counts_repeated=len(counts) - len({(each.key, each.value) for each in counts}),
        kills=len(kills),
        transactions_left_open=sum(each.left_open > 0 for each in kills),
        seconds=time.monotonic() - began,
    )


class Show:
    """A line that moves, and lines that stay. Silent for --json."""

    def __init__(self, console: Console, total: int) -> None:
        columns = (
            TextColumn("  copied"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]}"),
        )
        self._progress = Progress(*columns, console=console, transient=True, refresh_per_second=5)
        self._task = self._progress.add_task("", total=total, now="")
        self._console = console

    def now(self, visible: int, doing: str, transaction: Transaction | None, kills: int) -> None:
        opened = _open_partitions(transaction)
        words = f"transaction open on {opened} partitions" if opened else "no transaction open"
        self._progress.update(self._task, completed=visible, now=f"{kills} kills; driver {doing}; {words}")

    def line(self, text: str) -> None:
        self._console.print(text)

    def __enter__(self) -> Show:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class Killer:
    """Starts the job, looks on from outside, and kills it."""

    def __init__(self, bootstrap: str, names: Names, folder: Path, watcher: Watcher, show: Show) -> None:
        self._bootstrap = bootstrap
        self._names = names
        self._folder = folder
        self._watcher = watcher
        self._show = show
        self._cluster = Cluster(ClientSettings(bootstrap=bootstrap))
        self.kills: list[Kill] = []

    def start(self, per_batch: int) -> DriverProcess:
        names = dataclasses.asdict(self._names)
        options = [part for name, value in names.items() for part in (f"--{name.replace('_', '-')}", value)]
        options += ["--bootstrap", self._bootstrap, "--per-batch", str(per_batch)]
        options += ["--checkpoint", str(self._folder / "checkpoint")]
        return DriverProcess(JOB, *options, folder=self._folder / f"driver-{len(self.kills)}")

    def kill_in(self, transaction_number: int, moment_s: float, per_batch: int) -> bool:
        """So long after the driver's first, second... transaction was opened. False if the job was done before."""
        opened = {self._identity(self._transaction())}  # that of the last driver
        with self.start(per_batch) as driver:
            for transaction in self._looks(driver, "starts" if not self.kills else "starts again"):
                if _open_partitions(transaction):
                    opened.add(self._identity(transaction))
                if len(opened) > transaction_number:
                    break
            end = time.monotonic() + moment_s
            for _ in self._looks(driver, "writes"):
                if time.monotonic() >= end:
                    break
            if not driver.is_running:
                return False
            driver.kill()
        self._note()
        return True

    def finish(self, per_batch: int) -> None:
        with self.start(per_batch) as driver:
            for _ in self._looks(driver, "goes on to the end"):
                pass

    def _looks(self, driver: DriverProcess, doing: str) -> Iterator[Transaction | None]:
        """What the coordinator says, again and again, as long as the driver runs."""
        deadline = time.monotonic() + DRIVER_S_MAX
        while driver.is_running:
            if time.monotonic() > deadline:
                raise OnceflowError(f"after {DRIVER_S_MAX:g} s a driver still {doing}:\n{driver.log[-3000:]}")
            transaction = self._transaction()
            self._show.now(len(self._watcher.seen), doing, transaction, len(self.kills))
            yield transaction
            time.sleep(LOOK_EVERY_S)
        if driver.wait() != 0:
            raise OnceflowError(f"a driver failed by itself:\n{driver.log[-3000:]}")

    def _note(self) -> None:
        kill = Kill(
            number=len(self.kills) + 1,
            visible=len(self._watcher.seen),
            left_open=_open_partitions(self._transaction()),
        )
        self.kills.append(kill)
        state = f"a transaction left open on {kill.left_open} partitions" if kill.left_open else "no transaction open"
        self._show.line(f"  kill -9 no. {kill.number}: {kill.visible:,} copies visible, {state}")

    def _transaction(self) -> Transaction | None:
        return describe_transactions(self._cluster, [self._names.app_id]).get(self._names.app_id)

    @staticmethod
    def _identity(transaction: Transaction | None) -> tuple[int, int] | None:
        """Every transaction has an epoch of its own."""
        return None if transaction is None else (transaction.producer_id, transaction.producer_epoch)


def _open_partitions(transaction: Transaction | None) -> int:
    return len(transaction.partitions) if transaction is not None and transaction.state == "Ongoing" else 0


def fill(bootstrap: str, names: Names, orders: int) -> None:
    admin = Admin(ClientSettings(bootstrap=bootstrap))
    for name, partitions in ((names.orders, SOURCE_PARTITIONS), (names.copies, 4), (names.counts, 2)):
        admin.create(name, partitions=partitions)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "queue.buffering.max.messages": 10_000_000})
    for number in range(orders):
        key, value = order(number)
        producer.produce(names.orders, value, key=key, partition=number % SOURCE_PARTITIONS)
    if left := producer.flush(60):
        raise OnceflowError(f"{left} orders could not be written within a minute")


def run(args: argparse.Namespace, console: Console) -> tuple[Verdict, list[Kill]]:
    chance = random.Random(args.seed)
    names = Names.with_ending(f"-{uuid4().hex[:8]}" if args.bootstrap else "")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onceflow-demo-")))
        bootstrap = args.bootstrap or stack.enter_context(onceflow.Broker(folder / "broker")).bootstrap
        fill(bootstrap, names, args.records)
        began = time.monotonic()
        watcher = stack.enter_context(Watcher(bootstrap, names.copies))
        with Show(console, args.records) as show:
            killer = Killer(bootstrap, names, folder, watcher, show)
            per_batch = max(1, args.records // MICRO_BATCHES)
            moments = [
                (chance.randint(1, TRANSACTIONS_MAX), chance.uniform(0, MOMENT_S_MAX)) for _ in range(args.kills)
            ]
            if all(killer.kill_in(number, moment_s, per_batch) for number, moment_s in moments):
                killer.finish(max(1, args.records // 8))
        copies = _settled(bootstrap, names.copies, args.records)
        counts = committed(bootstrap, names.counts)
        return judge(args.records, copies, counts, watcher.seen, killer.kills, began), killer.kills


def _settled(bootstrap: str, topic: str, count: int) -> list[Seen]:
    """The job has ended; the markers of its last commit may be a moment behind."""
    deadline = time.monotonic() + 10
    while len(found := committed(bootstrap, topic)) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def table(verdict: Verdict) -> Table:
    found = Table(show_edge=False, pad_edge=False)
    for name in ("", "expected", "found"):
        found.add_column(name, justify="right" if name else "left")
    for name, expected, there in (
        ("orders copied", verdict.orders, verdict.copies),
        ("missing", 0, verdict.missing),
        ("duplicates", 0, verdict.duplicates),
        ("shown to a reader, then taken back", 0, verdict.taken_back),
        ("customers with the right count", verdict.customers, verdict.counts_right),
        ("counts written twice", 0, verdict.counts_repeated),
    ):
        colour = "green" if expected == there else "red"
        found.add_row(name, f"{expected:,}", f"[{colour}]{there:,}[/{colour}]")
    return found


def closing_words(verdict: Verdict, wanted_kills: int) -> Iterator[str]:
    deaths = f"{verdict.kills} kills, {verdict.transactions_left_open} of them in an open transaction"
    if verdict.exact:
        yield f"[bold green]Each order once, each count right[/bold green] ({deaths}; {verdict.seconds:.0f} s)."
    else:
        yield f"[bold red]This is not exactly once[/bold red] ({deaths}; {verdict.seconds:.0f} s)."
    if verdict.kills < wanted_kills:
        yield "The job was done before it could be killed more often: more --records give it more to do."


@contextmanager
def _explained(console: Console) -> Iterator[None]:
    try:
        yield
    except (OnceflowError, JavaMissing, JarsMissing) as problem:
        console.print("[red]The demo could not run:[/red]", str(problem), markup=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=_positive, default=80_000, metavar="N", help="orders (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=6, metavar="N", help="how often (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=2026, metavar="N", help="of the moments (default: %(default)s)")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a Kafka of yours (default: an embedded broker)")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON and nothing else")
    args = parser.parse_args()
    console = Console(highlight=False, stderr=args.json, quiet=args.json)
    if not console.is_terminal:
        console.width = 120  # a file has no width of its own, and rich assumes little
    console.print(
        f"[bold]A Spark job copies and counts {args.records:,} orders and is killed {args.kills} times[/bold], "
        f"seed {args.seed}\n"
    )
    with _explained(Console(stderr=True, highlight=False)):
        verdict, kills = run(args, console)
    if args.json:
        print(json.dumps(_as_json(verdict, kills)))
    else:
        console.print()
        console.print(table(verdict))
        console.print()
        for line in closing_words(verdict, args.kills):
            console.print(line)
    return 0 if verdict.exact else 1


def _as_json(verdict: Verdict, kills: Sequence[Kill]) -> dict[str, Any]:
    return {
        "exact": verdict.exact,
        **dataclasses.asdict(verdict),
        "kills": [dataclasses.asdict(kill) for kill in kills],
    }


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("there must be something to copy")
    return number


if __name__ == "__main__":
    sys.exit(main())
