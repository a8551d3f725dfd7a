"""The state that the restart benchmark makes is there, is told apart from none, and survives what it measures."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing

import pytest
from benchmarks import clients, coordinator_state
from benchmarks.brokers import ONCEFLOW, RunningBroker

from tests.support.raw_client import RawClient
from tests.support.raw_groups import committed
from tests.support.raw_transactions import committed as committed_values
from tests.support.raw_transactions import describe

TOPIC = "state"
PARTITIONS = 3


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with ONCEFLOW.start() as started:
        clients.create_topic(started.bootstrap, TOPIC, PARTITIONS)
        yield started


def test_every_transactional_id_has_committed_a_transaction(broker: RunningBroker) -> None:
    ids = coordinator_state.make_transactional_ids(broker.bootstrap, TOPIC, 7, PARTITIONS)

    assert list(ids) == [f"bench-{number}" for number in range(7)]
    assert len(set(ids.values())) == 7
    with closing(RawClient(broker.bootstrap)) as wire:
        states = [describe(wire, each) for each in ids]
        values = [committed_values(wire, TOPIC, partition=index) for index in range(PARTITIONS)]
    assert {state.transaction_state for state in states} == {"CompleteCommit"}
    assert [state.producer_id for state in states] == list(ids.values())
    assert sum(map(len, values)) == 7


def test_every_group_has_an_offset_for_each_partition(broker: RunningBroker) -> None:
    groups = coordinator_state.make_groups(broker.bootstrap, TOPIC, 5, PARTITIONS)

    with closing(RawClient(broker.bootstrap)) as wire:
        found = {committed(wire, group, TOPIC, index) for group in groups for index in range(PARTITIONS)}
    assert found == {coordinator_state.COMMITTED_OFFSET}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_state_is_known_after_a_restart(broker: RunningBroker, how: signal.Signals) -> None:
    ids = coordinator_state.make_transactional_ids(broker.bootstrap, TOPIC, 3, PARTITIONS)
    groups = coordinator_state.make_groups(broker.bootstrap, TOPIC, 3, PARTITIONS)
    restarted = broker.restart(how)

    assert restarted.process.pid != broker.process.pid
    coordinator_state.wait_until_known(restarted.bootstrap, "bench-2", ids["bench-2"], groups[-1], TOPIC)
    assert 0 < restarted.start_seconds <= restarted.age_seconds() + 0.01


def test_forgotten_state_is_no_answer(broker: RunningBroker) -> None:
    ids = coordinator_state.make_transactional_ids(broker.bootstrap, TOPIC, 1, PARTITIONS)
    coordinator_state.make_groups(broker.bootstrap, TOPIC, 1, PARTITIONS)

    with pytest.raises(AssertionError, match="transactional id has been forgotten"):
        coordinator_state.wait_until_known(broker.bootstrap, "other", ids["bench-0"], "bench-0", TOPIC)
    with pytest.raises(AssertionError, match="offset has been forgotten"):
        coordinator_state.wait_until_known(broker.bootstrap, "bench-0", ids["bench-0"], "other", TOPIC)
