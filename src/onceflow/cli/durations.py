"""Durations and times as people write and read them."""

from __future__ import annotations

import argparse
import re
from datetime import datetime

__all__ = ["duration_ms", "in_words", "moment", "moment_ms", "trigger"]

_SHORT = re.compile(
    r"(?:(?P<days>\d{1,18})d)?(?:(?P<hours>\d{1,18})h)?(?:(?P<minutes>\d{1,18})m)?(?:(?P<seconds>\d{1,18}(?:\.\d{1,3})?)s)?"
    r"(?:(?P<ms>\d{1,18})ms)?",
    re.ASCII,
)
_ISO = re.compile(
    r"P(?:(?P<days>\d{1,18})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,18})H)?(?:(?P<minutes>\d{1,18})M)?(?:(?P<seconds>\d{1,18}(?:\.\d{1,3})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)
_UNITS_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000, "ms": 1}
_SPARK_UNITS = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h"}
DURATION_MS_MAX = 100 * 365 * 86_400_000  # a century: further back no clock and no int64 is in doubt


def duration_ms(text: str) -> int:
    """An argparse type for `5m`, `1h30m`, `90s`, `250ms`, or as ISO 8601 writes it: `PT5M`, `P1DT12H`."""
    match = (_ISO if text[:1] in ("P", "p") else _SHORT).fullmatch(text)
    parts = {unit: amount for unit, amount in match.groupdict().items() if amount} if match else {}
    total = round(sum(float(amount) * _UNITS_MS[unit] for unit, amount in parts.items()))
    if not parts or total > DURATION_MS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 5m, 1h30m or PT5M")
    return total


def trigger(text: str) -> str | None:
    """An argparse type for the time between micro-batches, which Spark's users write as `1 second`: as Spark takes it;
    None for 0."""
    words = re.fullmatch(r"(\d+)\s*(millisecond|second|minute|hour)s?", text.strip(), re.ASCII)
    short = f"{words[1]}{_SPARK_UNITS[words[2]]}" if words else "0s" if text.strip() == "0" else text.strip()
    try:
        found = duration_ms(short)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 100ms, '1 second' or 0") from None
    return f"{found} milliseconds" if found else None


def moment_ms(text: str) -> int:
    """An argparse type for a time such as 2026-01-31T12:00:00Z, in milliseconds since 1970."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-01-31T12:00:00Z") from None


def in_words(ms: int) -> str:
    """The two largest units that matter: `250 ms`, `48 s`, `4 min 12 s`, `2 h 5 min`, `3 d`."""
    if ms < 1000:
        return f"{ms} ms"
    seconds = ms // 1000
    for unit, size, smaller, smaller_size in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            rest //= smaller_size
            return f"{whole} {unit} {rest} {smaller}" if rest else f"{whole} {unit}"
    return f"{seconds} s"


def moment(ms: int) -> str:
    """A time in milliseconds since 1970, in the local time zone and with it."""
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="seconds")
