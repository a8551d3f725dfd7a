"""What we want, as a ratio of ours to Apache Kafka's or of ours alone. A miss is shown, never an error."""

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


@dataclass(frozen=True)
class OwnTarget:
    """For what is a share already, such as what transactions leave of a rate: Kafka's does not matter."""

    percent: float

    def met_by(self, percent: float) -> bool | None:
        """No verdict if it is further above the whole than the target is below: such noise hides what is judged."""
        return None if percent - 100 > 100 - self.percent else percent >= self.percent

    def __str__(self) -> str:
        return f"ours ≥ {self.percent:g} %"


PRODUCE_RATE = Target(1.1, at_least=True)
PRODUCE_CPU = Target(0.7, at_least=False)
CONSUME_RATE = Target(1.0, at_least=True)
START_UP = Target(1 / 8, at_least=False)
MEMORY = Target(1 / 5, at_least=False)
COMMIT_RATE = Target(2.0, at_least=True)
COMMIT_P99 = Target(1 / 2, at_least=False)
SHARE_IN_TRANSACTIONS = OwnTarget(97)
