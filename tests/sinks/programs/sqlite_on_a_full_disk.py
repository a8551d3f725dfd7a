"""A job into SQLite whose disk is full at some point: `python -m ... FOLDER before|after STEP`.

A process of its own, since the disk is in a mount namespace of its own. It ends with 0 if all is as it should be.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from onceflow.sinks.tables import Table
from onceflow.spark.listening import Step
from onceflow.spark.problems import SinkError
from tests.support.sql_sink_cases import APPEND, Case
from tests.support.sql_sink_places import SqlitePlace
from tests.support.sql_sink_without_spark import At, Job, without_spark


def main(folder: Path, when: str, step: Step) -> None:
    rows = [(number, "x" * 1000, 1.0) for number in range(800)]
    case = Case("", [Table("events", create=True)], APPEND.schemas, [APPEND.batches[0], {"events": [rows]}])
    filler = folder.parent / "filler"
    job = Job(SqlitePlace(folder / "landed.db"), case)
    job.driver().run(0)
    driver = job.driver(At(when, step, lambda: fill(filler)))
    with pytest.raises(SinkError, match=r"(there is no room left|No space left).*Nothing of batch 1 was written"):
        driver.run(1)
    filler.unlink()
    assert job.found() == job.expected(0)
    driver.restarted().run(1)
    job.check(1)


def fill(filler: Path) -> None:
    with open(filler, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


if __name__ == "__main__":
    _, folder, when, step = sys.argv
    Path(folder).mkdir()
    with pytest.MonkeyPatch.context() as patch, without_spark(patch):
        main(Path(folder), when, Step[step])
