"""What we want, as a ratio of ours to Apache Kafka's. A miss is shown, never an error."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    ratio: float
    at_least: bool

    def met_by(self, ratio: float) -> bool:
        return ratio >= self.ratio if self.at_least else ratio <= self.ratio

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.ratio:g}x"


PRODUCE_RATE = Target(1.1, at_least=True)
PRODUCE_CPU = Target(0.7, at_least=False)
CONSUME_RATE = Target(1.0, at_least=True)
START_UP = Target(1 / 8, at_least=False)
MEMORY = Target(1 / 5, at_least=False)
