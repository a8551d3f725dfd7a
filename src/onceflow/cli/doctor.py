"""`onceflow doctor`: checks a cluster, client settings and Spark jobs against what exactly-once needs.

Exit codes: 0 fit; 1 a fault was found (with --strict, or a warning); 2 the command line or a file was wrong; 3 no
fault, but something could not be looked at.
"""

from __future__ import annotations

import argparse
from typing import Any

from onceflow.cli.common import add_connection
from onceflow.cli.durations import duration_ms
from onceflow.cli.output import print_json
from onceflow.client.addresses import default_bootstrap
from onceflow.errors import ConfigError

__all__ = ["add_parser", "run"]

EXIT_FAULTS = 1
EXIT_NOT_SEEN = 3

EXAMPLES = """\
examples:
  onceflow doctor --bootstrap kafka:9092                   a cluster
  onceflow doctor --client producer.properties             settings of a client: .properties, JSON or YAML
  onceflow doctor --client kafka.json --role consumer --flavor librdkafka
  onceflow doctor --spark billing.py                       a Spark job: Python (read, not run) or settings
  onceflow doctor --bootstrap kafka:9092 --spark billing.py --client a.properties --client b.properties
                                                           all together, and compared with each other
  onceflow doctor --bootstrap kafka:9092 --topic orders --json

The cluster is looked at if --bootstrap is given, or no file. Nothing is changed anywhere, and no passwords are shown.
Verdicts: fault (exactly-once does not hold), warning (it holds until something else goes wrong), note, ok; unknown
where it was not possible to look. Exit code: 0 fit, 1 a fault (with --strict: or a warning), 2 the command line or a
file is wrong, 3 no fault but something could not be looked at.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="check a cluster, client settings or a Spark job for exactly-once",
        description="Check a cluster, client settings or a Spark job against what exactly-once needs: a verdict for "
        "each thing, why it matters, and the fix.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_subjects(parser.add_argument_group("what to look at"))
    parser.add_argument("--strict", action="store_true", help="warnings count as faults for the exit code")
    parser.add_argument("--verbose", action="store_true", help="show what is well, too")
    parser.add_argument("--json", action="store_true", help="print JSON, with everything")
    add_connection(parser)


def _add_subjects(what: Any) -> None:
    several: dict[str, Any] = {"action": "append", "default": []}
    what.add_argument("--client", metavar="FILE", **several, help="client settings; may be repeated")
    what.add_argument("--spark", metavar="FILE", **several, help="a Spark job; may be repeated")
    what.add_argument("--topic", metavar="TOPIC", **several, help="of the cluster, only this topic; may be repeated")
    what.add_argument(
        "--role",
        choices=("producer", "consumer", "streams"),
        help="whose settings --client has (default: what its settings tell)",
    )
    what.add_argument(
        "--flavor",
        choices=("java", "librdkafka", "auto"),
        default="auto",
        help="whose defaults apply to --client (default: what its settings tell)",
    )
    what.add_argument(
        "--processing-time",
        metavar="DURATION",
        type=duration_ms,
        help="the longest that a transaction, or the work between two polls, takes, for example 90s; timeouts are "
        "compared with it",
    )


def run(args: argparse.Namespace) -> int:
    from onceflow import doctor

    alone = not args.client and not args.spark
    bootstrap = args.bootstrap or (default_bootstrap() if alone else None)
    if bootstrap is None and (args.topic or args.client_config):
        raise ConfigError("--topic and --client-config are about a cluster: give --bootstrap as well")
    if not args.client and args.role is not None:
        raise ConfigError("--role is about a file of client settings: give --client as well")
    report = doctor.examine(
        bootstrap=bootstrap,
        kafka=dict(args.client_config),
        clients=args.client,
        jobs=args.spark,
        topics=args.topic,
        role=args.role,
        flavor=None if args.flavor == "auto" else args.flavor,
        processing_ms=args.processing_time,
    )
    if args.json:
        print_json(report.as_json(strict=args.strict))
    else:
        from onceflow.doctor.display import print_report

        print_report(report, verbose=args.verbose, strict=args.strict)
    if not report.is_fit(strict=args.strict):
        return EXIT_FAULTS
    return EXIT_NOT_SEEN if report.count(doctor.Verdict.UNKNOWN) else 0
