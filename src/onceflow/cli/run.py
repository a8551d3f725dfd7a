"""`onceflow run`: a pipeline on real topics, until it is asked to end.

A line per micro-batch goes to stdout, everything else that is said to stderr. What Spark and its workers print goes to
a file beside the checkpoint: it is much, and hardly ever what one wants to know.

Ctrl-C and SIGTERM end it after the micro-batch that is running, with exit code 0. A second one does not wait: the
micro-batch is aborted, and the next run does it again.
"""

from __future__ import annotations

import argparse
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onceflow.cli.common import add_client_config, make_folder, name_and_value, whole_number
from onceflow.cli.durations import trigger
from onceflow.cli.output import say
from onceflow.client.addresses import BOOTSTRAP_VARIABLE
from onceflow.errors import ConfigError
from onceflow.pipelines.tables import SQL_VARIABLE
from onceflow.spark.foreach_batch import METRICS_VARIABLE

if TYPE_CHECKING:
    from onceflow.cli.run_display import BatchLines
    from onceflow.client.settings import ClientSettings
    from onceflow.pipelines import Pipeline
    from onceflow.pipelines.job import Job, JobSettings
    from onceflow.spark.metrics import MetricsServer

__all__ = ["add_parser", "run"]

CHECKPOINTS: Final = "onceflow-checkpoints"
ON_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_EPILOG = """\
examples:
  onceflow run orders                                       with a broker of its own, whose address is shown
  onceflow run orders --bootstrap kafka:9092 --checkpoint /checkpoints/orders --create-topics
  onceflow run my_pipeline:CLICKS --trigger 1s              the Pipeline called CLICKS in my_pipeline.py
  onceflow run orders --sql sqlite:///orders.db             and into tables, each micro-batch one transaction there, too
  ONCEFLOW_SQL=postgresql://me:secret@db/shop onceflow run orders
  onceflow run pricing --until-now --json | jq .lag         what is there now, then end

The pipelines are orders, viewing and pricing (docs/pipelines); docs/your-own-pipeline.md shows how to write another.
Ctrl-C and SIGTERM end it after the micro-batch that is running; with the same checkpoint it goes on where it was.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a pipeline: orders, viewing, pricing, or one of yours",
        description="Run a pipeline, exactly once: topics in, topics out, each micro-batch one transaction.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="orders, viewing, pricing, or PACKAGE.MODULE:NAME")
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help=f"where Spark keeps state and offsets: a folder, or hdfs://..., s3a://... (default: {CHECKPOINTS}/APP)",
    )
    parser.add_argument("--prefix", metavar="TEXT", default="", help="what all its topics, and its app id, begin with")
    parser.add_argument("--app-id", metavar="ID", help="its name in Kafka, over restarts (default: prefix and name)")
    parser.add_argument(
        "--create-topics", action="store_true", help="create the topics that are missing, with the partitions declared"
    )
    _add_batches(parser)
    _add_database(parser)
    parser.add_argument("--json", action="store_true", help="a JSON object per micro-batch")
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        default=os.environ.get(METRICS_VARIABLE) or None,
        help=f"serve metrics for Prometheus there; port 0 is any, and is shown (default: ${METRICS_VARIABLE}, or none)",
    )
    _add_spark(parser)
    _add_connection(parser)


def _add_batches(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("micro-batches")
    group.add_argument(
        "--trigger",
        metavar="TIME",
        type=trigger,
        help="from the start of one to the next: 100ms, '1 second'. Longer costs less per record, and is later "
        "(default: 0, at once)",
    )
    group.add_argument("--per-batch", metavar="N", type=whole_number(1), help="records in one at most")
    group.add_argument("--until-now", action="store_true", help="end when what is there now has been dealt with")
    group.add_argument(
        "--starting-offsets",
        choices=["earliest", "latest", "committed"],
        default="earliest",
        help="where a new checkpoint begins; committed is where the app left off, for pipelines without state "
        "(default: earliest)",
    )


def _add_database(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("database")
    group.add_argument(
        "--sql",
        metavar="URL",
        default=os.environ.get(SQL_VARIABLE) or None,
        help="also land what the pipeline declares in tables, which are created: postgresql://user:password@host/name, "
        f"sqlite:///file.db. Others on this machine can read a command line, so prefer ${SQL_VARIABLE} for an address "
        "with a password (default: that variable, else no database)",
    )
    group.add_argument("--sql-schema", metavar="NAME", help="where the tables are (default: the database decides)")


def _add_spark(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("spark")
    group.add_argument("--master", metavar="URL", default="local[2]", help="where Spark runs (default: %(default)s)")
    group.add_argument(
        "--spark-conf",
        metavar="NAME=VALUE",
        type=name_and_value,
        action="append",
        default=[],
        help="a setting of Spark; may be repeated",
    )


def _add_connection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        default=os.environ.get(BOOTSTRAP_VARIABLE) or None,
        help=f"the brokers' address (default: ${BOOTSTRAP_VARIABLE}, else a broker of its own, with its data beside "
        "the checkpoint)",
    )
    add_client_config(group)


def run(args: argparse.Namespace) -> int:
    if args.until_now and args.trigger is not None:
        raise ConfigError("--until-now does not wait between micro-batches: leave out --trigger")
    if args.sql_schema is not None and args.sql is None:
        raise ConfigError(f"--sql-schema is for a database: give its address with --sql, or in ${SQL_VARIABLE}")
    pipeline = _loaded(args.pipeline)
    app_id = args.app_id or f"{args.prefix}{pipeline.name}"
    checkpoint = args.checkpoint or f"{CHECKPOINTS}/{app_id}"
    with _Ending() as ending, ExitStack() as stack:
        metrics = _metrics(args, stack)
        _knock_at_database(args, pipeline)
        clients = _clients(args, checkpoint, stack)
        _look_after_topics(args, pipeline, clients)
        settings = _job_settings(args, pipeline, clients, checkpoint, app_id)
        _look_after_tables(pipeline, settings)
        return _run_job(args, pipeline, settings, ending, metrics, _sparks_log(checkpoint))
    return 0  # asked to end before anything ran


def _loaded(name: str) -> Pipeline:
    from onceflow.cli.run_loading import load_pipeline

    return load_pipeline(name)


# --- before it runs


def _metrics(args: argparse.Namespace, stack: ExitStack) -> MetricsServer | None:
    """Serves from now on: Spark takes long to start, and would find out late that somebody else listens there."""
    if args.metrics is None:
        return None
    from onceflow.spark.metrics import MetricsServer

    try:
        server = stack.enter_context(MetricsServer(args.metrics))
    except ConfigError as problem:
        raise ConfigError(f"--metrics: {problem}") from None
    _say(f"metrics at {server.url}")
    return server


def _sparks_log(checkpoint: str) -> Path:
    """Beside the checkpoint. Whether it can be written is known before Spark is started."""
    log = Path(f"{_beside(checkpoint)}-spark.log")
    make_folder(log.parent, "--checkpoint")
    try:
        log.open("ab").close()
    except OSError as problem:
        raise ConfigError(
            f"{log}, the file for Spark's log beside the checkpoint, cannot be written: {problem.strerror}. "
            "Choose another place with --checkpoint"
        ) from None
    return log


def _clients(args: argparse.Namespace, checkpoint: str, stack: ExitStack) -> ClientSettings:
    from onceflow.client.settings import ClientSettings

    if args.bootstrap is not None:
        return ClientSettings(bootstrap=args.bootstrap, extra=dict(args.client_config))
    if args.client_config:
        raise ConfigError("--client-config is for brokers of yours: give their address with --bootstrap")
    from onceflow import Broker

    broker = stack.enter_context(Broker(f"{_beside(checkpoint)}-broker"))
    return ClientSettings(bootstrap=broker.bootstrap)


def _beside(checkpoint: str) -> str:
    """What names of files beside the checkpoint begin with. Not every checkpoint is on this machine."""
    local = checkpoint.removeprefix("file://")
    return str(Path(local if "://" not in local else Path(checkpoint).name))


def _look_after_topics(args: argparse.Namespace, pipeline: Pipeline, clients: ClientSettings) -> None:
    from onceflow.client.admin import TopicMissingError
    from onceflow.pipelines.job import create_topics, missing_topics

    if args.create_topics or args.bootstrap is None:
        if created := create_topics(pipeline, clients, args.prefix):
            _say(f"created {', '.join(created)}")
    elif missing := missing_topics(pipeline, clients, args.prefix):
        raise TopicMissingError(
            f"there is no topic {', '.join(map(repr, missing))} at {clients.bootstrap}: --create-topics creates what "
            "is missing"
        )
    if args.bootstrap is None:
        topic = f"{args.prefix}{pipeline.inputs[0].topic}"
        _say(f"a broker of its own: {clients.bootstrap}. To write into it:")
        _say(f"  onceflow produce {topic} --bootstrap {clients.bootstrap}")


def _job_settings(
    args: argparse.Namespace, pipeline: Pipeline, clients: ClientSettings, checkpoint: str, app_id: str
) -> JobSettings:
    from onceflow.pipelines.job import JobSettings, check

    given = {} if args.per_batch is None else {"per_batch": args.per_batch}
    settings = JobSettings(
        bootstrap=clients.bootstrap,
        checkpoint=checkpoint,
        prefix=args.prefix,
        app_id=app_id,
        trigger=args.trigger,
        available_now=args.until_now,
        starting_offsets=args.starting_offsets,
        source_options={f"kafka.{name}": value for name, value in clients.extra.items()},
        sink_options={"kafka": dict(clients.extra)} if clients.extra else {},
        sql=args.sql,
        sql_schema=args.sql_schema,
        **given,
    )
    check(pipeline, settings)
    return settings


def _knock_at_database(args: argparse.Namespace, pipeline: Pipeline) -> None:
    """Before anything is created anywhere."""
    if args.sql is None:
        return
    from onceflow.pipelines.landing import knock

    try:
        knock(pipeline, args.sql)
    except ConfigError as problem:
        raise ConfigError(f"--sql: {problem}") from None


def _look_after_tables(pipeline: Pipeline, settings: JobSettings) -> None:
    """Spark takes long to start, and would find out late what is wrong with them."""
    if settings.sql is None:
        return
    from onceflow.pipelines.landing import check_database, table_names

    database = check_database(pipeline, settings)
    _say(f"lands {', '.join(table_names(pipeline, settings))} in {database.shown}")


def _say(text: str) -> None:
    say(f"onceflow: {text}", err=True, flush=True)


# --- while it runs


class _AskedToEnd(BaseException):
    """Ctrl-C or SIGTERM, where there is no micro-batch to wait for, or no wish to."""


class _Ending:
    """Who asks us to end, and what we make of it."""

    def __init__(self) -> None:
        self.asked = False
        self.is_running = False
        """From now on there is a micro-batch to wait for."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Ending:
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.listen()
        return self

    def listen(self) -> None:
        """Again, too: a SparkContext installs a handler of its own for Ctrl-C."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)

    def _hear(self, *_: object) -> None:
        if self.asked or not self.is_running:
            raise _AskedToEnd
        self.asked = True
        _say("ending after this micro-batch; once more ends at once")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        return kind is _AskedToEnd


def _run_job(
    args: argparse.Namespace,
    pipeline: Pipeline,
    settings: JobSettings,
    ending: _Ending,
    metrics: MetricsServer | None,
    log: Path,
) -> int:
    from onceflow.cli.run_display import BatchLines
    from onceflow.cli.run_problems import told_by_spark
    from onceflow.pipelines.job import start

    with ExitStack() as stack:
        spark = _session(args, settings, log)
        stack.callback(spark.stop)
        ending.listen()
        if metrics is not None:
            metrics.watch(spark)
        lines = stack.enter_context(BatchLines(as_json=args.json))
        with told_by_spark(log):
            job = stack.enter_context(start(pipeline, lines.heard(settings), spark))
            ending.is_running = True
            _say(f"{settings.app_id} runs; checkpoint {settings.checkpoint}, Spark's log {log}")
            job.await_end(lambda: _look(job, lines, ending))
            lines.show(job.query)
    return 0


def _look(job: Job, lines: BatchLines, ending: _Ending) -> bool:
    """Shows what is new. True if it is time to end: asked to, and between two micro-batches."""
    lines.show(job.query)
    return ending.asked and (lines.has_news_since_asked() or not job.query.status["isTriggerActive"])


def _session(args: argparse.Namespace, settings: JobSettings, log: Path) -> Any:
    import logging

    from onceflow.cli.run_problems import output_to, spark_started
    from onceflow.pipelines.job import on_one_machine
    from onceflow.spark import session

    # py4j logs what a sink raised with its traceback, and Spark then raises it here.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    is_local = args.master.startswith("local")
    conf = {
        "spark.ui.enabled": "false",
        **({**on_one_machine(), **ON_LOOPBACK} if is_local else {}),
        **dict(args.spark_conf),
    }
    with spark_started(log), output_to(log):
        spark = session(settings.app_id or "", master=args.master, conf=conf, quiet=True)
    spark.sparkContext.setLogLevel("ERROR")
    return spark
