"""`onceflow broker`: run a broker in the foreground."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from onceflow.cli.output import say
from onceflow.config import BROKER_SETTINGS, DYNAMIC, STANDARD_AUTHORIZER, BrokerConfig, parse_assignments
from onceflow.digits import address_of
from onceflow.errors import ConfigError
from onceflow.properties import read_properties

__all__ = ["add_parser", "run"]

CHANGES = " Can be changed while the broker runs."
HTTP_DEFAULT = "127.0.0.1:9644"
_EPILOG = """\
examples:
  onceflow broker                                   listen on 127.0.0.1:9092, data in ./onceflow-data
  onceflow broker --listen 127.0.0.1:0 --data /tmp/d  a free port, which is printed
  onceflow broker --http                            with a page on http://127.0.0.1:9644
  onceflow broker --durability os --set num.partitions=4 --set log.retention.hours=24
  onceflow broker --listen SASL_SSL://0.0.0.0:9093 --set ssl.keystore.location=server.pem
                                                    for other machines: TLS and a login; see `onceflow users`
  onceflow broker --config server.properties        settings from a file, passwords among them

Settings have Apache Kafka's names; --list-settings shows them all. The broker prints one line for each listener when it
is ready, and stops cleanly on SIGTERM and Ctrl-C.
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
        action="append",
        default=[],
        metavar="[PROTOCOL://]HOST:PORT",
        help="address to listen on; port 0 picks a free one; PROTOCOL is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; "
        "may be given many times (default: 127.0.0.1:9092)",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen for other machines without asking who comes: whoever reaches the broker may do everything",
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
        help="a setting under Kafka's name; may be given many times, and wins over --config",
    )
    parser.add_argument(
        "--acls",
        action="store_true",
        help="let clients do only what access rules allow: `onceflow acls`; super.users may do everything",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="settings in a file, one NAME=VALUE per line, as in Kafka's server.properties",
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
    found = address_of(text)
    if found is None:
        raise ConfigError(f"{option} takes HOST:PORT, not {text!r}.")
    host, port = found
    return host or "127.0.0.1", port


def run(args: argparse.Namespace) -> int:
    if args.list_settings:
        for setting in sorted(BROKER_SETTINGS.values(), key=lambda s: s.name):
            say(f"{setting.name}={setting.default}")
            say(f"    {setting.doc}{CHANGES if setting.name in DYNAMIC else ''}")
        return 0
    from onceflow.broker.log_lines import log_to_stderr

    log_to_stderr(args.log_level.upper())
    config = BrokerConfig(given=_settings(args), fsync=args.durability == "fsync")
    from onceflow.broker import listeners, server  # only now: a mistake in a setting need not wait for them

    doors = listeners.listeners_of(config, args.listen)
    http = parse_listen(args.http, "--http") if args.http else None
    dangers = listeners.check_exposure(doors, config, args.insecure)
    if http is not None:
        dangers += listeners.check_page_exposure(http[0], args.insecure)
    for danger in dangers:
        say(f"onceflow: --insecure: {danger}.", err=True)
    server.run(doors, args.data, config, stop_with_stdin=args.stop_with_stdin, http=http)
    return 0


def _settings(args: argparse.Namespace) -> dict[str, str]:
    given = parse_assignments(args.settings)
    for name in given:
        if name in BROKER_SETTINGS and BROKER_SETTINGS[name].sensitive:
            raise ConfigError(
                f"{name} on the command line could be read by everybody on this machine: write it into a file that "
                f"only you can read, and name that with --config."
            )
    shorthand = {"authorizer.class.name": STANDARD_AUTHORIZER} if args.acls else {}
    return {**(read_properties(args.config) if args.config else {}), **given, **shorthand}
