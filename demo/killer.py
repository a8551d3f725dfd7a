"""Who starts the job of the demo, looks on from outside, and kills it in the middle of a transaction."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

from demo.orders import Chronicles, Names
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from tests.support.spark import DriverProcess

from onceflow.client.cluster import Cluster
from onceflow.client.settings import ClientSettings
from onceflow.client.transactions import Transaction, describe_transactions
from onceflow.errors import OnceflowError
from onceflow.verify.history import Outcome

JOB = Path(__file__).with_name("copy_and_count_job.py")
DRIVER_S_MAX = 300.0
LOOK_EVERY_S = 0.02


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

    def now(self, visible: int, doing: str, transaction: str, kills: int) -> None:
        self._progress.update(self._task, completed=visible, now=f"{kills} kills; driver {doing}; {transaction}")

    def line(self, text: str) -> None:
        self._console.print(text)

    def __enter__(self) -> Show:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class Visible:
    """How many copies the reader has been shown, from what its history has grown by."""

    COPY = b'"id":"order-'

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._count = 0

    def count(self) -> int:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read += len(whole)
            self._count += whole.count(self.COPY)
        return self._count


class Killer:
    """Starts the job, looks on from outside, and kills it."""

    def __init__(self, bootstrap: str, names: Names, folder: Path, chronicles: Chronicles, show: Show) -> None:
        self._bootstrap = bootstrap
        self._names = names
        self._folder = folder
        self._chronicles = chronicles
        self._show = show
        self._record = chronicles.recorder("nemesis")
        self._visible = Visible(chronicles.path("reader.1"))
        self._cluster = Cluster(ClientSettings(bootstrap=bootstrap))
        self.kills = 0
        self.left_open = 0
        """How many kills left a transaction open; the others came between two."""

    @property
    def _process(self) -> str:
        return f"driver.{self.kills + 1}"

    def start(self, per_batch: int) -> DriverProcess:
        names = dataclasses.asdict(self._names)
        options = [part for name, value in names.items() for part in (f"--{name.replace('_', '-')}", value)]
        options += ["--bootstrap", self._bootstrap, "--per-batch", str(per_batch)]
        options += ["--checkpoint", str(self._folder / "checkpoint"), "--process", self._process]
        options += ["--history", str(self._chronicles.path(self._process)), "--zero", repr(self._chronicles.zero)]
        return DriverProcess(JOB, *options, folder=self._folder / self._process)

    def kill_in(self, transaction_number: int, moment_s: float, per_batch: int) -> bool:
        """So long after the driver's first, second... transaction was written to. False if the job was done before."""
        met = {self._identity(self._transaction())}  # that of the last driver
        with self.start(per_batch) as driver:
            for transaction in self._looks(driver, "starts again" if self.kills else "starts"):
                if self._written(transaction):
                    met.add(self._identity(transaction))
                if len(met) > transaction_number:
                    break
            end = time.monotonic() + moment_s
            for _ in self._looks(driver, "writes"):
                if time.monotonic() >= end:
                    break
            if not driver.is_running:
                return False
            self._kill(driver)
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
            self._show.now(self._visible.count(), doing, self._words(transaction), self.kills)
            yield transaction
            time.sleep(LOOK_EVERY_S)
        if driver.wait() != 0:
            raise OnceflowError(f"a driver failed by itself:\n{driver.log[-3000:]}")

    def _kill(self, driver: DriverProcess) -> None:
        op = self._record.begin("fault", kind="kill", target=self._process)
        driver.kill()
        left = self._transaction()
        self._record.end(op, Outcome.OK, hit=self._words(left))
        self.kills += 1
        self.left_open += _is_open(left)
        self._show.line(f"  kill -9 no. {self.kills}: {self._visible.count():,} copies visible, {self._words(left)}")

    def _transaction(self) -> Transaction | None:
        return describe_transactions(self._cluster, [self._names.app_id]).get(self._names.app_id)

    def _written(self, transaction: Transaction | None) -> int:
        """In how many partitions of the outputs an open transaction has records."""
        if transaction is None or not _is_open(transaction):
            return 0
        return sum(topic in self._names.outputs for topic, _ in transaction.partitions)

    def _words(self, transaction: Transaction | None) -> str:
        if written := self._written(transaction):
            return f"a transaction open with records in {written} partitions"
        return "a transaction open, nothing written yet" if _is_open(transaction) else "no transaction open"

    @staticmethod
    def _identity(transaction: Transaction | None) -> tuple[int, int] | None:
        """Every transaction has an epoch of its own."""
        return None if transaction is None else (transaction.producer_id, transaction.producer_epoch)


def _is_open(transaction: Transaction | None) -> bool:
    return transaction is not None and transaction.state == "Ongoing"
