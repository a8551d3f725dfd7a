"""What Spark says when it stops, as one sentence of ours.

An error that a sink, a source or a step raised comes back inside the message of a Spark exception, which is a few pages
of tracebacks in two languages. Ours are found in it by their names.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from onceflow.errors import ConfigError, OnceflowError
from onceflow.extras import advice_for

__all__ = ["JobFailed", "output_to", "reason_in", "spark_started", "told_by_spark"]

_OURS: Final = re.compile(r"^(?:.*[ :])?onceflow(?:\.\w+)*\.([A-Z]\w+): (.+)$", re.MULTILINE)
_PYTHONS: Final = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Exit)): (.+)$", re.MULTILINE)
_JAVAS: Final = re.compile(r"^: (?:[\w$]+\.)*([\w$]+): (.+)$", re.MULTILINE)
"""As py4j shows it, below a line that names only its own object."""


class JobFailed(OnceflowError):
    """A query has stopped with an error; the message is the reason, without Spark's own."""


@contextmanager
def told_by_spark(log: Path) -> Iterator[None]:
    """Turns Spark's exceptions into `JobFailed`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as problem:
        raise JobFailed(f"{reason_in(str(problem))} (Spark's log: {log})") from problem


def reason_in(text: str) -> str:
    """The last of our errors in it, or else of Python's, or else of Java's, or else its first line. In a traceback the
    last one is what came of the others."""
    for pattern in (_OURS, _PYTHONS, _JAVAS):
        if found := pattern.findall(text):
            kind, message = found[-1]
            return f"{kind}: {message.strip()}"
    return next((line.strip() for line in text.splitlines() if line.strip()), "Spark gave no reason")


@contextmanager
def spark_started(log: Path) -> Iterator[None]:
    """Turns what keeps Spark from starting into a sentence."""
    try:
        yield
    except ImportError as missing:
        raise ConfigError(advice_for(missing) or f"Spark could not be imported: {missing}") from None
    except Exception as problem:
        said = [line for line in _tail(log) if line.strip()]
        why = said[-1].strip() if said and "JAVA_GATEWAY_EXITED" in str(problem) else reason_in(str(problem))
        raise OnceflowError(
            f"Spark could not be started, it needs Java 17 or newer: {why} (Spark's log: {log})"
        ) from problem


def _tail(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-20:]
    except OSError:
        return []


@contextmanager
def output_to(log: Path) -> Iterator[None]:
    """For processes that are started here, Spark's JVM and through it all workers: what they print goes there."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(number, os.dup(number)) for number in (1, 2)]
    try:
        with open(log, "ab") as file:
            for number, _ in kept:
                os.dup2(file.fileno(), number)
        yield
    finally:
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)
