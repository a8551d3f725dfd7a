"""`spark`: a stateful Spark job that reads and writes exactly once, its drivers and executors struck at will.

Idempotent producers fill `input`. One Spark query copies it to `output` and keeps a count per key, whose changes go to
`state`; each micro-batch is one transaction of `onceflow.spark.KafkaSink` (`programs/spark_driver.py`). The
checkpoint lives in the run's folder and outlives every driver: what is verified is that the checkpoint, Spark's state
and Kafka agree however the drivers die. A driver that was replaced while it slept still shares the checkpoint with
its successor.

Executors are processes of their own, JVMs with Python workers, and targets in their own right.

Two faults are its own, made only if asked for by name (`spark_faults.py`): an older checkpoint is put back, and a
source topic is deleted and created again. For the latter the query subscribes to a pattern, and the topic is one
besides `input`: records that a deletion took along would make every verdict one about the deletion.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Final

from onceflow.errors import ConfigError
from onceflow.extras import require
from onceflow.verify.history import Derivation, load_operations
from onceflow.verify.stage import JobFault, NotDrained, Pace, Stage, Target
from onceflow.verify.workers import Worker
from onceflow.verify.workloads.executors import executors_of
from onceflow.verify.workloads.input import add_producers, await_group, finish_producers
from onceflow.verify.workloads.spark_faults import OlderCheckpoint, RecreatedTopic

__all__ = ["Spark"]

PARTITIONS: Final = 3
STATE_PARTITIONS: Final = 2
RATE: Final = 40
"""Records per second of each producer: a micro-batch takes about a second, whatever is in it."""
KEYS: Final = 24
PROGRAM: Final = "onceflow.verify.programs.spark_driver"
RECREATED: Final = "recreated-"
MASTER: Final = "local-cluster[2,1,512]"
"""Two executors with a core and 512 MB each: processes of their own, that can be struck one by one."""
LOOK_EVERY_S: Final = 0.2
FIRST_COMMIT_S: Final = 120.0
DRIVER_STOP_S: Final = 45.0
JAVA_MIN: Final = 17
PYSPARK_MIN: Final = (4, 2)
INSTALL: Final = "pip install 'onceflow[spark]'"


class Spark:
    name = "spark"
    strikes = ("producer", "driver", "executor", "executor")
    pace = Pace(gap_s=(2.0, 7.0), pause_s=(0.5, 5.0), taken_over_s=90.0)

    def __init__(self) -> None:
        self._driver: Worker | None = None
        self._recreated: list[str] = []

    def topics(self, stage: Stage) -> Mapping[str, int]:
        require_spark()
        sizes = {"input": PARTITIONS, "output": PARTITIONS, "state": STATE_PARTITIONS}
        return {stage.named(name): count for name, count in sizes.items()}

    def derivations(self, stage: Stage) -> Sequence[Derivation]:
        return [Derivation(source, stage.named("output")) for source in (stage.named("input"), *self._recreated)]

    def groups(self, stage: Stage) -> Sequence[str]:
        return (stage.named("app"),)

    def start(self, stage: Stage) -> None:
        add_producers(stage, stage.named("input"), PARTITIONS, rate=RATE, keys=KEYS)
        self._driver = stage.workers.add(
            "driver",
            "driver",
            PROGRAM,
            app_id=stage.named("app"),
            **{name: stage.named(name) for name in ("input", "output", "state")},
            checkpoint=str(stage.folder / "checkpoint"),
            folder=str(stage.folder / "spark"),
            master=stage.options.get("master", MASTER),
            subscription=_subscription(stage),
            fail_on_data_loss="true",
        )
        self._await_first_commit(stage, self._driver)

    def _await_first_commit(self, stage: Stage, driver: Worker) -> None:
        """Or for as long as a machine may take to start Spark: what is struck before that is not a job at work."""
        deadline = time.monotonic() + FIRST_COMMIT_S
        while time.monotonic() < deadline and not stage.workers.problems():
            lives = driver.history_path.parent.glob(f"{driver.name}.*.jsonl")
            if any(each.f == "commit" and each.is_ok for each in load_operations(lives)):
                return
            time.sleep(LOOK_EVERY_S)

    def targets(self) -> Sequence[Target]:
        """Executors of the present driver."""
        return [] if self._driver is None or self._driver.pid is None else executors_of(self._driver)

    def job_fault(self, stage: Stage, kind: str) -> JobFault:
        assert self._driver is not None
        if kind == "older checkpoint":
            return OlderCheckpoint(self._driver, stage.folder / "checkpoint")
        topic = stage.named(f"{RECREATED}{len(self._recreated) + 1}")
        return RecreatedTopic(stage, self._driver, topic, group=stage.named("app"), created=self._recreated.append)

    def topics_of_faults(self) -> Mapping[str, int]:
        return dict.fromkeys(self._recreated, 1)

    def finish(self, stage: Stage, timeout_s: float) -> None:
        finish_producers(stage)
        await_group(stage, stage.named("app"), stage.named("input"), PARTITIONS, timeout_s)
        for topic in self._recreated:
            await_group(stage, stage.named("app"), topic, 1, timeout_s)
        if stage.workers.finish("driver", timeout_s=DRIVER_STOP_S):
            raise NotDrained(f"the driver did not end within {DRIVER_STOP_S:g} s of being asked to")


def _subscription(stage: Stage) -> tuple[str, str]:
    """By name, unless there are to be topics that nobody knows yet."""
    if "recreated topic" not in stage.kinds:
        return "subscribe", stage.named("input")
    return "subscribePattern", f"^{re.escape(stage.prefix)}(input|{RECREATED}[0-9]+)$"


# --- what it needs


@functools.cache
def require_spark() -> None:
    """Raises `ConfigError` with what to install."""
    require("spark", "the spark workload")
    version = metadata.version("pyspark")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < PYSPARK_MIN:
        raise ConfigError(f"the spark workload needs PySpark 4.2 or newer, and {version} is installed: {INSTALL}")
    found = _java_version()
    if found is None or found < JAVA_MIN:
        there = "none was found (JAVA_HOME, PATH)" if found is None else f"Java {found} was found"
        raise ConfigError(f"the spark workload needs Java {JAVA_MIN} or newer, and {there}: install one, a JRE will do")


def _java_version() -> int | None:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None
