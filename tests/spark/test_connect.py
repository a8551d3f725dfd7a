"""Under Spark Connect, where this process has no driver: the source works, and what needs one refuses with a sentence.

The server is a part of the shared session's JVM; the client is a process without one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceflow.ports import ReservedPort
from tests.support.brokers import Shared, running_broker
from tests.support.raw import Wire, batch
from tests.support.readers import committed
from tests.support.spark_jvm import LOOPBACK, ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.faults  # a server of its own

CLIENT = Path(__file__).with_name("programs") / "connect_client.py"
CLIENT_S = 240


@pytest.fixture
def server(spark: SparkSession) -> Iterator[str]:
    """The address of a Spark Connect server, as `spark.plugins=org.apache.spark.sql.connect.SparkConnectPlugin` starts
    it."""
    jvm: Any = spark._jvm
    reserved = ReservedPort(LOOPBACK)
    port = reserved.number
    settings = jvm.org.apache.spark.SparkEnv.get().conf()
    settings.set("spark.connect.grpc.binding.address", LOOPBACK).set("spark.connect.grpc.binding.port", str(port))
    service = jvm.org.apache.spark.sql.connect.service.SparkConnectService
    service.start(spark.sparkContext._jsc.sc())
    yield f"sc://{LOOPBACK}:{port}"
    nothing = jvm.scala.Option.empty()
    service.stop(nothing, nothing)


@pytest.mark.timeout(CLIENT_S + 60)
def test_source_works_and_what_needs_a_driver_is_refused(
    server: str, shared: Shared, new_name: Callable[[], str]
) -> None:
    bootstrap = running_broker("onceflow", shared).bootstrap
    source, target = new_name(), new_name()
    with Wire(bootstrap) as wire:
        wire.create_topic(source)
        wire.create_topic(target)
        wire.produce(source, batch("a", "b"))
    found = _outcomes(server, bootstrap, source, target)
    assert found.pop("batch read") == {"returned": ["a", "b"]}
    assert found.pop("stream read") == {"returned": ["a", "b"]}
    assert found.pop("write at least once") == {"returned": 2}
    assert len(committed(bootstrap, target)) == 2, "and nothing else has written anything"
    assert set(found) == {"sink", "sink in a function", "sink made on the server", "write"}
    for name, outcome in found.items():
        assert "use a classic session" in outcome["said"], name
    for name in ("sink", "sink in a function", "write"):
        assert "ConfigError" in found[name]["kinds"], "the exception is ours, not one of Spark's around it"


def _outcomes(*arguments: str) -> dict[str, Any]:
    """By name, what the client printed."""
    done = subprocess.run(
        [sys.executable, str(CLIENT), *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CLIENT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line.pop("name"): line for line in lines}
