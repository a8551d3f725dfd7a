"""`onceflow alerts`: what is wrong right now, what it means, and what to do.

Two ways to look. A broker's page (`--http`) is asked for what it knows: it has been looking since it was started, from
within. Any other Kafka (`--bootstrap`) is looked at from here, for as long as `--for` says: what needs longer to be
sure, or cannot be seen from outside, is said and not passed over.

Exit codes: 0 nothing fires; 1 something does; 2 the command line was wrong; 3 it could not look; 130 interrupted. What
is only pending does not count.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from onceflow.cli.alerts_display import print_event, print_look, print_rules
from onceflow.cli.alerts_look import Look, ask_page
from onceflow.cli.common import add_client_config, connection, name_and_value
from onceflow.cli.durations import duration_ms
from onceflow.cli.output import say
from onceflow.client.addresses import BOOTSTRAP_VARIABLE
from onceflow.digits import whole_number_of
from onceflow.errors import ConfigError, OnceflowError
from onceflow.monitor.rules import Alerts, Thresholds

__all__ = ["add_parser", "run"]

EXIT_FIRING = 1
EXIT_COULD_NOT_LOOK = 3
DEFAULT_FOR_MS = 10_000
DEFAULT_PAGE = "127.0.0.1:9644"

EXAMPLES = f"""\
examples:
  onceflow alerts                                     ask the page of a broker on this machine ({DEFAULT_PAGE})
  onceflow alerts --http 10.0.0.7:9644 --json         another one, for a script
  onceflow alerts --bootstrap kafka:9092              any Kafka: look at it for ten seconds
  onceflow alerts --bootstrap kafka:9092 --watch      go on, and print what fires and what clears
  onceflow alerts --rules                             all rules and their thresholds
  onceflow alerts --prometheus --set lso_stuck_ms=5m  Prometheus' rule file, with another threshold

Exit codes: 0 nothing fires; 1 something does; 2 the command line was wrong; 3 it could not look; 130 interrupted.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "alerts",
        help="what is wrong right now, and what to do",
        description="Show what is wrong with a cluster right now, what it means, and what to do.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    place = parser.add_argument_group("where to look").add_mutually_exclusive_group()
    place.add_argument(
        "--http",
        metavar="HOST:PORT",
        help=f"a page of onceflow's, of a broker or of onceflow dashboard (default: {DEFAULT_PAGE})",
    )
    place.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        help=f"any Kafka, several addresses with commas between (default: ${BOOTSTRAP_VARIABLE}, without --http)",
    )
    add_client_config(parser)
    _add_ways(parser)


def _add_ways(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="for_ms",
        metavar="DURATION",
        type=duration_ms,
        help="with --bootstrap: look for so long before saying what is found (default: 10s)",
    )
    parser.add_argument(
        "--every",
        dest="every_ms",
        metavar="DURATION",
        type=duration_ms,
        default=2000,
        help="look so often (default: 2s)",
    )
    for option, words in (
        ("--watch", "go on, and print what fires and what clears, until Ctrl-C"),
        ("--json", "print JSON, for scripts; with --watch one object per line"),
        ("--rules", "print the rules and their thresholds, and look at nothing"),
        ("--prometheus", "print the rules as a rule file for Prometheus, and look at nothing"),
    ):
        parser.add_argument(option, action="store_true", help=words)
    parser.add_argument(
        "--set",
        dest="figures",
        metavar="NAME=VALUE",
        type=_figure,
        action="append",
        default=[],
        help="another threshold (--rules has the names), with --bootstrap, --rules or --prometheus; may be repeated",
    )


def _figure(text: str) -> tuple[str, float]:
    """NAME=VALUE, where a time may also be written as a duration."""
    name, value = name_and_value(text)
    if name.endswith("_ms") and whole_number_of(value) is None:
        return name, duration_ms(value)
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number") from None


def run(args: argparse.Namespace) -> int:
    thresholds = Thresholds().changed(dict(args.figures))
    if args.prometheus:
        from onceflow.monitor.rules_prometheus import rule_file

        sys.stdout.write(rule_file(thresholds))
        return 0
    if args.rules:
        return print_rules(thresholds, as_json=args.json)
    _check(args)
    try:
        with _looks(args, thresholds) as look:
            return _watch(look, args) if args.watch else _once(look, args)
    except ConfigError:
        raise
    except OnceflowError as problem:
        say(f"onceflow: {problem}", err=True)
        return EXIT_COULD_NOT_LOOK


def _asks_page(args: argparse.Namespace) -> bool:
    return args.http is not None or not (args.bootstrap or os.environ.get(BOOTSTRAP_VARIABLE))


def _check(args: argparse.Namespace) -> None:
    if not args.every_ms:
        raise ConfigError("--every has to be more than nothing")
    if _asks_page(args):
        if args.figures:
            raise ConfigError("a page has its own thresholds: --set goes with --bootstrap, --rules or --prometheus")
        if args.for_ms is not None or args.client_config:
            raise ConfigError("--for and --client-config go with --bootstrap: a page has been looking already")


@contextmanager
def _looks(args: argparse.Namespace, thresholds: Thresholds) -> Iterator[Callable[[], Look]]:
    if _asks_page(args):
        yield lambda: ask_page(args.http or DEFAULT_PAGE)
        return
    from onceflow.client.watching import ClusterWatch

    alerts = Alerts(thresholds)
    with closing(ClusterWatch(connection(args))) as watch:

        def look() -> Look:
            snapshot = watch.take()
            alerts.see(snapshot)
            return Look.from_outside(snapshot, alerts)

        yield look


def _once(look: Callable[[], Look], args: argparse.Namespace) -> int:
    found = look() if _asks_page(args) else _look_for_a_while(look, args)
    print_look(found, as_json=args.json)
    return EXIT_FIRING if any(each.firing for each in found.alerts) else 0


def _look_for_a_while(look: Callable[[], Look], args: argparse.Namespace) -> Look:
    """The first time at once, the last time when the time is over."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    for_ms = DEFAULT_FOR_MS if args.for_ms is None else args.for_ms
    began = time.monotonic()
    columns = (TextColumn("looking"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("looking", total=for_ms)
        found = look()
        while (left_ms := for_ms - (time.monotonic() - began) * 1000) > 0:
            time.sleep(min(left_ms, args.every_ms) / 1000)
            found = look()
            progress.update(bar, completed=(time.monotonic() - began) * 1000)
    return found


def _watch(look: Callable[[], Look], args: argparse.Namespace) -> int:
    """Until Ctrl-C. The first look has to succeed; later, one that fails is said once and tried again."""
    before = look()
    for each in before.firing.values():
        print_event(before.at_ms, "fires", each, as_json=args.json)
    if not before.firing and not args.json:
        say("Nothing fires. Watching; Ctrl-C ends it.", err=True)
    is_away = False
    while True:
        time.sleep(args.every_ms / 1000)
        try:
            now = look()
        except OnceflowError as problem:
            if not is_away:
                say(f"onceflow: {problem} Trying again.", err=True)
            is_away = True
            continue
        is_away = False
        _print_changes(before, now, args.json)
        before = now


def _print_changes(before: Look, now: Look, as_json: bool) -> None:
    for key, each in before.firing.items():
        if key not in now.firing:
            print_event(now.at_ms, "clears", each, as_json=as_json)
    for key, each in now.firing.items():
        if key not in before.firing:
            print_event(now.at_ms, "fires", each, as_json=as_json)
