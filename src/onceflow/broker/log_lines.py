"""The broker's log, on stderr: an entry is a line, whatever clients have put into it."""

from __future__ import annotations

import logging
import sys
from typing import Any

from onceflow.printable import printable

__all__ = ["LogFormatter", "log_to_stderr"]

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogFormatter(logging.Formatter):
    """The lines of a traceback are indented: none of them can pass for an entry."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(f"  {printable(line)}" for line in super().formatException(ei).split("\n"))


def log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
