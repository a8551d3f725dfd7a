from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import MalformedMessage
from onceflow.group.consumer_members import Classic, Member, MemberState
from onceflow.group.consumer_records import (
    KINDS,
    CurrentAssignmentKey,
    CurrentAssignmentValue,
    GroupKey,
    GroupValue,
    MemberKey,
    MemberValue,
    PartitionMetadataKey,
    RegexKey,
    RegexValue,
    TargetMemberKey,
    TargetMemberValue,
    TargetMetadataKey,
    TargetMetadataValue,
    TargetTopic,
    TopicEpochs,
    decode_record,
    encode_record,
)

ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
STORED_ID = "00112233445566778899aabbccddeeff"

GROUP_AND_MEMBER = "0001 67 0001 6d"

SAMPLES = [
    (
        (GroupKey(group_id="g"), GroupValue(epoch=5, metadata_hash=-2)),
        "0003 0001 67",
        "0000 00000005 01 00 08 fffffffffffffffe",
    ),
    (
        (
            MemberKey(group_id="g", member_id="m"),
            MemberValue(
                instance_id="i",
                rack_id=None,
                client_id="c",
                client_host="/h",
                subscribed_topic_names=["t"],
                subscribed_topic_regex="",
                rebalance_timeout_ms=500,
                server_assignor=None,
                classic_member_metadata=None,
            ),
        ),
        f"0005 {GROUP_AND_MEMBER}",
        "0000 0269 00 0263 032f68 02 0274 01 000001f4 00 01 00 01 00",
    ),
    (
        (TargetMetadataKey(group_id="g"), TargetMetadataValue(assignment_epoch=5, assignment_timestamp=1)),
        "0006 0001 67",
        "0000 00000005 01 00 08 0000000000000001",
    ),
    (
        (
            TargetMemberKey(group_id="g", member_id="m"),
            TargetMemberValue(topic_partitions=[TargetTopic(topic_id=ID, partitions=[0, 2])]),
        ),
        f"0007 {GROUP_AND_MEMBER}",
        f"0000 02 {STORED_ID} 03 00000000 00000002 00 00",
    ),
    (
        (
            CurrentAssignmentKey(group_id="g", member_id="m"),
            CurrentAssignmentValue(
                member_epoch=5,
                previous_member_epoch=4,
                state=MemberState.UNREVOKED_PARTITIONS,
                assigned_partitions=[TopicEpochs(topic_id=ID, partitions=[0], assignment_epochs=[3])],
            ),
        ),
        f"0008 {GROUP_AND_MEMBER}",
        f"0000 00000005 00000004 01 02 {STORED_ID} 02 00000000 01 00 05 02 00000003 01 00",
    ),
    (
        (RegexKey(group_id="g", regular_expression="r"), RegexValue(topics=["t"], version=1, timestamp=2)),
        "0010 0001 67 0001 72",
        "0000 02 0274 0000000000000001 0000000000000002 00",
    ),
]


@pytest.mark.parametrize(("record", "key", "value"), SAMPLES, ids=lambda part: type(part[0]).__name__)
def test_records_are_stored_as_kafka_stores_them(record: tuple[object, object], key: str, value: str) -> None:
    stored = bytes.fromhex(key), bytes.fromhex(value)
    assert encode_record(record) == stored
    assert decode_record(*stored) == record


def test_a_record_as_kafka_wrote_it() -> None:
    """Apache Kafka 4.3.1, that is; the last three bytes say that the member does not use the classic protocol."""
    key = b"\0\x05\0\x05group\0\x24" + b"5fcc27af-e65e-46ae-a845-d07d30cff70f"
    value = b"\0\0\0\0\x04raw\x0b/127.0.0.1\x02\x06topic\x01\0\0\x01\xf4\0\x01\0\x01\0"
    decoded = decode_record(key, value)
    assert decoded is not None
    stored = decoded[1]
    assert isinstance(stored, MemberValue)
    member = Member("5fcc27af-e65e-46ae-a845-d07d30cff70f").with_metadata(stored)
    assert (member.client_id, member.topic_names, member.rebalance_timeout_ms) == ("raw", {"topic"}, 500)
    assert encode_record((decoded[0], member.metadata())) == (key, value)


def test_a_classic_member_as_kafka_wrote_it() -> None:
    key = b"\0\x05\0\x05group\0\x28" + b"raw-482f2d4d-4a79-447d-9a8a-5472edf7b6bc"
    value = b"\0\0\0\0\x04raw\x0b/127.0.0.1\x02\x06topic\x01\0\0\x27\x10\0"
    value += b"\x01\0\x20\x01\0\0\x27\x10\x02\x06range\x12\0\0\0\0\0\x01\0\x05topic\xff\xff\xff\xff\0\0"
    decoded = decode_record(key, value)
    assert decoded is not None
    stored = decoded[1]
    assert isinstance(stored, MemberValue)
    member = Member("raw-482f2d4d-4a79-447d-9a8a-5472edf7b6bc").with_metadata(stored)
    assert member.classic == Classic(10_000, (("range", b"\0\0\0\0\0\x01\0\x05topic\xff\xff\xff\xff"),))
    assert encode_record((decoded[0], member.metadata())) == (key, value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tombstone_has_no_value(kind: int) -> None:
    record = KINDS[kind][0](), None
    key, value = encode_record(record)
    assert (key[:2], value) == (kind.to_bytes(2, "big"), None)
    assert decode_record(key, value) == record


def test_records_of_other_kinds_are_not_read_here() -> None:
    assert decode_record(b"\0\x02\0\x01g", None) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\0\x03", None),
        (b"\0\x03\0\x05g", None),
        (b"\0\x03\0\x01g", b""),
        (b"\0\x03\0\x01g", b"\0\x01\0\0\0\x05\0"),
        (b"\0\x03\0\x01g", b"\0\0\0\0\0\x05\0\0"),
    ],
    ids=["empty key", "no group", "cut key", "empty value", "another version", "too long"],
)
def test_what_cannot_be_read_is_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(MalformedMessage):
        decode_record(key, value)


def test_partitions_without_epochs_are_held_since_the_members_epoch() -> None:
    """As Kafka wrote them before 4.2."""
    topics = [TopicEpochs(topic_id=ID, partitions=[0, 1])]
    value = CurrentAssignmentValue(member_epoch=7, assigned_partitions=topics)
    assert Member("m").with_current_assignment(value).assigned == {ID: {0: 7, 1: 7}}


def test_the_record_of_older_brokers_is_known_by_its_key() -> None:
    assert encode_record((PartitionMetadataKey(group_id="g"), None)) == (b"\0\x04\0\x01g", None)


TEXT = st.text(max_size=8)
EPOCHS = st.dictionaries(st.uuids(), st.dictionaries(st.integers(0, 99), st.integers(0, 9), min_size=1), max_size=3)
MEMBERS = st.builds(
    Member,
    member_id=st.just("m"),
    epoch=st.integers(-2, 99),
    previous_epoch=st.integers(-1, 99),
    state=st.sampled_from(list(MemberState)[:3]),
    instance_id=st.none() | TEXT,
    rack_id=st.none() | TEXT,
    rebalance_timeout_ms=st.integers(-1, 2**31 - 1),
    client_id=TEXT,
    client_host=TEXT,
    topic_names=st.frozensets(TEXT),
    topic_regex=st.none() | TEXT,
    assignor=st.none() | TEXT,
    assigned=EPOCHS,
    revoking=EPOCHS,
)


@given(MEMBERS)
def test_a_member_is_what_its_two_records_say(member: Member) -> None:
    key = CurrentAssignmentKey(group_id="g", member_id="m")
    wants = decode_record(*encode_record((MemberKey(group_id="g", member_id="m"), member.metadata())))
    has = decode_record(*encode_record((key, member.current_assignment())))
    assert wants is not None
    assert has is not None
    assert isinstance(wants[1], MemberValue)
    assert isinstance(has[1], CurrentAssignmentValue)
    assert Member("m").with_metadata(wants[1]).with_current_assignment(has[1]) == member
