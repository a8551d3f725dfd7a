"""How much is measured: the full run (45 minutes on two cores) and the quick one (about eight)."""

from __future__ import annotations

from dataclasses import dataclass, replace

SMALL = 100
LARGE = 1024
SIZES = {SMALL: "100 B", LARGE: "1 KB"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The amounts of one run; records per case are chosen so that a case lasts seconds, not a blink."""

    rounds: int = 3
    """Every measure runs this often, brokers taking turns; the tables show medians."""

    partitions: int = 4
    """Of every topic but the growing one, which has a single partition."""

    starts: int = 2
    """Starts per round, for the start-up time."""

    warm_up_large: int = 1_000_000
    warm_up_small: int = 2_000_000
    """Before produce, consume, latency and growth, which share a broker; see `Bench.warm`."""

    java_small: int = 5_000_000
    java_large: int = 500_000
    confluent_small: int = 1_000_000
    confluent_large: int = 300_000

    memory_records: int = 500_000
    """Of 1 KB, the load under which the peak of resident memory is taken."""

    idle_seconds: float = 3.0
    """After the start and before the idle memory is read."""

    latency_rate: int = 1_000
    latency_seconds: int = 10

    commit_partitions: tuple[int, ...] = (1, 4, 16)
    """Per transaction, each with one record."""

    commit_producers: int = 8
    """At once, where a broker's own limit is looked for; one producer mostly waits."""

    commit_warm_up_seconds: float = 1.0
    commit_seconds: float = 5.0

    transaction_pairs: int = 2
    """Runs without and with transactions per round, in turns; each pair gives a share."""

    restart_transactional_ids: int = 10_000
    restart_groups: int = 1_000
    restart_rounds: int = 2
    """It takes long, Kafka's side above all, and varies little."""

    growth_rounds: int = 1
    growth_marks: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    growth_probe: int = 500_000
    """Records produced from each mark on, to take the cost there."""

    growth_tail: int = 100_000
    growth_tail_reads: int = 5

    def java_records(self, size: int) -> int:
        return self.java_small if size == SMALL else self.java_large

    def confluent_records(self, size: int) -> int:
        return self.confluent_small if size == SMALL else self.confluent_large


FULL = Plan()

QUICK = replace(
    FULL,
    rounds=1,
    starts=1,
    warm_up_large=300_000,
    warm_up_small=500_000,
    java_small=300_000,
    java_large=60_000,
    confluent_small=150_000,
    confluent_large=50_000,
    memory_records=100_000,
    idle_seconds=1.0,
    latency_seconds=2,
    commit_warm_up_seconds=0.5,
    commit_seconds=1.5,
    transaction_pairs=1,
    restart_rounds=1,
    growth_marks=(100_000, 1_000_000),
    growth_probe=200_000,
    growth_tail_reads=3,
)
