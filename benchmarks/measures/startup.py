"""Start-up: from the spawn of the process to the first Metadata answer that names a broker.

The folder is empty; formatting Kafka's storage is left out.
"""

from benchmarks.bench import Bench
from benchmarks.brokers import Flavour
from benchmarks.results import Case
from benchmarks.targets import START_UP

CASE = Case(key="startup", title="start-up", unit="s", target=START_UP)


def run(bench: Bench, flavour: Flavour) -> None:
    for _ in range(bench.plan.starts):
        with bench.fresh(flavour) as broker:
            bench.record(CASE, flavour, broker.start_seconds)
