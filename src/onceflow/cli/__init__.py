"""The `onceflow` command.

Each sub-command is a module with `add_parser(subparsers)` and `run(args) -> exit code`, and only the module
of the command that was asked for is imported: `onceflow broker` does not pay for confluent_kafka and rich,
`onceflow topics` does not pay for the broker.

Exit codes: 0 done; 1 it did not work; 2 the command line was wrong, and nothing was started or changed; 130
interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn, Protocol

from onceflow.cli.output import say
from onceflow.errors import ConfigError, OnceflowError
from onceflow.signals import restore_signals

__all__ = ["main"]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count

COMMANDS = {
    "broker": ("onceflow.cli.broker", "run a broker"),
    "topics": ("onceflow.cli.topics", "list, describe, create and delete topics"),
    "produce": ("onceflow.cli.produce", "send lines as messages"),
    "consume": ("onceflow.cli.consume", "print the messages of a topic"),
    "groups": ("onceflow.cli.groups", "consumer groups: members, lag, offsets"),
    "txns": ("onceflow.cli.txns", "list, describe and abort transactions"),
    "users": ("onceflow.cli.users", "who may log in: add, list and delete users"),
    "acls": ("onceflow.cli.acls", "who may do what: add, list and delete access rules"),
    "dashboard": ("onceflow.cli.dashboard", "a page that shows a cluster, and its metrics"),
    "alerts": ("onceflow.cli.alerts", "what is wrong right now, and what to do"),
    "doctor": ("onceflow.cli.doctor", "check a cluster, client settings or a Spark job for exactly-once"),
    "run": ("onceflow.cli.run", "run a pipeline: orders, viewing, pricing, or one of yours"),
    "demo": ("onceflow.cli.demo", "a pipeline under faults, compared with what must come out"),
    "verify": ("onceflow.cli.verify", "prove exactly-once under faults"),
    "log": ("onceflow.cli.log_dump", "look into a broker's files"),
}

EXAMPLES = """\
examples:
  onceflow broker --data ./data                      a durable broker on 127.0.0.1:9092
  onceflow topics create orders --partitions 3
  printf 'k1:one\\nk2:two\\n' | onceflow produce orders --key-separator :
  onceflow consume orders --keys --offsets           all there is, then exit
  onceflow consume orders --from end --follow        what comes from now on
  onceflow topics describe orders --json | jq .
  onceflow groups describe billing                   who reads what, and how far behind
  onceflow txns list --state open                    transactions that are going on
  onceflow run orders --bootstrap kafka:9092         a pipeline, exactly once; docs/your-own-pipeline.md
  onceflow verify producers --faults 50              break everything, and see that nothing was lost or doubled
  onceflow broker --http                             with a page to look at: http://127.0.0.1:9644
  onceflow alerts                                    what is wrong right now, and what to do
  onceflow doctor --client producer.properties       is it fit for exactly-once?

`onceflow COMMAND --help` explains each command. The client commands work with any Kafka broker: give its
address with --bootstrap, or once and for all in the environment variable ONCEFLOW_BOOTSTRAP.
"""


class Command(Protocol):
    """What the module of a sub-command offers."""

    def add_parser(self, subparsers: Any) -> Any: ...

    def run(self, args: argparse.Namespace) -> int: ...


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence: usage is a `--help` away and does not bury the mistake."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


class ShowVersion(argparse.Action):
    """Reads the package's metadata only when asked: that costs more than all the rest of the command line."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        say(f"onceflow {version('onceflow')}")
        parser.exit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Mistakes and failures are one sentence on stderr.

    Without `argv` it is what this process was started for, and takes care of the signals, too.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if argv is None:
            restore_signals()
        parser, module = _parser(arguments)
        args = parser.parse_args(arguments)
        _check_text(*vars(args).values())
        if module is None:
            parser.print_help(sys.stderr)
            return EXIT_USAGE
        return int(module.run(args))
    except SystemExit as done:  # argparse leaves this way, after --help as after a mistake
        return done.code if isinstance(done.code, int) else EXIT_USAGE
    except ConfigError as mistake:
        return _complain(mistake, EXIT_USAGE)
    except OnceflowError as failure:
        return _complain(failure, EXIT_FAILED)
    except ImportError as missing:
        from onceflow.extras import advice_for

        advice = advice_for(missing)
        if advice is None:
            raise
        return _complain(ConfigError(advice), EXIT_USAGE)
    except BrokenPipeError:
        # Whoever read our output has seen enough (`| head`): nothing went wrong. The interpreter would still
        # flush stdout on its way out and complain, so let it flush into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _check_text(*given: object) -> None:
    """Whatever is not the path of a file is sent to somebody as UTF-8; librdkafka does not survive anything else."""
    for each in given:
        if isinstance(each, str):
            try:
                each.encode()
            except UnicodeEncodeError:
                raise ConfigError(f"{each!r} is not text in UTF-8") from None
        elif isinstance(each, list | tuple):
            _check_text(*each)


def _complain(problem: OnceflowError, code: int) -> int:
    say(f"onceflow: {problem}", err=True)
    return code


def _parser(arguments: Sequence[str]) -> tuple[Parser, Command | None]:
    """A parser that knows every command by name and the chosen one in detail."""
    parser = Parser(
        prog="onceflow",
        description="A durable single-node Kafka broker with exactly-once writes, and tools for any broker.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    # No option of the main parser takes a value, so the first word without a dash is the command.
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    command: Command | None = None
    for name, (path, summary) in COMMANDS.items():
        if name == chosen:
            module: ModuleType = importlib.import_module(path)
            command = module
            module.add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    return parser, command
