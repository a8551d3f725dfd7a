"""A stand-in for the module `time` of code that asks again and again: how often is not decided by the machine."""

from __future__ import annotations

__all__ = ["SteppingTime"]


class SteppingTime:
    """Time in which nothing but sleep takes any."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
