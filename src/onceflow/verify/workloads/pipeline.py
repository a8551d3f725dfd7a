"""`pipeline`: a pipeline of your own. Every record of its input must come out once.

    onceflow verify pipeline --command 'python my_job.py' --faults 50

Idempotent producers fill an input topic with JSON values, {"id": "producer-1.1-7", "key": "k3"}. Your command is
started, killed, stopped, woken and started again; it reads the input topic and writes to the output topic, and what
it writes for a record must be JSON that keeps its "id". Whatever else it does is its own affair. It finds in its
environment:

    ONCEFLOW_BOOTSTRAP   the address of the brokers, by the way that the nemesis has its hand on
    ONCEFLOW_INPUT       the topic to read
    ONCEFLOW_OUTPUT      the topic to write
    ONCEFLOW_INSTANCE    1, 2, ...: which instance this is, for names that must be its own, over restarts too
    ONCEFLOW_FOLDER      a folder for whatever has to outlive it, a checkpoint for example
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from onceflow.errors import ConfigError
from onceflow.verify.history import Derivation
from onceflow.verify.observers import everything_committed, places_of
from onceflow.verify.stage import Pace, Stage, Target
from onceflow.verify.workloads.input import add_producers, finish_producers

__all__ = ["Pipeline"]

PARTITIONS: Final = 4
RATE: Final = 100
KEYS: Final = 12
LOOK_EVERY_S: Final = 1.0
STILL_S: Final = 30.0
"""A pipeline that has written nothing for so long, with nothing in its way, has come to its end."""
STOP_S: Final = 30.0


class Pipeline:
    name = "pipeline"
    strikes = ("producer", "pipeline", "pipeline", "pipeline")
    pace = Pace()

    def topics(self, stage: Stage) -> Mapping[str, int]:
        return {stage.named("input"): PARTITIONS, stage.named("output"): PARTITIONS}

    def derivations(self, stage: Stage) -> Sequence[Derivation]:
        is_ordered = stage.options.get("ordered", "false") == "true"
        return (Derivation(stage.named("input"), stage.named("output"), is_ordered),)

    def groups(self, stage: Stage) -> Sequence[str]:
        return ()

    def start(self, stage: Stage) -> None:
        command = stage.options.get("command")
        if not command:
            raise ConfigError(
                "the workload 'pipeline' needs the command that it is to verify: --command 'python job.py'"
            )
        folder = stage.folder / "pipeline"
        folder.mkdir()
        add_producers(stage, stage.named("input"), PARTITIONS, rate=RATE, keys=KEYS)
        for number in range(1, int(stage.options.get("instances", "1")) + 1):
            environment = {
                "ONCEFLOW_BOOTSTRAP": stage.bootstrap,
                "ONCEFLOW_INPUT": stage.named("input"),
                "ONCEFLOW_OUTPUT": stage.named("output"),
                "ONCEFLOW_INSTANCE": str(number),
                "ONCEFLOW_FOLDER": str(folder.resolve()),
            }
            stage.workers.add(
                "pipeline",
                f"pipeline-{number}",
                "onceflow.verify.programs.command",
                command=command,
                environment=environment,
            )

    def targets(self) -> Sequence[Target]:
        return ()

    def finish(self, stage: Stage, timeout_s: float) -> None:
        finish_producers(stage)
        self._await_output(stage, timeout_s)
        stage.workers.finish("pipeline", timeout_s=STOP_S)

    def _await_output(self, stage: Stage, timeout_s: float) -> None:
        """Until everything is there, or nothing has come for long: what is missing then is for the verdict."""
        wanted = self._ids(stage, "input", timeout_s)
        last, since = -1, time.monotonic()
        while time.monotonic() - since < STILL_S:
            found = self._ids(stage, "output", timeout_s)
            if wanted <= found:
                return
            if len(found) != last:
                last, since = len(found), time.monotonic()
            time.sleep(LOOK_EVERY_S)

    def _ids(self, stage: Stage, topic: str, timeout_s: float) -> set[str | None]:
        places = places_of({stage.named(topic): PARTITIONS})
        return {seen.record.id for seen in everything_committed(stage.settings(), places, timeout_s)}
