"""Keys and values in the offsets topic are Kafka's, byte for byte."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import MalformedMessage
from onceflow.group.offsets import NO_EXPIRY, CommittedOffset, offset_record, offset_tombstone
from onceflow.group.records import (
    GROUP_METADATA,
    GROUP_VERSION,
    OFFSET_COMMIT,
    OFFSET_VERSION,
    GroupMember,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    kind_of,
    read_key,
    read_value,
    write_key,
    write_value,
)

TOPIC_ID = UUID("01020304-0506-0708-090a-0b0c0d0e0f10")


def test_the_key_of_an_offset_is_kind_one_then_group_topic_and_partition() -> None:
    key, value = offset_tombstone("grp", "top", 7)
    assert key.hex(" ") == "00 01 00 03 67 72 70 00 03 74 6f 70 00 00 00 07"
    assert value is None
    assert read_key(OffsetCommitKey, key) == OffsetCommitKey(group="grp", topic="top", partition=7)


def test_an_offset_is_written_in_version_four() -> None:
    _, value = offset_record("g", "t", 0, CommittedOffset(5, 2, "m", 9))
    assert value is not None
    assert value.hex(" ") == "00 04 00 00 00 00 00 00 00 05 00 00 00 02 02 6d 00 00 00 00 00 00 00 09 00"


def test_an_offset_with_a_topic_id_has_it_as_a_tag() -> None:
    _, value = offset_record("g", "t", 0, CommittedOffset(5, 2, "m", 9, topic_id=TOPIC_ID))
    assert value is not None
    assert value.endswith(bytes([1, 0, 16]) + TOPIC_ID.bytes)
    assert read_value(OffsetCommitValue, value).topic_id == TOPIC_ID


@given(
    st.text(max_size=300),
    st.text(max_size=20),
    st.integers(0, 2**31 - 1),
    st.builds(
        CommittedOffset,
        offset=st.integers(-1, 2**63 - 1),
        leader_epoch=st.integers(-1, 2**31 - 1),
        metadata=st.text(max_size=300),
        commit_timestamp_ms=st.integers(0, 2**63 - 1),
        expire_timestamp_ms=st.just(NO_EXPIRY),
        topic_id=st.none() | st.uuids(allow_nil=False),
    ),
)
def test_offsets_are_written_as_the_codec_would(
    group: str, topic: str, partition: int, offset: CommittedOffset
) -> None:
    value = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
        topic_id=offset.topic_id,
    )
    expected = (
        write_key(OFFSET_COMMIT, OffsetCommitKey(group=group, topic=topic, partition=partition)),
        write_value(OFFSET_VERSION, value),
    )
    assert offset_record(group, topic, partition, offset) == expected


def test_an_offset_that_expires_is_written_in_version_one_which_has_no_leader_epoch() -> None:
    _, value = offset_record("g", "t", 0, CommittedOffset(5, 2, "m", 9, expire_timestamp_ms=11))
    assert value is not None
    assert value.hex(" ") == "00 01 00 00 00 00 00 00 00 05 00 01 6d 00 00 00 00 00 00 00 09 00 00 00 00 00 00 00 0b"
    read = CommittedOffset.of(read_value(OffsetCommitValue, value), 3)
    assert read == CommittedOffset(5, -1, "m", 9, expire_timestamp_ms=11, record_offset=3)


def test_a_group_is_written_in_version_three_and_read_back() -> None:
    member = GroupMember(
        member_id="m",
        group_instance_id="i",
        client_id="c",
        client_host="/h",
        rebalance_timeout=2,
        session_timeout=1,
        subscription=b"s",
        assignment=b"a",
    )
    group = GroupMetadataValue(
        protocol_type="consumer",
        generation=4,
        protocol="range",
        leader="m",
        current_state_timestamp=6,
        members=[member],
    )
    value = write_value(GROUP_VERSION, group)
    assert value[:2] == b"\0\3"
    assert read_value(GroupMetadataValue, value) == group
    key = write_key(GROUP_METADATA, GroupMetadataKey(group="g"))
    assert (key.hex(" "), kind_of(key)) == ("00 02 00 01 67", GROUP_METADATA)


def test_a_key_without_a_kind_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="has no kind"):
        kind_of(b"\0")
