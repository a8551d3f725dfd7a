"""`onceflow demo`: a reference pipeline with generated input, under faults, compared with its oracle.

It is a run of `onceflow verify` (the same brokers, nemesis, network and report) whose verdict is a comparison: every
record that was written, the state afterwards, and what readers could see meanwhile. Progress goes to stderr, the result
to stdout. Exit codes: 0 only if all is exactly as it must be; 1 it is not, or it could not run; 2 the command line was
wrong; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import random
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onceflow.cli.common import add_client_config, counted, make_folder, whole_number
from onceflow.cli.durations import trigger
from onceflow.cli.output import new_table, print_table, say, say_lines
from onceflow.errors import ConfigError, OnceflowError
from onceflow.pipelines.reference import REFERENCES
from onceflow.pipelines.tables import SQL_VARIABLE

if TYPE_CHECKING:
    from onceflow.verify.brokers import Brokers
    from onceflow.verify.runner import RunSettings
    from onceflow.verify.verdict import Verdict

__all__ = ["add_parser", "run"]

RECORDS: Final = 40_000
FAULTS: Final = 6
SEED_MAX: Final = 1_000_000
FOLDERS: Final = Path("onceflow-demo")
LANDED: Final = "landed.db"
"""In the run's folder, for --sql sqlite. It stays there."""
SHOWN_MAX: Final = 6
COMPARED: Final = ("records", "batches", "topics", "state", "looks", "reads")
BULKY: Final = ("broker", "spark")
"""Parts of a run's folder that nobody needs once all was right."""

EXAMPLES = """\
pipelines:
{pipelines}

examples:
  onceflow demo orders                                  our broker, 40,000 records, 6 faults: under two minutes
  onceflow demo orders --faults 0                       just the pipeline
  onceflow demo pricing --records 200000 --faults 20
  onceflow demo viewing --bootstrap kafka:9092          on a Kafka of yours; its brokers are left alone
  onceflow demo orders --bootstrap kafka:9092 --control ./brokers.sh
                                                        and they are struck, too: ./brokers.sh kill 2
  onceflow demo orders --sql sqlite                     and into tables of a SQLite file in the run's folder
  ONCEFLOW_SQL=postgresql://me:secret@db/test onceflow demo orders --sql env
  onceflow demo orders --json | jq .topics

what happens:
  Input is generated from the seed, with bad, late and duplicate records in it, and written to topics of the demo's own
  (their names begin with verify-). Spark runs the pipeline, each micro-batch one transaction. Meanwhile executors, the
  driver and the broker are killed, answers are lost, and a driver is replaced while it sleeps and wakes up again. Then
  an oracle, a plain Python program, says what must have been written, and everything is compared: each topic, each
  micro-batch, the state, and what readers could see at any moment. With --sql also each row of each table, and what
  queries could see; tables of a database of yours are dropped in the end if all was right.

It needs Java 17 and pip install 'onceflow[spark]'. Do not point it at brokers that others rely on.
"""


def add_parser(subparsers: Any) -> None:
    described = "\n".join(f"  {name:<10}{text}" for name, text in REFERENCES.items())
    parser = subparsers.add_parser(
        "demo",
        help="a pipeline under faults, compared with what must come out",
        description="Generate input, run a pipeline, kill what can be killed, and compare the outcome with an oracle. "
        "The exit code is 0 only if everything is exactly as it must be.",
        epilog=EXAMPLES.format(pipelines=described),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pipeline", metavar="PIPELINE", nargs="?", help=", ".join(REFERENCES))
    parser.add_argument(
        "--records", metavar="N", type=whole_number(1), default=RECORDS, help=f"of input (default: {RECORDS:,})"
    )
    parser.add_argument(
        "--rate", metavar="N", type=whole_number(1), help="records of input per second at most (default: no limit)"
    )
    parser.add_argument(
        "--faults", metavar="N", type=whole_number(0), default=FAULTS, help=f"how many (default: {FAULTS})"
    )
    parser.add_argument(
        "--executors",
        action=argparse.BooleanOptionalAction,
        help="run executors as processes of their own, and strike them, too (default: from 10 faults on)",
    )
    parser.add_argument("--seed", metavar="S", type=whole_number(0), help="of input and faults (default: a new one)")
    parser.add_argument(
        "--trigger",
        metavar="TIME",
        type=trigger,
        help="from one micro-batch to the next, as 500ms or 1s (default: no pause)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else")
    _add_places(parser)


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="any Kafka (default: a broker of our own is started)")
    parser.add_argument(
        "--control",
        metavar="COMMAND",
        help="how to strike the brokers at --bootstrap: called as COMMAND kill|stop|start|pause|resume NODE",
    )
    add_client_config(parser)
    parser.add_argument(
        "--sql",
        metavar="URL",
        help="a database to land in: its address, sqlite for a file in the run's folder, or env for the address in "
        f"${SQL_VARIABLE}, where nobody else can read the password (default: none)",
    )
    parser.add_argument(
        "--checkpoint", metavar="DIR", type=Path, help="a new folder for Spark's checkpoint, which stays there"
    )
    parser.add_argument(
        "--report", metavar="DIR", type=Path, help=f"a new folder for the report (default: {FOLDERS}/PIPELINE-SEED)"
    )


# The run


def run(args: argparse.Namespace) -> int:
    _check(args)
    from onceflow.verify.workloads.spark import require_spark

    require_spark()  # before anything of it is imported
    if args.seed is None:
        args.seed = random.randrange(SEED_MAX)
    folder = _folder(args)
    if args.checkpoint is not None:
        make_folder(args.checkpoint, "--checkpoint")
    _prepare_database(args, folder)
    from onceflow.cli.verify import interruptible

    with interruptible(f"seed {args.seed}"):
        verdict, page = _run(args, folder)
    result = _result(verdict, folder, page)
    if verdict.is_clean:
        _tidy(folder, keeps_checkpoint=args.checkpoint is not None)
    if args.json:
        from onceflow.cli.verify_summary import print_ascii_json

        print_ascii_json(result)
    else:
        _print(args, verdict, result)
    return 0 if verdict.is_clean else 1


def _run(args: argparse.Namespace, folder: Path) -> tuple[Verdict, Path]:
    from onceflow.cli.demo_display import demo_display
    from onceflow.verify import report
    from onceflow.verify.runner import run as run_workload

    title = f"{args.pipeline}, {args.records:,} records, {counted(args.faults, 'fault')}, seed {args.seed}"
    settings = _settings(args, folder)
    with demo_display(is_silent=args.json, title=title) as display:
        try:
            verdict, history = run_workload(settings, display)
        except TimeoutError as problem:
            raise OnceflowError(f"there is no verdict: {problem}") from problem
        display.stage("writing the report")
        return verdict, report.write(folder, verdict, history, command=_command(args))


def _settings(args: argparse.Namespace, folder: Path) -> RunSettings:
    from onceflow.verify.runner import RunSettings
    from onceflow.verify.workloads.reference import ONE_PROCESS
    from onceflow.verify.workloads.spark import MASTER

    options = {"records": args.records, "faults": args.faults, "rate": args.rate, "trigger": args.trigger}
    options["master"] = None if args.executors is None else (MASTER if args.executors else ONE_PROCESS)
    options["checkpoint"] = None if args.checkpoint is None else args.checkpoint.absolute()
    options["sql"] = None if args.sql is None else "yes"
    options["keep_tables"] = "yes" if args.sql == "sqlite" else None
    return RunSettings(
        workload=args.pipeline,
        seed=args.seed,
        folder=folder,
        brokers=_brokers(args, folder),
        faults=args.faults,
        client_config=dict(args.client_config),
        options={name: str(value) for name, value in options.items() if value is not None},
    )


def _prepare_database(args: argparse.Namespace, folder: Path) -> None:
    """The address goes to those who need it by way of the environment: their command lines can be read by others."""
    if args.sql is None:
        return
    if args.sql == "sqlite":
        folder.mkdir(parents=True, exist_ok=True)
        os.environ[SQL_VARIABLE] = f"sqlite:///{folder / LANDED}"
    elif args.sql != "env":
        os.environ[SQL_VARIABLE] = args.sql


def _brokers(args: argparse.Namespace, folder: Path) -> Brokers:
    from onceflow.verify.brokers import ControlledBrokers, EmbeddedBrokers, GivenBrokers

    config = dict(args.client_config)
    if args.bootstrap is None:
        return EmbeddedBrokers(folder / "broker")
    if args.control is not None:
        return ControlledBrokers(args.bootstrap, args.control, config)
    return GivenBrokers(args.bootstrap, config)


def _command(args: argparse.Namespace) -> str:
    """What makes the same run again. Values of --client-config may be secrets, and reports are passed on."""
    words = ["onceflow", "demo", args.pipeline, "--records", args.records, "--faults", args.faults, "--seed", args.seed]
    for option in ("rate", "bootstrap", "control"):
        if (value := getattr(args, option)) is not None:
            words += [f"--{option}", value]
    if args.executors is not None:
        words.append("--executors" if args.executors else "--no-executors")
    if args.trigger is not None:
        words += ["--trigger", args.trigger.replace(" milliseconds", "ms")]
    if args.sql is not None:
        words += ["--sql", args.sql if args.sql in ("sqlite", "env") else _shown_database(args)]
    for name, _ in args.client_config:
        words += ["--client-config", f"{name}=..."]
    return shlex.join(map(str, words))


def _shown_database(args: argparse.Namespace) -> str:
    from onceflow.sinks.databases import open_database

    return open_database(args.sql).shown


# Mistakes, before anything is started


def _check_database(args: argparse.Namespace) -> None:
    if args.sql in (None, "sqlite"):
        return
    if args.sql == "env" and not os.environ.get(SQL_VARIABLE):
        raise ConfigError(f"--sql env: ${SQL_VARIABLE} is not set to the address of a database")
    from onceflow.pipelines.landing import knock
    from onceflow.pipelines.reference import reference_named

    url = os.environ[SQL_VARIABLE] if args.sql == "env" else args.sql
    try:
        knock(reference_named(args.pipeline).pipeline, url)
    except ConfigError as problem:
        raise ConfigError(f"--sql: {problem}") from None


def _check(args: argparse.Namespace) -> None:
    if args.pipeline is None:
        raise ConfigError(f"which pipeline? There is {', '.join(REFERENCES)} (see onceflow demo --help)")
    if args.pipeline not in REFERENCES:
        near = difflib.get_close_matches(args.pipeline, REFERENCES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(REFERENCES)}"
        raise ConfigError(f"there is no pipeline {args.pipeline!r}; {hint}")
    if args.control is not None and args.bootstrap is None:
        raise ConfigError("--control needs --bootstrap: the broker that is started without it is controlled already")
    for option in ("checkpoint", "report"):
        _check_new(f"--{option}", getattr(args, option))
    from onceflow.verify.workloads.spark import require_spark

    require_spark()
    if args.bootstrap is not None:
        from onceflow.client.addresses import parse_bootstrap
        from onceflow.client.settings import ClientSettings

        parse_bootstrap(args.bootstrap)
        ClientSettings(bootstrap=args.bootstrap, extra=dict(args.client_config)).knock()
    _check_database(args)


def _check_new(option: str, folder: Path | None) -> None:
    """What is in it would be of another run, whose topics this one does not have."""
    if folder is None:
        return
    try:
        is_new = not os.path.lexists(folder) or not os.listdir(folder)
    except OSError:
        is_new = False
    if not is_new:
        raise ConfigError(f"{option} {folder} is not an empty folder: choose another, or remove it")


def _folder(args: argparse.Namespace) -> Path:
    if args.report is not None:
        chosen: Path = args.report
        return make_folder(chosen.absolute(), "--report")
    first = FOLDERS.absolute() / f"{args.pipeline}-{args.seed}"
    numbered = (first.with_name(f"{first.name}-{number}") for number in range(2, 10_000))
    return make_folder(next(each for each in (first, *numbered) if not each.exists()), "--report")


def _tidy(folder: Path, *, keeps_checkpoint: bool) -> None:
    for name in (*BULKY, *(() if keeps_checkpoint else ("checkpoint",))):
        shutil.rmtree(folder / name, ignore_errors=True)


# The result


def _result(verdict: Verdict, folder: Path, page: Path) -> dict[str, Any]:
    compared: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError):  # a run that did not come to its end is not compared
        compared = json.loads((folder / "comparison.json").read_text())
    return {
        "exact": verdict.is_clean,
        "pipeline": verdict.workload,
        "seed": verdict.seed,
        "brokers": verdict.brokers,
        "seconds": round(verdict.seconds, 1),
        "faults": [f"{each.asked['kind']} {each.asked['target']}" for each in verdict.faults],
        **{name: compared.get(name) for name in COMPARED},
        **{name: compared[name] for name in ("tables", "queries") if name in compared},
        "differences": [f"{each.name}: {each.sentence}" for each in verdict.anomalies],
        "problems": list(verdict.problems),
        "report": str(page),
    }


def _print(args: argparse.Namespace, verdict: Verdict, result: dict[str, Any]) -> None:
    from onceflow.cli.verify_summary import print_verdict

    say(f"{args.pipeline}, seed {args.seed}, on {verdict.brokers}, {verdict.seconds:.0f} s")
    say()
    if result["topics"] is not None:
        _print_table(result)
        say()
        say(_seen(result))
        say()
    found = [*result["differences"], *result["problems"]]
    for sentence in found[:SHOWN_MAX]:
        say_lines(f"- {sentence}")
    if len(found) > SHOWN_MAX:
        say(f"- and {len(found) - SHOWN_MAX:,} more, in the report")
    print_verdict(_verdict_line(verdict), is_clean=verdict.is_clean)
    say(f"report  {result['report']}")
    say(f"again   {_command(args)}")


def _print_table(result: dict[str, Any]) -> None:

    columns = ("expected", "found", "missing", "twice", "wrong", "unexpected")
    table = new_table("topic", **dict.fromkeys(columns, "right"))
    tables = {f"table {name}": tally for name, tally in result.get("tables", {}).items()}
    rows = {**result["topics"], **tables, "state": result["state"]}
    for name, tally in rows.items():
        table.add_row(name, *(("not read", *[""] * 5) if tally is None else (f"{tally[each]:,}" for each in columns)))
    print_table(table)


def _seen(result: dict[str, Any]) -> str:
    """What readers could see meanwhile, in a sentence."""
    equal, between = result["looks"]["equal"], result["looks"]["between"]
    batches = "1 micro-batch" if result["batches"] == 1 else f"{result['batches']:,} micro-batches"
    return (
        f"{counted(result['records'], 'record')} in {batches}. Of {counted(equal + between, 'look')} at all outputs at "
        f"once, {equal:,} found the same micro-batches everywhere, and {between:,} the newest on its way."
        + _seen_in_tables(result)
    )


def _seen_in_tables(result: dict[str, Any]) -> str:
    if "queries" not in result:
        return ""
    whole, torn = result["queries"]["whole"], result["queries"]["torn"]
    return f" Of {counted(whole + torn, 'look')} at all tables at once, {whole:,} found whole micro-batches."


def _verdict_line(verdict: Verdict) -> str:
    under = f"under {counted(len(verdict.faults), 'fault')}"
    if verdict.is_clean:
        return f"EXACT {under}: outputs and state are what they must be, to the last record"
    if verdict.anomalies:
        return f"NOT EXACT {under}"
    return f"NOT PROVEN {under}: the run did not come to its end"
