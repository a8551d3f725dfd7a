"""Why a batch failed, in one line out of what Spark raises."""

from __future__ import annotations

import pytest

from onceflow.spark.reasons import said_by_spark

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "source.py", line 282, in _read
    raise
{problem}
"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (WORKER.format(problem="ValueError: no such thing\nand more of it"), "ValueError: no such thing"),
        (
            WORKER.format(problem="KeyError: 1\n\nDuring handling\n\n" + WORKER.format(problem="OSError: 2")),
            "OSError: 2",
        ),
        (WORKER.format(problem="onceflow.spark.sequencer.Refusal: task 3 has gone"), "task 3 has gone"),
        ("\n[USER_RAISED_EXCEPTION] no sevens\n\nJVM stacktrace:\n\tat Foo.bar", "[USER_RAISED_EXCEPTION] no sevens"),
        ("", "RuntimeError"),
    ],
    ids=["a worker's", "the last of several", "a refusal of ours", "of the JVM", "nothing"],
)
def test_reason_is_the_line_that_names_the_problem(said: str, reason: str) -> None:
    assert said_by_spark(RuntimeError(said)) == reason
