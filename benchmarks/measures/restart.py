"""Restart with 10,000 transactional ids and 1,000 groups of 10 offsets each: after a kill, then after a shutdown.

From the spawn of the process until the coordinators have read what they know: InitProducerId of one of the ids gives
its producer id, and OffsetFetch of one of the groups its offset.
"""

from __future__ import annotations

import signal

from benchmarks import coordinator_state
from benchmarks.bench import Bench
from benchmarks.brokers import Flavour
from benchmarks.results import Case

OFFSETS_PER_GROUP = 10
HOW = {signal.SIGKILL: "kill -9", signal.SIGTERM: "shutdown"}
"""The kill comes first: after a shutdown everything is in order, and a kill would find little to put right."""


def run(bench: Bench, flavour: Flavour) -> None:
    ids, groups = bench.plan.restart_transactional_ids, bench.plan.restart_groups
    with bench.fresh(flavour) as broker:
        topic = bench.topic(broker, partitions=OFFSETS_PER_GROUP)
        producer_ids = coordinator_state.make_transactional_ids(broker.bootstrap, topic, ids, OFFSETS_PER_GROUP)
        names = coordinator_state.make_groups(broker.bootstrap, topic, groups, OFFSETS_PER_GROUP)
        transactional_id, producer_id = list(producer_ids.items())[-1]
        for how in HOW:
            broker = broker.restart(how)
            coordinator_state.wait_until_known(broker.bootstrap, transactional_id, producer_id, names[-1], topic)
            bench.record(_case(how, ids, groups), flavour, broker.age_seconds())


def _case(how: signal.Signals, ids: int, groups: int) -> Case:
    return Case(
        key=f"restart/{how.name}",
        title=f"restart after {HOW[how]}, {ids:,} transactional ids, {groups:,} groups",
        unit="s",
    )
