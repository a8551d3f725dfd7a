"""State in a topic is restored as it was committed, on our broker and on Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.verify.history import Record
from onceflow.verify.programs.life import Life
from onceflow.verify.programs.state_store import Ending, StateStore
from tests.support.brokers import RunningBroker, run_against_both

pytest_generate_tests = run_against_both
PARTITION = 1


@pytest.fixture
def state(broker: RunningBroker, new_name: Callable[[], str]) -> str:
    """A topic for it."""
    topic = new_name()
    Admin(ClientSettings(bootstrap=broker.bootstrap)).create(topic, partitions=2)
    return topic


@pytest.fixture
def life(broker: RunningBroker, state: str, tmp_path: Path) -> Life:
    return Life(
        {
            "process": "copier-1.1",
            "worker": "copier-1",
            "bootstrap": broker.bootstrap,
            "history": str(tmp_path / "history.jsonl"),
            "zero": time.monotonic(),
            "seed": 1,
            "client_config": {},
            "state": state,
        }
    )


@pytest.fixture
def store(life: Life) -> Iterator[StateStore]:
    store = StateStore(life)
    yield store
    store.close()
    life.record.close()


@pytest.fixture
def owner(broker: RunningBroker, state: str) -> Any:
    """Whoever had the partition before."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": state, "log_level": 0})
    producer.init_transactions(30)
    return producer


def begin(owner: Any, state: str, key: str, n: int) -> None:
    owner.begin_transaction()
    owner.produce(state, Record(state=key, n=n).to_bytes(), partition=PARTITION)
    owner.flush(30)


def test_a_state_that_nobody_wrote_is_empty(store: StateStore) -> None:
    store.restore([0, PARTITION])
    assert set(store.partitions) == {0, PARTITION}
    assert store.add(PARTITION, "a", 3) == 3


def test_the_last_committed_count_of_each_key_is_restored(store: StateStore, owner: Any, state: str) -> None:
    for key, n in (("a", 1), ("b", 5), ("a", 2)):
        begin(owner, state, key, n)
        owner.commit_transaction(30)
    begin(owner, state, "a", 99)
    owner.abort_transaction(30)
    store.restore([PARTITION])
    assert (store.add(PARTITION, "a", 1), store.add(PARTITION, "b", 1)) == (3, 6)


@pytest.mark.parametrize(("end", "restored"), [("commit_transaction", 7), ("abort_transaction", 4)])
def test_restoring_waits_for_a_transaction_that_is_not_decided(
    store: StateStore, owner: Any, state: str, end: str, restored: int
) -> None:
    begin(owner, state, "a", 4)
    owner.commit_transaction(30)
    begin(owner, state, "a", 7)
    with ThreadPoolExecutor(1) as pool:
        restoring = pool.submit(store.restore, [PARTITION])
        with pytest.raises(TimeoutError):
            restoring.result(timeout=1.0)
        getattr(owner, end)(30)
        restoring.result(timeout=30)
    assert store.add(PARTITION, "a", 0) == restored


def test_what_is_dropped_is_restored_as_it_was_committed(store: StateStore, owner: Any, state: str) -> None:
    begin(owner, state, "a", 4)
    owner.commit_transaction(30)
    store.restore([PARTITION])
    assert store.add(PARTITION, "a", 10) == 14
    store.drop([PARTITION])
    assert not store.partitions
    store.restore([PARTITION])
    assert store.add(PARTITION, "a", 1) == 5


def test_restoring_ends_with_the_life(store: StateStore, life: Life, owner: Any, state: str) -> None:
    begin(owner, state, "a", 4)
    with ThreadPoolExecutor(1) as pool:
        restoring = pool.submit(store.restore, [PARTITION])
        life._over.set()
        with pytest.raises(Ending):
            restoring.result(timeout=30)
    owner.abort_transaction(30)
