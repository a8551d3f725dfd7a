"""Warnings that strangers or a broken disk could make without end: at most one per reason and minute."""

from __future__ import annotations

import logging
import time
from typing import Final

__all__ = ["complain"]

logger = logging.getLogger(__name__)

QUIET_S: Final = 60.0

_quiet_until_s: Final[dict[str, float]] = {}
_unsaid: Final[dict[str, int]] = {}


def complain(reason: str, message: str, *args: object, with_traceback: bool = False) -> None:
    """Log a warning, unless there was one for this reason a moment ago. Reasons are few, and never a peer's words."""
    now = time.monotonic()
    if now < _quiet_until_s.get(reason, 0.0):
        _unsaid[reason] = _unsaid.get(reason, 0) + 1
        return
    _quiet_until_s[reason] = now + QUIET_S
    unsaid = _unsaid.pop(reason, 0)
    if unsaid:
        message += f" ({unsaid} more like it before this one.)"
    logger.log(logging.ERROR if with_traceback else logging.WARNING, message, *args, exc_info=with_traceback)
