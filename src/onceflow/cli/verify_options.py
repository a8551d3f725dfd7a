"""The command line of `onceflow verify`: its options, and what is wrong with them before anything is started."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import Any, Final

from onceflow.cli.common import add_client_config, name_and_value, whole_number
from onceflow.errors import ConfigError

__all__ = ["FAULTS", "PROCESS_LEVEL", "REPORTS", "RUNS", "add_parser", "check"]

WORKLOADS: Final = {
    "producers": "idempotent and transactional producers, and readers",
    "copy": "consume, transform, produce: many instances, rebalances",
    "spark": "a stateful Spark job through our source and sink (needs onceflow[spark] and Java)",
    "all": "these three, one after the other",
    "pipeline": "a pipeline of your own, as a command: every record of its input must come out once",
    "simulation": "our broker's core with a simulated clock, disk and network: thousands of runs a minute",
}
PROCESS_LEVEL: Final = ("producers", "copy", "spark")
FAULTS: Final = 20
RUNS: Final = 1000
REPORTS: Final = Path("onceflow-verify")

EXAMPLES = """\
workloads:
{workloads}

examples:
  onceflow verify producers                             our broker, 20 faults, a report
  onceflow verify copy --seed 42 --faults 200
  onceflow verify copy --only kill,zombie               these kinds of faults only (see --list-faults)
  onceflow verify all --minutes 10
  onceflow verify producers --bootstrap kafka:9092      a cluster of yours: faults in its clients and on the way to it
  onceflow verify copy --bootstrap kafka:9092 --control ./brokers.sh
                                                        and in its brokers: ./brokers.sh kill 2, ./brokers.sh start 2
  onceflow verify pipeline --command 'python my_job.py' --instances 2
  onceflow verify my_package.my_module:MyWorkload --option speed=high
  onceflow verify producers --json | jq .anomalies
  onceflow verify simulation --runs 10000
  onceflow verify simulation --seed 4711 --replay       one run again, step by step

It works in topics of its own, whose names begin with verify-. Do not point it at brokers that others rely on.
The guide is docs/verify.md.
"""


def add_parser(subparsers: Any) -> None:
    described = "\n".join(f"  {name:<12}{text}" for name, text in WORKLOADS.items())
    parser = subparsers.add_parser(
        "verify",
        help="prove exactly-once under faults",
        description="Run a workload while processes are killed, paused and replaced, connections cut and answers lost; "
        "then look through everything that happened for what exactly-once forbids. Writes a report; the exit code is 0 "
        "only if nothing was found.",
        epilog=EXAMPLES.format(workloads=described),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "workload",
        metavar="WORKLOAD",
        nargs="?",
        help=f"{', '.join(WORKLOADS)}, or one of your own as PACKAGE.MODULE:CLASS",
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON, and nothing else")
    parser.add_argument("--report", metavar="DIR", type=Path, help=f"for the report (default: {REPORTS}/WORKLOAD-SEED)")
    parser.add_argument("--seed", metavar="S", type=whole_number(0), help="of the plan of faults (default: a new one)")
    _add_faults(parser)
    _add_brokers(parser)
    _add_own(parser)
    group = parser.add_argument_group("simulation")
    group.add_argument("--runs", metavar="N", type=whole_number(1), help=f"how many, from seed S up (default: {RUNS})")
    group.add_argument("--replay", action="store_true", help="one run, of --seed S, and what happened when")


def _add_faults(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("faults")
    group.add_argument(
        "--faults",
        metavar="N",
        type=whole_number(0),
        help=f"how many (default: {FAULTS}, or as many as --minutes gives)",
    )
    group.add_argument("--minutes", metavar="M", type=_positive, help="how long; with --faults, what comes first")
    group.add_argument("--only", metavar="KIND[,KIND]", type=_kinds, help="limit the faults to these kinds")
    group.add_argument("--list-faults", action="store_true", help="say which kinds there are, and exit")
    group.add_argument("--scale", metavar="X", type=_positive, default=1.0, help="how much load (default: 1)")


def _add_brokers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("brokers (default: a broker of our own is started)")
    group.add_argument("--bootstrap", metavar="HOST:PORT", help="the address of any Kafka, several with commas between")
    add_client_config(group)
    group.add_argument(
        "--control",
        metavar="COMMAND",
        help="how to strike the brokers at --bootstrap: called as COMMAND kill|stop|start|pause|resume NODE",
    )


def _add_own(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a pipeline or a workload of your own")
    group.add_argument(
        "--command",
        metavar="COMMAND",
        help="of the pipeline: it finds ONCEFLOW_BOOTSTRAP, ONCEFLOW_INPUT, ONCEFLOW_OUTPUT, ONCEFLOW_INSTANCE and "
        'ONCEFLOW_FOLDER in its environment, and keeps the "id" of every record',
    )
    group.add_argument("--instances", metavar="N", type=whole_number(1), help="how many of it run (default: 1)")
    group.add_argument("--ordered", action="store_true", help="the pipeline keeps the order of a partition")
    group.add_argument(
        "--option",
        metavar="NAME=VALUE",
        type=name_and_value,
        action="append",
        default=[],
        help="for copy (group=eager|cooperative|consumer), spark (master=...) or a workload of your own "
        "(Stage.options); may be repeated",
    )


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _kinds(text: str) -> frozenset[str]:
    from onceflow.verify.nemesis import KINDS, ON_REQUEST

    kinds = [each.strip() for each in text.split(",")]
    for kind in kinds:
        if kind not in (*KINDS, *ON_REQUEST):
            near = difflib.get_close_matches(kind, (*KINDS, *ON_REQUEST), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(KINDS)}"
            raise argparse.ArgumentTypeError(f"{kind!r} is not a kind of fault{hint}")
    return frozenset(kinds)


# Mistakes, before anything is started


def check(args: argparse.Namespace) -> None:
    if args.workload is None:
        raise ConfigError(f"what is to be verified? There is {', '.join(WORKLOADS)} (see onceflow verify --help)")
    _check_pipeline(args)
    if args.workload == "simulation":
        _check_simulation(args)
        return
    if args.runs is not None or args.replay:
        raise ConfigError("--runs and --replay are for the simulation only: processes never do the same twice")
    if args.control is not None and args.bootstrap is None:
        raise ConfigError("--control needs --bootstrap: the broker that is started without it is controlled already")
    if args.bootstrap is not None:
        from onceflow.client.addresses import parse_bootstrap

        parse_bootstrap(args.bootstrap)
    _check_kinds(args)
    _check_workload(args.workload)


def _check_workload(name: str) -> None:
    """It can be loaded, and has what it needs."""
    from onceflow.verify.workloads import workload_named

    if ":" in name and "" not in sys.path:
        sys.path.insert(0, "")  # one of the user's own is looked for where the user is, as `python -m` does
    if name in ("spark", "all"):
        from onceflow.verify.workloads.spark import require_spark

        require_spark()
    if name != "all":
        workload_named(name)


def _check_pipeline(args: argparse.Namespace) -> None:
    if args.workload == "pipeline" and not args.command:
        raise ConfigError("what is the pipeline? Give its command: --command 'python my_job.py'")
    for name in ("command", "instances", "ordered"):
        if args.workload != "pipeline" and getattr(args, name):
            raise ConfigError(f"--{name} is for the workload 'pipeline' only")
    if args.option and args.workload not in ("copy", "spark") and ":" not in args.workload:
        raise ConfigError("--option is for copy, spark and workloads of your own (PACKAGE.MODULE:CLASS) only")


def _check_simulation(args: argparse.Namespace) -> None:
    given = {
        "--bootstrap": args.bootstrap,
        "--control": args.control,
        "--client-config": args.client_config,
        "--faults": args.faults,
        "--minutes": args.minutes,
        "--only": args.only,
    }
    for name, value in given.items():
        if value:
            raise ConfigError(f"{name} means nothing to the simulation: it has no processes and no network")
    if args.replay and args.seed is None:
        raise ConfigError("--replay needs the --seed of the run")
    if args.replay and args.runs is not None:
        raise ConfigError("--replay is one run, --runs are many: give one of them")


def _check_kinds(args: argparse.Namespace) -> None:
    """At least one of the kinds that were asked for must be possible, or the run would wait for faults for ever."""
    from onceflow.verify.nemesis import DISK, JOB, NETWORK

    if args.only is None:
        return
    if (job := sorted(args.only & JOB.keys())) and args.workload != "spark" and ":" not in args.workload:
        raise ConfigError(f"{job[0]!r} befalls the Spark job of the workload spark: {args.workload} has no such fault")
    if args.bootstrap is not None and args.only <= DISK.keys():
        raise ConfigError("faults of the disk are made in our own broker only: leave out --bootstrap, or choose others")
    security = dict(args.client_config).get("security.protocol", "").upper()
    if security.endswith("SSL") and args.only <= NETWORK.keys() | DISK.keys():
        raise ConfigError("faults of the network need connections that can be read, and these are encrypted")
