"""The Produce that is read and written by hand is the Produce of the codec."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import MalformedMessage
from onceflow.wire.codec import decode, encode
from onceflow.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from onceflow.wire.produce import encode_success, read_produce

VERSIONS = st.integers(9, 13)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)

partitions = st.builds(PartitionProduceData, index=INT32, records=st.none() | st.binary(max_size=300))
topics = st.builds(
    TopicProduceData,
    topic_id=st.none() | st.uuids(),
    name=st.text(max_size=140),
    partition_data=st.lists(partitions, max_size=4),
)
requests = st.builds(
    ProduceRequest,
    transactional_id=st.none() | st.text(max_size=140),
    acks=st.integers(-(2**15), 2**15 - 1),
    timeout_ms=INT32,
    topic_data=st.lists(topics, max_size=3),
)


@given(request=requests, version=VERSIONS, prefix=st.binary(max_size=5))
def test_a_request_reads_as_the_codec_reads_it(request: ProduceRequest, version: int, prefix: bytes) -> None:
    frame = memoryview(bytearray(prefix + encode(request, version)))
    body = read_produce(frame, len(prefix), version)
    expected = decode(ProduceRequest, version, frame, len(prefix))
    assert (body.transactional_id, body.acks, body.timeout_ms) == (
        expected.transactional_id,
        expected.acks,
        expected.timeout_ms,
    )
    read = [(key, [(index, bytes(records)) for index, records in batches]) for key, batches in body.topics]
    assert read == [
        (
            (topic.topic_id.bytes if topic.topic_id else bytes(16)) if version >= 13 else topic.name,
            [(data.index, bytes(data.records or b"")) for data in topic.partition_data],
        )
        for topic in expected.topic_data
    ]


@given(request=requests, version=VERSIONS, data=st.data())
def test_a_damaged_request_is_malformed_and_nothing_else(
    request: ProduceRequest, version: int, data: st.DataObject
) -> None:
    raw = bytearray(encode(request, version))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (raw, raw[:cut], raw + b"\0"):
        try:
            read_produce(memoryview(damaged), 0, version)
        except MalformedMessage:
            continue


def test_bytes_behind_the_request_are_ignored() -> None:
    frame = encode(ProduceRequest(acks=1, timeout_ms=7), 9)
    assert read_produce(memoryview(frame + b"more"), 0, 9) == read_produce(memoryview(frame), 0, 9)


written = st.lists(st.tuples(INT32, INT64, INT64, INT64), max_size=200)


@given(version=VERSIONS, results=st.lists(st.tuples(st.text(max_size=140), st.uuids(), written), max_size=3))
def test_an_answer_of_successes_is_the_codecs(
    version: int, results: list[tuple[str, uuid.UUID, list[tuple[int, ...]]]]
) -> None:
    by_id = version >= 13
    by_hand = encode_success([(id.bytes if by_id else name, rows) for name, id, rows in results], version)  # type: ignore[misc]
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=name,
                topic_id=id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=index, base_offset=offset, log_append_time_ms=time, log_start_offset=start
                    )
                    for index, offset, time, start in rows
                ],
            )
            for name, id, rows in results
        ]
    )
    assert by_hand == encode(response, version)
