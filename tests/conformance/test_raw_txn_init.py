"""Becoming a transactional producer: coordinator, producer id, epoch and timeout."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.api_versions import ApiVersionsRequest
from onceflow.wire.messages.find_coordinator import FindCoordinatorRequest
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from onceflow.wire.messages.metadata import MetadataRequest
from tests.support.raw import Wire
from tests.support.raw_transactions import TRANSACTION, V1, V2, TransactionalProducer, committed, describe

REFUSED = (-1, -1)


@pytest.fixture
def fresh(wire: Wire, new_name: Callable[[], str]) -> TransactionalProducer:
    """A transactional id that the coordinator has not heard of."""
    producer = TransactionalProducer(wire, new_name(), V2)
    producer.meet_coordinator()
    return producer


@pytest.fixture
def ready(fresh: TransactionalProducer) -> TransactionalProducer:
    return fresh.init()


def pair(answer: InitProducerIdResponse) -> tuple[int, int]:
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
    return answer.producer_id, answer.producer_epoch


def refusal(answer: InitProducerIdResponse) -> ErrorCode:
    assert (answer.producer_id, answer.producer_epoch) == REFUSED
    return ErrorCode(answer.error_code)


# --- features and coordinator


def test_transactions_of_the_second_version_are_announced_as_a_feature(wire: Wire) -> None:
    answer = wire.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), version=4)
    supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
    finalized = {each.name: (each.min_version_level, each.max_version_level) for each in answer.finalized_features}
    assert supported["transaction.version"] == (0, 2)
    assert finalized["transaction.version"] == (2, 2)
    assert answer.finalized_features_epoch >= 0


def test_the_third_version_of_api_versions_announces_it_too(wire: Wire) -> None:
    answer = wire.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), version=3)
    assert "transaction.version" in {each.name for each in answer.finalized_features}


@pytest.mark.parametrize(("api_key", "last"), [(0, 13), (22, 5), (24, 5), (25, 4), (26, 5), (27, 2), (28, 5), (66, 2)])
def test_both_protocols_are_announced(wire: Wire, api_key: int, last: int) -> None:
    assert wire.announced(api_key)[1] >= last


@pytest.mark.parametrize("version", [1, 3, 4, 6])
def test_a_transactional_id_has_a_coordinator(wire: Wire, fresh: TransactionalProducer, version: int) -> None:
    key = fresh.transactional_id
    request = FindCoordinatorRequest(key=key, coordinator_keys=[key], key_type=TRANSACTION)
    answer = wire.ask(request, version)
    found = answer.coordinators[0] if version >= 4 else answer
    [node] = wire.ask(MetadataRequest(topics=[])).brokers
    assert found.error_code == ErrorCode.NONE
    assert (found.node_id, found.host, found.port) == (node.node_id, node.host, node.port)


def test_several_coordinators_are_found_with_one_question(wire: Wire, fresh: TransactionalProducer) -> None:
    keys = [f"{fresh.transactional_id}-{at}" for at in range(3)]
    answer = wire.ask(FindCoordinatorRequest(coordinator_keys=keys, key_type=TRANSACTION), 4)
    assert [(each.key, each.error_code) for each in answer.coordinators] == [(key, ErrorCode.NONE) for key in keys]


# --- a new id


@pytest.mark.parametrize("version", range(6))
def test_a_new_transactional_id_begins_with_epoch_zero(fresh: TransactionalProducer, version: int) -> None:
    producer_id, epoch = pair(fresh.init_once(version=version))
    assert producer_id >= 0
    assert epoch == 0
    state = describe(fresh.wire, fresh.transactional_id)
    assert (state.transaction_state, state.producer_id, state.producer_epoch) == ("Empty", producer_id, 0)


def test_transactional_ids_have_different_producer_ids(new_name: Callable[[], str], wire: Wire) -> None:
    ids = {TransactionalProducer(wire, new_name(), V1).init().id for _ in range(3)}
    assert len(ids) == 3


def test_a_new_instance_keeps_the_id_and_gets_the_next_epoch(ready: TransactionalProducer) -> None:
    for epoch in (1, 2, 3):
        assert pair(ready.init_once()) == (ready.id, epoch)


def test_an_empty_transactional_id_is_an_invalid_request(wire: Wire, fresh: TransactionalProducer) -> None:
    answer = wire.ask(InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60_000))
    assert refusal(answer) == ErrorCode.INVALID_REQUEST


# --- timeouts


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001, 2**31 - 1])
def test_a_timeout_that_cannot_be_is_refused(fresh: TransactionalProducer, timeout_ms: int) -> None:
    assert refusal(fresh.init_once(timeout_ms=timeout_ms)) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert describe(fresh.wire, fresh.transactional_id).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize("timeout_ms", [1, 900_000])
def test_the_smallest_and_the_largest_timeout_are_taken(fresh: TransactionalProducer, timeout_ms: int) -> None:
    pair(fresh.init_once(timeout_ms=timeout_ms))
    assert describe(fresh.wire, fresh.transactional_id).transaction_timeout_ms == timeout_ms


def test_a_refused_timeout_leaves_the_epoch_as_it_was(ready: TransactionalProducer) -> None:
    refusal(ready.init_once(timeout_ms=0))
    assert describe(ready.wire, ready.transactional_id).producer_epoch == ready.epoch


def test_a_new_instance_may_bring_another_timeout(ready: TransactionalProducer) -> None:
    pair(ready.init_once(timeout_ms=12_345))
    assert describe(ready.wire, ready.transactional_id).transaction_timeout_ms == 12_345


# --- with the id and epoch one has (KIP-360)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_current_epoch_is_bumped(ready: TransactionalProducer, version: int) -> None:
    assert pair(ready.init_once(identity=ready.identity, version=version)) == (ready.id, 1)


def test_the_epoch_before_is_the_retry_of_a_bump_and_gets_the_same_answer(ready: TransactionalProducer) -> None:
    assert pair(ready.init_once(identity=ready.identity)) == (ready.id, 1)
    assert pair(ready.init_once(identity=ready.identity)) == (ready.id, 1)
    assert pair(ready.init_once(identity=(ready.id, 1))) == (ready.id, 2)


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)], ids=["v3", "v4"]
)
def test_an_older_epoch_is_fenced(ready: TransactionalProducer, version: int, code: ErrorCode) -> None:
    ready.init_once(identity=ready.identity)
    ready.init_once(identity=(ready.id, 1))
    assert refusal(ready.init_once(identity=ready.identity, version=version)) == code
    assert describe(ready.wire, ready.transactional_id).producer_epoch == 2


def test_the_epoch_before_a_new_instance_is_fenced(ready: TransactionalProducer) -> None:
    """The bump was somebody else's: a producer that did not ask for it has no retry."""
    assert pair(ready.init_once()) == (ready.id, 1)
    assert refusal(ready.init_once(identity=ready.identity)) == ErrorCode.PRODUCER_FENCED


def test_an_epoch_from_the_future_is_fenced(ready: TransactionalProducer) -> None:
    assert refusal(ready.init_once(identity=(ready.id, 5))) == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)], ids=["v3", "v4"]
)
def test_another_producer_id_is_fenced(ready: TransactionalProducer, version: int, code: ErrorCode) -> None:
    assert refusal(ready.init_once(identity=(ready.id + 1000, 0), version=version)) == code


def test_an_unknown_transactional_id_takes_any_id_and_gives_its_own(fresh: TransactionalProducer) -> None:
    """As after the expiry of the id: the producer that comes back starts anew."""
    producer_id, epoch = pair(fresh.init_once(identity=(987_654_321, 7)))
    assert producer_id != 987_654_321
    assert epoch == 0


@pytest.mark.parametrize("identity", [(-1, 3), (5, -1)])
def test_an_id_needs_an_epoch_and_an_epoch_an_id(ready: TransactionalProducer, identity: tuple[int, int]) -> None:
    assert refusal(ready.init_once(identity=identity)) == ErrorCode.INVALID_REQUEST


# --- while a transaction is open


def test_an_open_transaction_is_aborted_first(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    assert refusal(producer.init_once()) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert producer.settle() == "CompleteAbort"
    # One epoch to fence the old instance with, and one for the new.
    assert pair(producer.init_once()) == (producer.id, producer.epoch + 2)
    assert producer.state == "Empty"
    assert wire.stable_end(topic) == wire.end(topic) == 2
    assert committed(wire, topic) == []


def test_a_producer_that_knows_its_epoch_also_aborts_its_own_transaction(
    topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a")
    old = producer.identity
    assert refusal(producer.init_once(identity=old)) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert producer.settle() == "CompleteAbort"
    assert pair(producer.init_once(identity=old)) == (producer.id, old[1] + 1)


def test_a_completed_transaction_leaves_nothing_to_abort(topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    producer.commit()
    assert pair(producer.init_once()) == (producer.id, producer.epoch + 1)
