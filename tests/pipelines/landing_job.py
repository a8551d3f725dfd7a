"""A driver program: runs a reference pipeline with a database, and stops for its killer where it is told to.

Its argument is JSON: `reference`, the `settings` of the job, and `pause`: the step of Kafka's sink, and the
number of the micro-batch, before which it says so and waits for ever.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import onceflow.spark
from onceflow.pipelines.job import JobSettings, start
from onceflow.pipelines.reference import reference_named
from onceflow.spark.listening import SinkListener, Step


class Pause(SinkListener):
    def __init__(self, step: str, batch_id: int) -> None:
        self._at = (step, batch_id)

    def before(self, step: Step, batch_id: int) -> None:
        if (step.name, batch_id) == self._at:
            print("paused", flush=True)
            threading.Event().wait()


def main(options: dict[str, Any]) -> None:
    spark = onceflow.spark.session("landing", conf={"spark.ui.enabled": "false"}, quiet=True)
    spark.sparkContext.setLogLevel("ERROR")
    settings = JobSettings(**options["settings"], sink_options={"listeners": [Pause(*options["pause"])]})
    with start(reference_named(options["reference"]).pipeline, settings, spark) as job:
        job.await_end()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
