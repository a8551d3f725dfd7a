"""`onceflow broker` on a disk that fails on demand: `python -m onceflow.verify.faulty_broker --faults DIR ...`.

It takes those options of `onceflow broker` that `onceflow.Broker` gives it, and is otherwise the same broker.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from onceflow.broker import server
from onceflow.broker.listeners import Listener
from onceflow.broker.log_lines import log_to_stderr
from onceflow.client.addresses import parse_bootstrap
from onceflow.config import BrokerConfig, parse_assignments
from onceflow.errors import OnceflowError
from onceflow.signals import restore_signals
from onceflow.verify.faulty_files import FaultyFiles


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="onceflow.verify.faulty_broker")
    parser.add_argument("--faults", type=Path, required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--durability", choices=("fsync", "os"), default="fsync")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--stop-with-stdin", action="store_true")
    return parser.parse_args()


def main() -> int:
    restore_signals()
    options = _options()
    log_to_stderr("WARNING")
    [address] = parse_bootstrap(options.listen)
    config = BrokerConfig(given=parse_assignments(options.settings), fsync=options.durability == "fsync")
    try:
        server.run(
            [Listener(*address)],
            options.data,
            config,
            stop_with_stdin=options.stop_with_stdin,
            files=FaultyFiles(options.faults),
        )
    except OnceflowError as error:
        print(f"onceflow: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
