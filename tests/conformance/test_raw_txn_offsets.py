"""Offsets of a group inside a transaction: pending until the end, and only from who belongs to the group."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.conformance.conftest import RunningBroker
from tests.support.raw import Wire
from tests.support.raw_groups import commit, fetch_once, joined_alone, ready
from tests.support.raw_transactions import V1, V2, TransactionalProducer, committed, describe

NewProducer = Callable[[], TransactionalProducer]
NOTHING = (-1, ErrorCode.NONE)
UNSTABLE = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)


@pytest.fixture
def group(wire: Wire, new_name: Callable[[], str]) -> str:
    return ready(wire, new_name())


def position(wire: Wire, group: str, topic: str, *, stable: bool = False) -> tuple[int, ErrorCode]:
    """The offset of the group in partition 0, and how that question was answered."""
    answer = fetch_once(wire, group, {topic: [0]}, require_stable=stable)
    assert answer.error_code == ErrorCode.NONE
    [found] = answer.topics[0].partitions
    return found.committed_offset, ErrorCode(found.error_code)


# --- pending and ended


def test_an_offset_is_pending_until_the_commit(
    wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    producer.commit_offset(group, topic, 5)
    assert position(wire, group, topic) == NOTHING
    assert position(wire, group, topic, stable=True) == UNSTABLE
    producer.commit()
    assert position(wire, group, topic) == (5, ErrorCode.NONE)
    assert position(wire, group, topic, stable=True) == (5, ErrorCode.NONE)


def test_a_pending_offset_does_not_hide_the_one_before(
    wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    commit(wire, group, topic, 3)
    producer.commit_offset(group, topic, 5)
    assert position(wire, group, topic) == (3, ErrorCode.NONE)
    assert position(wire, group, topic, stable=True) == UNSTABLE


def test_an_abort_leaves_the_offset_as_it_was(
    wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    commit(wire, group, topic, 3)
    producer.commit_offset(group, topic, 5)
    producer.abort()
    assert position(wire, group, topic, stable=True) == (3, ErrorCode.NONE)


def test_an_abort_of_the_first_offset_leaves_none(
    wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    producer.commit_offset(group, topic, 5)
    producer.abort()
    assert position(wire, group, topic, stable=True) == NOTHING


def test_records_and_offsets_end_together(wire: Wire, topic: str, group: str, producer: TransactionalProducer) -> None:
    for number, end in enumerate((producer.commit, producer.abort, producer.commit)):
        producer.write(topic, f"{number}")
        producer.commit_offset(group, topic, 10 + number)
        end()
    assert committed(wire, topic) == ["0", "2"]
    assert position(wire, group, topic, stable=True) == (12, ErrorCode.NONE)


def test_the_last_offset_of_a_transaction_counts(
    wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    for offset in (5, 9, 7):
        producer.commit_offset(group, topic, offset)
    producer.commit()
    assert position(wire, group, topic) == (7, ErrorCode.NONE)


def test_an_offset_is_stable_when_the_last_transaction_on_it_has_ended(
    wire: Wire, topic: str, group: str, new_producer: NewProducer
) -> None:
    one, two = new_producer(), new_producer()
    one.commit_offset(group, topic, 1)
    two.commit_offset(group, topic, 2)
    two.commit()
    assert position(wire, group, topic) == (2, ErrorCode.NONE)
    assert position(wire, group, topic, stable=True) == UNSTABLE
    one.abort()
    assert position(wire, group, topic, stable=True) == (2, ErrorCode.NONE)


def test_of_two_transactions_the_one_that_wrote_last_counts(
    wire: Wire, topic: str, group: str, new_producer: NewProducer
) -> None:
    one, two = new_producer(), new_producer()
    one.commit_offset(group, topic, 1)
    two.commit_offset(group, topic, 2)
    two.commit()
    one.commit()
    assert position(wire, group, topic, stable=True) == (2, ErrorCode.NONE)


def test_a_plain_commit_after_a_pending_one_stays(
    wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    producer.commit_offset(group, topic, 5)
    commit(wire, group, topic, 7)
    assert position(wire, group, topic) == (7, ErrorCode.NONE)
    producer.commit()
    assert position(wire, group, topic, stable=True) == (7, ErrorCode.NONE)


def test_other_partitions_of_the_group_are_stable(
    wire: Wire, new_name: Callable[[], str], topic: str, group: str, producer: TransactionalProducer
) -> None:
    other = new_name()
    wire.create_topic(other)
    commit(wire, group, other, 4)
    producer.commit_offset(group, topic, 5)
    assert position(wire, group, other, stable=True) == (4, ErrorCode.NONE)


def test_all_offsets_of_a_group_at_once_show_the_unstable_one(
    wire: Wire, new_name: Callable[[], str], topic: str, group: str, producer: TransactionalProducer
) -> None:
    other = new_name()
    wire.create_topic(other)
    commit(wire, group, other, 4)
    commit(wire, group, topic, 3)
    producer.commit_offset(group, topic, 5)
    answer = fetch_once(wire, group, None, require_stable=True)
    found = {each.name: (each.partitions[0].committed_offset, each.partitions[0].error_code) for each in answer.topics}
    assert found == {other: (4, ErrorCode.NONE), topic: UNSTABLE}


def test_require_stable_is_known_since_the_seventh_version(
    wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    producer.commit_offset(group, topic, 5)
    answer = fetch_once(wire, group, {topic: [0]}, version=7, require_stable=True)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    answer = fetch_once(wire, group, {topic: [0]}, version=6)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


def test_metadata_and_leader_epoch_are_kept(
    wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    producer.commit_offset(group, topic, 5, metadata="half way", leader_epoch=0)
    producer.commit()
    [found] = fetch_once(wire, group, {topic: [0]}).topics[0].partitions
    assert (found.committed_offset, found.metadata, found.committed_leader_epoch) == (5, "half way", 0)


def test_the_offsets_topic_is_part_of_the_transaction(
    wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    producer.commit_offset(group, topic, 5)
    assert [each.topic for each in describe(wire, producer.transactional_id).topics] == ["__consumer_offsets"]


def test_two_groups_may_be_in_one_transaction(
    wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    producer.commit_offset(group, topic, 1)
    producer.commit_offset(f"{group}-two", topic, 2)
    producer.commit()
    assert position(wire, group, topic) == (1, ErrorCode.NONE)
    assert position(wire, f"{group}-two", topic) == (2, ErrorCode.NONE)


# --- refused


def test_an_unknown_partition_is_refused_and_the_others_are_stored(
    wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    producer.commit_offset(group, topic, 1)
    at = [TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=5) for partition in (0, 9)]
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        topics=[
            TxnOffsetCommitRequestTopic(name=topic, partitions=at),
            TxnOffsetCommitRequestTopic(name="no-such-topic", partitions=at[:1]),
        ],
    )
    answer = wire.ask(request, producer.protocol.offset_commit)
    codes = {(each.name, at.partition_index): at.error_code for each in answer.topics for at in each.partitions}
    assert codes == {
        (topic, 0): ErrorCode.NONE,
        (topic, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("no-such-topic", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    producer.commit()
    assert position(wire, group, topic) == (5, ErrorCode.NONE)


def test_metadata_may_be_4096_characters_long_and_no_longer(
    wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    producer.commit_offset(group, topic, 1, metadata="x" * 4096)
    code = producer.commit_offset_once(group, topic, 2, metadata="x" * 4097)
    assert code == ErrorCode.OFFSET_METADATA_TOO_LARGE
    producer.commit()
    assert position(wire, group, topic) == (1, ErrorCode.NONE)


def test_a_group_without_a_name_is_refused(topic: str, group: str, producer: TransactionalProducer) -> None:
    if not producer.protocol.is_v2:
        producer.add_offsets_once("")
    assert producer.commit_offset_once("", topic, 1) == ErrorCode.INVALID_GROUP_ID


# --- members (KIP-447)


def test_a_member_commits_with_its_generation(
    broker: RunningBroker, wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    with joined_alone(broker.bootstrap, group) as member:
        producer.commit_offset(group, topic, 5, member=(member.id, member.generation))
        producer.commit()
    assert position(wire, group, topic) == (5, ErrorCode.NONE)


@pytest.mark.parametrize(("protocol", "version"), [(V1, 3), (V1, 4), (V2, 5)])
def test_another_generation_is_refused(
    broker: RunningBroker, wire: Wire, topic: str, group: str, producer: TransactionalProducer, version: int
) -> None:
    with joined_alone(broker.bootstrap, group) as member:
        producer.commit_offset(group, topic, 5, member=(member.id, member.generation))
        for generation in (member.generation - 1, member.generation + 1):
            code = producer.commit_offset_once(group, topic, 6, member=(member.id, generation), version=version)
            assert code == ErrorCode.ILLEGAL_GENERATION
        producer.commit()
    assert position(wire, group, topic) == (5, ErrorCode.NONE)


def test_an_unknown_member_is_refused(
    broker: RunningBroker, wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    with joined_alone(broker.bootstrap, group) as member:
        producer.commit_offset(group, topic, 5, member=(member.id, member.generation))
        code = producer.commit_offset_once(group, topic, 6, member=("nobody", member.generation))
        assert code == ErrorCode.UNKNOWN_MEMBER_ID
        producer.commit()
    assert position(wire, group, topic) == (5, ErrorCode.NONE)


def test_a_generation_of_the_past_is_refused_after_a_rebalance(
    broker: RunningBroker, wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    """A zombie of the group: it lost its partitions, and its producer has an id of its own."""
    with joined_alone(broker.bootstrap, group) as member:
        old = (member.id, member.generation)
        member.join()
        member.sync({member.id: b"all"})
        producer.commit_offset(group, topic, 5, member=(member.id, member.generation))
        assert producer.commit_offset_once(group, topic, 6, member=old) == ErrorCode.ILLEGAL_GENERATION
        producer.commit()
    assert position(wire, group, topic) == (5, ErrorCode.NONE)


def test_a_generation_of_a_group_that_does_not_exist_is_refused(
    topic: str, group: str, producer: TransactionalProducer
) -> None:
    producer.commit_offset(f"{group}-known", topic, 5)
    if not producer.protocol.is_v2:
        assert producer.add_offsets_once(group) == ErrorCode.NONE
    assert producer.commit_offset_once(group, topic, 6, member=("nobody", 3)) == ErrorCode.ILLEGAL_GENERATION


def test_a_producer_that_names_no_member_commits_for_a_group_that_has_some(
    broker: RunningBroker, wire: Wire, topic: str, group: str, producer: TransactionalProducer
) -> None:
    """Producers older than KIP-447 do, and so does whoever assigns partitions without the group."""
    with joined_alone(broker.bootstrap, group):
        producer.commit_offset(group, topic, 5)
        producer.commit()
    assert position(wire, group, topic) == (5, ErrorCode.NONE)


@pytest.mark.parametrize(("protocol", "version"), [(V1, 0), (V1, 1), (V1, 2)])
def test_versions_without_members_are_taken(
    wire: Wire, topic: str, group: str, producer: TransactionalProducer, version: int
) -> None:
    producer.commit_offset(group, topic, 5)
    assert producer.commit_offset_once(group, topic, 6, version=version) == ErrorCode.NONE
    producer.commit()
    assert position(wire, group, topic) == (6, ErrorCode.NONE)
