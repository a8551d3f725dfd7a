"""A Spark job that is killed again and again while it copies and counts, and a verdict on what came out.

Orders lie in a topic of an embedded Onceflow broker. A Spark job (`copy_and_count_job.py`) copies them to a second
topic and keeps a count per customer in a third one. Driver, JVM and workers are killed with -9 at random moments and
started anew, until the job gets to the end. A reader looks on all the time, as any consumer does (read_committed).

Everybody keeps a history of what they did and saw. `onceflow verify` has the judge: twelve kinds of anomaly that
exactly-once forbids are looked for in it, and a page shows the whole run on a timeline.

    make demo

The exit code is 0 only if nothing was found. With --bootstrap it runs on a Kafka of yours, in topics of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from demo.killer import Killer, Show
from demo.orders import Chronicles, Names, Shop
from rich.console import Console
from rich.table import Table
from tests.support.kafka_jars import JarsMissing, JavaMissing

import onceflow
from onceflow.cli.output import new_table
from onceflow.cli.verify_summary import print_findings, print_verdict, verdict_line
from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.errors import OnceflowError
from onceflow.verify import report
from onceflow.verify.anomalies import ANOMALIES, check
from onceflow.verify.history import Derivation, History, Seen
from onceflow.verify.observers import OffsetWatcher, everything_committed, open_partitions, places_of
from onceflow.verify.runner import counts
from onceflow.verify.stage import NotDrained
from onceflow.verify.verdict import Verdict
from onceflow.verify.workers import Workers

MICRO_BATCHES = 80
"""At least so many, so that there is always one to kill."""
TRANSACTIONS_MAX = 4
MOMENT_S_MAX = 0.5
"""A driver dies in one of its first transactions, or up to this time after it: whichever and when, chance decides."""
SETTLED_S = 30.0


class Run:
    """From the first order to the final read."""

    def __init__(self, args: argparse.Namespace, folder: Path, bootstrap: str) -> None:
        self._args = args
        self._folder = folder
        self._bootstrap = bootstrap
        self._settings = ClientSettings(bootstrap=bootstrap)
        self.names = Names.with_ending(f"-{uuid4().hex[:8]}" if args.bootstrap else "")
        self.chronicles = Chronicles(folder / "history")
        self.final: list[Seen] = []
        self.problems: list[str] = []
        """Why it proves less than it should."""

    def run(self, console: Console) -> Killer:
        admin = Admin(self._settings)
        for topic, partitions in self.names.topics.items():
            admin.create(topic, partitions=partitions)
        Shop(self._bootstrap, self.names.orders, self.chronicles.recorder("shop")).write(self._args.records)
        with ExitStack() as stack:
            readers = stack.enter_context(self._looking_on())
            killer = self._kill_and_finish(stack.enter_context(Show(console, self._args.records)))
            self.final = self._final_read()
            self.problems += [*(f"{each} had to be killed" for each in readers.finish()), *readers.problems()]
        return killer

    @contextmanager
    def _looking_on(self) -> Iterator[Workers]:
        """A reader of what comes out, and an observer of offsets."""
        zero, observer = self.chronicles.zero, self.chronicles.recorder("observer")
        shared = {"bootstrap": self._bootstrap, "client_config": {}, "seed": self._args.seed, "zero": zero}
        everywhere = places_of(self.names.topics)
        with Workers(self._folder, shared) as readers:
            readers.add("reader", "reader", "onceflow.verify.programs.reader", topics=self.names.outputs)
            with OffsetWatcher(self._settings, observer, everywhere, [self.names.app_id]):
                yield readers

    def _kill_and_finish(self, show: Show) -> Killer:
        args, chance = self._args, random.Random(self._args.seed)
        moments = [(chance.randint(1, TRANSACTIONS_MAX), chance.uniform(0, MOMENT_S_MAX)) for _ in range(args.kills)]
        killer = Killer(self._bootstrap, self.names, self._folder, self.chronicles, show)
        if all(killer.kill_in(*moment, max(1, args.records // MICRO_BATCHES)) for moment in moments):
            killer.finish(max(1, args.records // 8))
        return killer

    def _final_read(self) -> list[Seen]:
        places = places_of(self.names.topics)
        try:
            self._await_markers()
            return everything_committed(self._settings, places, SETTLED_S)
        except NotDrained as problem:
            self.problems.append(str(problem))
            return []

    def _await_markers(self) -> None:
        """The job has ended; the markers of its last commit may be a moment behind."""
        deadline = time.monotonic() + SETTLED_S
        while left := open_partitions(self._settings, places_of(self.names.topics)):
            if time.monotonic() > deadline:
                raise NotDrained(f"a transaction stays open on {len(left)} partitions")
            time.sleep(0.1)


def judge(
    names: Names, chronicles: Chronicles, final: Sequence[Seen], problems: Sequence[str], *, seed: int, brokers: str
) -> tuple[Verdict, History]:
    history = History.load(
        sorted(chronicles.folder.glob("*.jsonl")),
        final,
        derivations=[Derivation(names.orders, names.copies)],
        is_drained=not problems,
    )
    verdict = Verdict(
        workload="demo",
        seed=seed,
        brokers=brokers,
        seconds=time.monotonic() - chronicles.zero,
        anomalies=check(history),
        problems=problems,
        faults=history.of("fault"),
        counts=counts(history),
    )
    return verdict, history


def table(verdict: Verdict) -> Table:
    found = new_table("looked for", found="right")
    numbers = Counter(each.name for each in verdict.anomalies)
    for name in ANOMALIES:
        colour = "red" if numbers[name] else "green"
        found.add_row(name, f"[{colour}]{numbers[name]:,}[/{colour}]")
    return found


def story(args: argparse.Namespace, killer: Killer) -> Iterator[str]:
    yield f"{args.records:,} orders, {killer.kills} kills, {killer.left_open} of them in an open transaction"
    if killer.kills < args.kills:
        yield "The job was done before it could be killed more often: more --records give it more to do."


def tell(args: argparse.Namespace, verdict: Verdict, killer: Killer, page: Path, console: Console) -> None:
    """The end is that of `onceflow verify`."""
    console.print()
    console.print(table(verdict))
    console.print()
    for line in story(args, killer):
        console.print(line)
    print_findings(verdict)
    print_verdict(verdict_line(verdict), is_clean=verdict.is_clean)
    print(f"report  {page}")


@contextmanager
def _explained(console: Console) -> Iterator[None]:
    try:
        yield
    except (OnceflowError, JavaMissing, JarsMissing) as problem:
        console.print("[red]The demo could not run:[/red]", str(problem), markup=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=_positive, default=80_000, metavar="N", help="orders (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=6, metavar="N", help="how often (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=11, metavar="N", help="of the moments (default: %(default)s)")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a Kafka of yours (default: an embedded broker)")
    parser.add_argument("--report", type=Path, metavar="DIR", help="(default: onceflow-verify/demo-SEED)")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON and nothing else")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    console = Console(highlight=False, stderr=args.json, quiet=args.json)
    if not console.is_terminal:
        console.width = 120  # a file has no width of its own, and rich assumes little
    console.print(
        f"[bold]A Spark job copies and counts {args.records:,} orders and is killed {args.kills} times[/bold], "
        f"seed {args.seed}\n"
    )
    with _explained(Console(stderr=True, highlight=False)), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onceflow-demo-")))
        bootstrap = args.bootstrap or stack.enter_context(onceflow.Broker(folder / "broker")).bootstrap
        run = Run(args, folder, bootstrap)
        killer = run.run(console)
        brokers = f"Kafka at {bootstrap}" if args.bootstrap else "onceflow"
        verdict, history = judge(run.names, run.chronicles, run.final, run.problems, seed=args.seed, brokers=brokers)
    again = f"python -m demo.spark_copy_and_count --seed {args.seed} --records {args.records} --kills {args.kills}"
    page = report.write(args.report or Path(f"onceflow-verify/demo-{args.seed}"), verdict, history, command=again)
    if args.json:
        print(json.dumps(verdict.to_json()))
    else:
        tell(args, verdict, killer, page, console)
    return 0 if verdict.is_clean else 1


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("there must be something to copy")
    return number


if __name__ == "__main__":
    sys.exit(main())
