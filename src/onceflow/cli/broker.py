"""`onceflow broker`: run a broker in the foreground."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from onceflow.config import BROKER_SETTINGS, BrokerConfig, parse_assignments
from onceflow.errors import ConfigError

__all__ = ["add_parser", "run"]

HTTP_DEFAULT = "127.0.0.1:9644"
_EPILOG = """\
examples:
  onceflow broker                                   listen on 127.0.0.1:9092, data in ./onceflow-data
  onceflow broker --listen 127.0.0.1:0 --data /tmp/d  a free port, which is printed
  onceflow broker --http                            with a page on http://127.0.0.1:9644
  onceflow broker --durability os --set num.partitions=4 --set log.retention.hours=24

Settings have Apache Kafka's names; --list-settings shows them all. The broker prints one line when it is ready, and
stops cleanly on SIGTERM and Ctrl-C.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "broker",
        help="run a broker that any Kafka client can use",
        description="Run a durable single-node broker that speaks Kafka's protocol.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:9092",
        metavar="HOST:PORT",
        help="address to listen on; port 0 picks a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--data",
        default="onceflow-data",
        metavar="DIR",
        type=Path,
        help="directory of the logs; created if missing (default: %(default)s)",
    )
    parser.add_argument(
        "--durability",
        choices=("fsync", "os"),
        default="fsync",
        help="fsync: an acknowledged write survives loss of power; os: it survives the death of this "
        "process, and the kernel flushes when it likes, as with Apache Kafka (default: %(default)s)",
    )
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting under Kafka's name; may be given many times",
    )
    parser.add_argument(
        "--http",
        nargs="?",
        const=HTTP_DEFAULT,
        metavar="HOST:PORT",
        help=f"serve a page to look at, and metrics for Prometheus at /metrics (without an address: on {HTTP_DEFAULT})",
    )
    parser.add_argument("--list-settings", action="store_true", help="print all settings and exit")
    parser.add_argument("--stop-with-stdin", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="warning",
        help="what to report on stderr (default: %(default)s)",
    )


def parse_listen(text: str, option: str = "--listen") -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{option} takes HOST:PORT, not {text!r}.")
    return host.strip("[]") or "127.0.0.1", int(port)


def run(args: argparse.Namespace) -> int:
    if args.list_settings:
        for setting in sorted(BROKER_SETTINGS.values(), key=lambda s: s.name):
            print(f"{setting.name}={setting.default}\n    {setting.doc}")
        return 0
    logging.basicConfig(
        level=args.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    host, port = parse_listen(args.listen)
    config = BrokerConfig(given=parse_assignments(args.settings), fsync=args.durability == "fsync")
    from onceflow.broker import server  # only now: a mistake on the command line need not wait for it

    http = parse_listen(args.http, "--http") if args.http else None
    server.run(host, port, args.data, config, stop_with_stdin=args.stop_with_stdin, http=http)
    return 0
