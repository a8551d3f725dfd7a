"""`onceflow verify`: a workload under faults, judged by its history.

Progress goes to stderr (`verify.display`), the result to stdout. Exit codes: 0 only if nothing was found; 1 anomalies
or problems, or it could not run; 2 the command line was wrong; 130 interrupted, with everything stopped and healed.

Faults are made only where they were asked for: without `--bootstrap` a broker of our own is started, and the variable
that gives other commands their address is not looked at.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onceflow.cli.common import make_folder
from onceflow.cli.output import new_table, print_json, print_table, say
from onceflow.cli.verify_options import FAULTS, PROCESS_LEVEL, REPORTS, add_parser, check
from onceflow.cli.verify_summary import print_ascii_json, print_summary
from onceflow.errors import ConfigError, OnceflowError

if TYPE_CHECKING:
    from onceflow.verify.brokers import Brokers
    from onceflow.verify.history import History
    from onceflow.verify.verdict import Verdict

__all__ = ["add_parser", "interruptible", "run"]

SEED_MAX: Final = 1_000_000


def run(args: argparse.Namespace) -> int:
    if args.list_faults:
        return _list_faults(as_json=args.json)
    check(args)
    if args.seed is None:
        args.seed = random.randrange(SEED_MAX)
    if args.workload == "simulation":
        from onceflow.cli.verify_simulation import run_simulation

        return run_simulation(args)
    return _run_workloads(args)


def _list_faults(*, as_json: bool) -> int:
    from onceflow.verify.nemesis import DISK, JOB, NETWORK, PROCESS, UNGUARDED

    groups = {
        "processes": PROCESS,
        "network": NETWORK,
        "our broker's disk": DISK,
        "only with --only": UNGUARDED,
        "spark, only with --only": JOB,
    }
    if as_json:
        return print_json(groups)
    table = new_table("kind", of="left", what_happens="left")
    for name, kinds in groups.items():
        for kind, words in kinds.items():
            table.add_row(kind, name, words)
    print_table(table)
    return 0


# Runs


def _run_workloads(args: argparse.Namespace) -> int:
    names = PROCESS_LEVEL if args.workload == "all" else (args.workload,)
    folders = {name: _folder(args, name) for name in names}
    verdicts = []
    with interruptible(f"seed {args.seed}"):
        for name, folder in folders.items():
            verdicts.append(_run_one(args, name, folder))
    if args.json:
        print_ascii_json(verdicts[0] if args.workload != "all" else verdicts)
    return 0 if all(each["clean"] for each in verdicts) else 1


def _folder(args: argparse.Namespace, workload: str) -> Path:
    """A folder that holds no other run: histories must not be mixed."""
    if args.report is not None:
        chosen: Path = args.report / workload if args.workload == "all" else args.report
        if os.path.exists(chosen / "history"):  # Path.exists raises where a name is too long
            raise ConfigError(f"{chosen} holds another run: choose another folder with --report, or remove it")
        return make_folder(chosen, "--report")
    first = REPORTS / f"{workload.rpartition(':')[2]}-{args.seed}"
    numbered = (first.with_name(f"{first.name}-{number}") for number in range(2, 10_000))
    return make_folder(next(each for each in (first, *numbered) if not each.exists()), "--report")


def _run_one(args: argparse.Namespace, workload: str, folder: Path) -> dict[str, Any]:
    from onceflow.verify import report
    from onceflow.verify.display import display_for
    from onceflow.verify.runner import RunSettings
    from onceflow.verify.runner import run as run_workload

    settings = RunSettings(
        workload=workload,
        seed=args.seed,
        folder=folder,
        brokers=_brokers(args, folder),
        faults=FAULTS if args.faults is None and args.minutes is None else args.faults,
        minutes=args.minutes,
        client_config=dict(args.client_config),
        scale=args.scale,
        kinds=args.only,
        options=_options(args),
    )
    with display_for(is_silent=args.json, title=f"{workload}, seed {args.seed}") as display:
        verdict, history = _judged(lambda: run_workload(settings, display))
        display.stage("writing the report")
        page = report.write(folder, verdict, history, command=_command(args, workload))
    if verdict.is_clean:
        shutil.rmtree(folder / "broker", ignore_errors=True)  # records by the million, of no use to anybody
    if not args.json:
        print_summary(verdict, history, page, _command(args, workload))
    return {**verdict.to_json(), "report": str(page)}


def _judged(run_workload: Any) -> tuple[Verdict, History]:
    try:
        result: tuple[Verdict, History] = run_workload()
    except TimeoutError as problem:
        raise OnceflowError(f"there is no verdict: {problem}") from problem
    return result


def _brokers(args: argparse.Namespace, folder: Path) -> Brokers:
    from onceflow.verify.brokers import ControlledBrokers, EmbeddedBrokers, GivenBrokers

    config = dict(args.client_config)
    if args.bootstrap is None:
        return EmbeddedBrokers(folder / "broker")
    if args.control is not None:
        return ControlledBrokers(args.bootstrap, args.control, config)
    return GivenBrokers(args.bootstrap, config)


def _options(args: argparse.Namespace) -> dict[str, str]:
    given = dict(args.option)
    if args.workload == "pipeline":
        given |= {"command": args.command, "instances": str(args.instances or 1), "ordered": str(args.ordered).lower()}
    return given


def _command(args: argparse.Namespace, workload: str) -> str:
    """What makes the same run again. Values of --client-config may be secrets, and reports are passed on."""
    words = ["onceflow", "verify", workload, "--seed", str(args.seed)]
    if args.faults is not None or args.minutes is None:
        words += ["--faults", str(FAULTS if args.faults is None else args.faults)]
    if args.minutes is not None:
        words += ["--minutes", f"{args.minutes:g}"]
    if args.only is not None:
        words += ["--only", ",".join(sorted(args.only))]
    if args.scale != 1:
        words += ["--scale", f"{args.scale:g}"]
    given = {"--command": args.command, "--instances": args.instances}
    given |= {"--bootstrap": args.bootstrap, "--control": args.control}
    for option, value in given.items():
        words += [option, str(value)] if value is not None else []
    words += ["--ordered"] if args.ordered else []
    for name, value in args.option:
        words += ["--option", f"{name}={value}"]
    for name, _ in args.client_config:
        words += ["--client-config", f"{name}=..."]
    return shlex.join(words)


@contextmanager
def interruptible(what: str) -> Iterator[None]:
    """SIGTERM is taken like Ctrl-C. A second one would disturb the healing and waits; a third ends it all the same."""
    import signal

    received = 0

    def interrupt(*_: object) -> None:
        nonlocal received
        received += 1
        if received != 2:
            raise KeyboardInterrupt
        say("onceflow: workers are being stopped; once more ends at once", err=True)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        say(f"onceflow: interrupted ({what}); everything was stopped, nothing was judged", err=True)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
