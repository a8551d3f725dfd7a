"""Why a job of Spark has failed, in one line."""

from __future__ import annotations

from typing import Final

from onceflow.spark.sequencer import Refusal

__all__ = ["said_by_spark"]

_REFUSED: Final = f"{Refusal.__module__}.{Refusal.__name__}: "
"""How a task says that the run was spoiled: the reason follows."""


def said_by_spark(problem: BaseException) -> str:
    """In one line: the exception of a Python worker, if Spark hands on its traceback, else what Spark says first."""
    _, traceback, text = str(problem).rpartition("Traceback (most recent call last):\n")
    said = (line for line in text.splitlines() if line.strip() and not (traceback and line.startswith(" ")))
    return next(said, type(problem).__name__).strip().removeprefix(_REFUSED)[:500]
