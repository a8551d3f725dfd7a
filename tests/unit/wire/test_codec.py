"""The codec on bytes written by hand: what each form looks like, and what each kind of damage is called."""

from __future__ import annotations

import uuid

import pytest

from onceflow.errors import ErrorCode, MalformedMessage
from onceflow.wire.codec import (
    RequestHeader,
    decode,
    decode_from,
    encode,
    encode_parts,
    is_flexible,
    read_request_header,
    request_header,
    response_header,
)
from onceflow.wire.messages import REQUESTS, request_class, request_is_flexible, response_class
from onceflow.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from onceflow.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from onceflow.wire.messages.delete_topics import DeleteTopicsRequest
from onceflow.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from onceflow.wire.messages.fetch import FetchRequest, FetchTopic
from onceflow.wire.messages.join_group import JoinGroupRequestProtocol
from onceflow.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from onceflow.wire.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from onceflow.wire.messages.sync_group import SyncGroupRequestAssignment
from onceflow.wire.primitives import ARRAY_LENGTH_MAX
from onceflow.wire.schema import Message, field, in_range


def refusal(cls: type[Message], version: int, data: bytes) -> str:
    with pytest.raises(MalformedMessage) as caught:
        decode(cls, version, data)
    return str(caught.value)


class TaggedPart(Message, flexible=0):
    number: int = field("int32", "0+")


class Tagged(Message, flexible=0):
    part: TaggedPart | None = field(TaggedPart, "0+", null="0+", tag=0)


class TestMessages:
    def test_every_field_has_a_default(self) -> None:
        request = CreateTopicsRequest()
        assert (request.topics, request.timeout_ms, request.validate_only) == ([], 60000, False)

    def test_two_messages_share_no_list_and_no_struct(self) -> None:
        assert CreateTopicsRequest().topics is not CreateTopicsRequest().topics
        assert PartitionProduceResponse().current_leader is not PartitionProduceResponse().current_leader
        data = encode(PartitionProduceResponse(), 9)
        assert decode(PartitionProduceResponse, 9, data).current_leader is not (
            decode(PartitionProduceResponse, 9, data).current_leader
        )

    def test_equality_is_by_value_and_class(self) -> None:
        assert CreatableTopic(name="a") == CreatableTopic(name="a")
        assert CreatableTopic(name="a") != CreatableTopic(name="b")
        assert LeaderIdAndEpoch() != Cursor()

    def test_repr_shows_what_is_not_default(self) -> None:
        shown = repr(CreateTopicsRequest(topics=[CreatableTopic(name="a")], validate_only=True))
        assert shown == "CreateTopicsRequest(topics=[CreatableTopic(name='a')], validate_only=True)"

    def test_a_field_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(TypeError, match="nmae"):
            CreatableTopic(nmae="a")  # type: ignore[call-arg]
        with pytest.raises(AttributeError):
            CreatableTopic().nmae = "a"  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        ("versions", "inside"),
        [("2+", [2, 3, 4]), ("1-2", [1, 2]), ("3", [3]), ("", []), ("0+", [0, 1, 2, 3, 4])],
    )
    def test_version_ranges(self, versions: str, inside: list[int]) -> None:
        assert [v for v in range(5) if in_range(v, versions)] == inside


class TestForms:
    TOPIC = CreatableTopic(
        name="t", num_partitions=3, replication_factor=1, configs=[CreatableTopicConfig(name="k", value=None)]
    )

    def test_old_form(self) -> None:
        data = bytes.fromhex("00000001 0001 74 00000003 0001 00000000 00000001 0001 6b ffff 0000ea60 01")
        message = CreateTopicsRequest(topics=[self.TOPIC], validate_only=True)
        assert encode(message, 2) == data
        assert decode(CreateTopicsRequest, 2, data) == message

    def test_flexible_form(self) -> None:
        data = bytes.fromhex("02 02 74 00000003 0001 01 02 02 6b 00 00 00 0000ea60 01 00")
        message = CreateTopicsRequest(topics=[self.TOPIC], validate_only=True)
        assert encode(message, 5) == data
        assert decode(CreateTopicsRequest, 5, data) == message

    def test_null_array(self) -> None:
        assert encode(MetadataRequest(topics=None), 1) == b"\xff\xff\xff\xff"
        assert decode(MetadataRequest, 1, b"\xff\xff\xff\xff").topics is None
        assert decode(MetadataRequest, 9, bytes.fromhex("00 01 00 00 00")).topics is None

    def test_null_struct_is_a_marker_byte(self) -> None:
        data = bytes.fromhex("01 000007d0 ff 00")
        assert encode(DescribeTopicPartitionsRequest(), 0) == data
        assert decode(DescribeTopicPartitionsRequest, 0, data).cursor is None
        there = bytes.fromhex("01 000007d0 01 02 74 00000005 00 00")
        assert decode(DescribeTopicPartitionsRequest, 0, there).cursor == Cursor(topic_name="t", partition_index=5)

    def test_tagged_field_is_written_only_when_it_is_not_the_default(self) -> None:
        plain = encode(PartitionProduceResponse(), 10)
        assert plain[-1:] == b"\0"
        led = PartitionProduceResponse(current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=2))
        data = encode(led, 10)
        assert data == plain[:-1] + bytes.fromhex("01 00 09 00000001 00000002 00")
        assert decode(PartitionProduceResponse, 10, data) == led

    def test_null_struct_in_a_tagged_field_is_a_number(self) -> None:
        """As in Kafka's records of consumer groups, where null is not the default."""
        assert encode(Tagged(part=None), 0) == bytes.fromhex("01 00 01 00")
        assert encode(Tagged(), 0) == bytes.fromhex("00")
        there = bytes.fromhex("01 00 06 01 00000007 00")
        assert encode(Tagged(part=TaggedPart(number=7)), 0) == there
        for message in (Tagged(part=None), Tagged(), Tagged(part=TaggedPart(number=7))):
            assert decode(Tagged, 0, encode(message, 0)) == message

    def test_unknown_tags_are_skipped(self) -> None:
        known = encode(CreateTopicsRequest(), 5)
        unknown = known[:-1] + bytes.fromhex("02 07 03 616263 8801 00")
        assert decode(CreateTopicsRequest, 5, unknown) == CreateTopicsRequest()
        # Beside known ones, too.
        request = FetchRequest(cluster_id="c")
        data = encode(request, 12)
        assert data.endswith(bytes.fromhex("01 00 02 02 63"))
        more = data.removesuffix(bytes.fromhex("01 00 02 02 63")) + bytes.fromhex("02 00 02 02 63 09 01 00")
        assert decode(FetchRequest, 12, more) == request

    def test_zero_uuid_is_none(self) -> None:
        data = encode(FetchTopic(topic_id=None), 13)
        assert data.startswith(bytes(16))
        assert decode(FetchTopic, 13, data).topic_id is None
        some = uuid.UUID(int=7)
        assert decode(FetchTopic, 13, encode(FetchTopic(topic_id=some), 13)).topic_id == some

    def test_any_nonzero_byte_is_true(self) -> None:
        assert decode(CreateTopicsRequest, 2, bytes.fromhex("00000000 00000000 07")).validate_only is True

    def test_lengths_of_more_than_one_byte(self) -> None:
        for length in (126, 127, 128, 2046, 2047, 16383, 20000, 32767):
            topic = CreatableTopic(name="x" * length)
            assert decode(CreatableTopic, 5, encode(topic, 5)) == topic
        protocol = JoinGroupRequestProtocol(metadata=bytes(2_100_000))
        assert decode(JoinGroupRequestProtocol, 6, encode(protocol, 6)) == protocol

    def test_an_error_code_is_a_number(self) -> None:
        response = PartitionProduceResponse(error_code=ErrorCode.CORRUPT_MESSAGE)
        assert decode(PartitionProduceResponse, 3, encode(response, 3)).error_code == 2


class TestVersions:
    def test_fields_of_other_versions_are_dropped(self) -> None:
        message = MetadataRequest(topics=[MetadataRequestTopic(name="t", topic_id=uuid.UUID(int=1))])
        assert decode(MetadataRequest, 0, encode(message, 0)) == MetadataRequest(
            topics=[MetadataRequestTopic(name="t")]
        )

    def test_none_where_null_is_not_allowed_is_the_empty_value(self) -> None:
        assert encode(MetadataRequest(topics=None), 0) == bytes(4)
        assert decode(MetadataResponseTopic, 0, encode(MetadataResponseTopic(name=None), 0)).name == ""

    def test_a_version_that_does_not_exist_is_a_bug_of_the_caller(self) -> None:
        with pytest.raises(ValueError, match="2 to 7, not 8"):
            decode(CreateTopicsRequest, 8, b"")
        with pytest.raises(ValueError, match="2 to 7, not 1"):
            encode(CreateTopicsRequest(), 1)

    def test_a_value_that_does_not_fit_is_a_bug_of_the_caller(self) -> None:
        with pytest.raises(ValueError, match="CreateTopicsRequest"):
            encode(CreateTopicsRequest(timeout_ms=2**31), 7)

    def test_flexible_from(self) -> None:
        assert [is_flexible(CreateTopicsRequest, v) for v in (4, 5)] == [False, True]


class TestBuffers:
    REQUEST = ProduceRequest(
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=b"batch")])]
    )

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    @pytest.mark.parametrize("version", [3, 9])
    def test_any_buffer_decodes(self, kind: type, version: int) -> None:
        decoded = decode(ProduceRequest, version, kind(encode(self.REQUEST, version)))
        assert decoded == self.REQUEST
        assert type(decoded.topic_data[0].name) is str

    def test_records_are_a_view_into_the_input(self) -> None:
        data = encode(self.REQUEST, 9)
        records = decode(ProduceRequest, 9, data).topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        assert records.obj is data

    def test_records_are_passed_through_when_written(self) -> None:
        big = bytearray(100)
        parts = encode_parts(PartitionProduceData(records=big), 9)
        assert any(part is big for part in parts)

    def test_a_view_of_wide_elements_counts_in_bytes(self) -> None:
        wide = memoryview(bytes(16)).cast("q")
        assert encode(PartitionProduceData(records=wide), 9) == encode(PartitionProduceData(records=bytes(16)), 9)

    def test_bytes_fields_are_copies(self) -> None:
        data = bytearray(encode(SyncGroupRequestAssignment(member_id="m", assignment=b"abc"), 4))
        decoded = decode(SyncGroupRequestAssignment, 4, data)
        data[:] = bytes(len(data))
        assert decoded.assignment == b"abc"

    def test_decoding_can_start_inside_and_tell_where_it_ended(self) -> None:
        data = b"head" + encode(CreateTopicsRequest(), 7) + b"tail"
        assert decode_from(CreateTopicsRequest, 7, data, 4) == (CreateTopicsRequest(), len(data) - 4)
        assert decode(CreateTopicsRequest, 7, data[:-4], 4) == CreateTopicsRequest()


class TestDamage:
    def test_cut_anywhere(self) -> None:
        message = CreateTopicsRequest(topics=[TestForms.TOPIC])
        for version in (2, 7):
            data = encode(message, version)
            for size in range(len(data)):
                refusal(CreateTopicsRequest, version, data[:size])

    def test_cut_between_fields(self) -> None:
        assert refusal(CreateTopicsRequest, 2, bytes(4)) == "CreateTopicsRequest version 2 is cut short."

    def test_trailing_bytes(self) -> None:
        said = refusal(CreateTopicsRequest, 7, encode(CreateTopicsRequest(), 7) + b"ab")
        assert said == "CreateTopicsRequest version 7 is complete, but 2 more bytes follow."

    def test_array_longer_than_the_data(self) -> None:
        said = refusal(CreateTopicsRequest, 2, bytes.fromhex("7fffffff 00000000 00"))
        assert said.startswith("CreateTopicsRequest.topics claims a length of 2147483647, which 5 remaining")

    def test_array_whose_elements_need_more_bytes_than_are_left(self) -> None:
        """Eight topics of at least 16 bytes do not fit into nine bytes, though eight bytes would."""
        assert "a length of 8" in refusal(CreateTopicsRequest, 2, bytes.fromhex("00000008") + bytes(9))

    def test_string_longer_than_the_data(self) -> None:
        assert "CreatableTopic.name claims" in refusal(CreatableTopic, 2, bytes.fromhex("7fff") + bytes(20))

    def test_negative_lengths(self) -> None:
        assert "topics has the negative length -2" in refusal(MetadataRequest, 1, b"\xff\xff\xff\xfe")
        assert "name has the negative length -32768" in refusal(CreatableTopic, 2, b"\x80\0" + bytes(20))

    def test_null_where_it_is_not_allowed(self) -> None:
        assert "CreatableTopic.name is null" in refusal(CreatableTopic, 2, b"\xff\xff" + bytes(20))
        assert "CreatableTopic.name is null" in refusal(CreatableTopic, 5, bytes(20))
        assert "MetadataRequest.topics is null" in refusal(MetadataRequest, 0, b"\xff\xff\xff\xff")

    def test_number_of_variable_length_without_end(self) -> None:
        assert "more than five bytes" in refusal(CreatableTopic, 5, b"\xff" * 20)
        assert "more than 32 bits" in refusal(CreatableTopic, 5, b"\xff\xff\xff\xff\x7f" + bytes(20))

    def test_string_that_is_not_utf8(self) -> None:
        said = refusal(CreatableTopic, 2, bytes.fromhex("0001 ff") + bytes(14))
        assert said == "CreatableTopic version 2 has a string that is not UTF-8."

    def test_tag_longer_than_the_data(self) -> None:
        data = encode(CreateTopicsRequest(), 5)[:-1] + bytes.fromhex("01 07 ffffffff0f")
        assert "tagged field claims a length of 4294967295" in refusal(CreateTopicsRequest, 5, data)

    def test_a_string_of_more_than_32767_bytes(self) -> None:
        data = encode(CreatableTopic(name="x" * 32768), 5)
        assert "claims a length of 32768; a string has at most 32767" in refusal(CreatableTopic, 5, data)
        assert "a string has at most 32767" in refusal(
            DeleteTopicsRequest, 5, encode(DeleteTopicsRequest(topic_names=["x" * 32768]), 5)
        )

    def test_thousands_of_tags_in_one_section(self) -> None:
        data = encode(DeleteTopicsRequest(), 5)[:-1] + b"\xe9\x07" + b"\x63\x00" * 1001
        assert "1001 tagged fields" in refusal(DeleteTopicsRequest, 5, data)

    def test_more_elements_than_a_budget_allows(self) -> None:
        topics = [CreatableTopic(name=name, configs=[CreatableTopicConfig(name="c")] * 4) for name in "abcdefgh"]
        request = CreateTopicsRequest(topics=topics)
        for version in (4, 5):
            data = encode(request, version)
            read, end = decode_from(CreateTopicsRequest, version, data, elements_max=40)  # 8 topics, 32 settings
            assert (read, end) == (decode(CreateTopicsRequest, version, data), len(data))
            with pytest.raises(MalformedMessage, match="configs has more elements"):
                decode_from(CreateTopicsRequest, version, data, elements_max=39)

    def test_tagged_fields_count_as_elements(self) -> None:
        data = encode(DeleteTopicsRequest(topic_names=["a"]), 5)[:-1] + b"\x0a" + b"\x63\x00" * 10
        decode_from(DeleteTopicsRequest, 5, data, elements_max=11)
        with pytest.raises(MalformedMessage, match="tagged fields, has more elements"):
            decode_from(DeleteTopicsRequest, 5, data, elements_max=10)

    def test_what_is_within_a_budget_by_its_bytes_is_not_counted(self) -> None:
        data = encode(DeleteTopicsRequest(topic_names=[""] * 10), 5)
        decode_from(DeleteTopicsRequest, 5, data, elements_max=len(data))

    def test_more_tags_than_bytes(self) -> None:
        data = encode(CreateTopicsRequest(), 5)[:-1] + bytes.fromhex("ffffffff0f")
        assert "4294967295 tagged fields in one section" in refusal(CreateTopicsRequest, 5, data)

    def test_known_tag_of_the_wrong_size(self) -> None:
        data = encode(PartitionProduceResponse(), 10)[:-1] + bytes.fromhex("01 00 0a 00000001 00000002 00 00")
        assert "current_leader claims 10 bytes and has 9" in refusal(PartitionProduceResponse, 10, data)

    def test_elements_without_bytes_cannot_be_declared(self) -> None:
        class Nothing(Message):
            pass

        class Endless(Message):
            nothings: list[Nothing] = field([Nothing], "0+")

        with pytest.raises(TypeError, match="without any bytes"):
            decode(Endless, 0, b"\x7f\xff\xff\xff")


class TestHeaders:
    def test_round_trip(self) -> None:
        for version, size in ((8, 12), (9, 13)):
            data = request_header(MetadataRequest, version, 7, "me") + b"body"
            assert read_request_header(data) == RequestHeader(3, version, 7, "me", size)

    def test_no_client_id(self) -> None:
        assert read_request_header(bytes.fromhex("0003 0000 00000007 ffff")).client_id is None

    def test_unknown_version_of_api_versions_has_the_flexible_header(self) -> None:
        frame = bytes.fromhex("0012 0063 00000001 0001 63 00")
        assert read_request_header(frame) == RequestHeader(18, 99, 1, "c", 12)

    def test_unknown_api_is_read_as_far_as_it_is_known(self) -> None:
        assert read_request_header(bytes.fromhex("03e7 0000 00000001 0000 ffff")).body_at == 10

    def test_caller_may_say_what_is_flexible(self) -> None:
        frame = bytes.fromhex("03e7 0000 00000001 0000 01 05 01 61 ff")
        assert read_request_header(frame, lambda api_key, version: True).body_at == 14

    @pytest.mark.parametrize(
        ("frame", "said"),
        [
            ("", "cut short"),
            ("0003 0000 00000007", "cut short"),
            ("0003 0000 00000007 0002 61", "client id claims a length of 2"),
            ("0003 0000 00000007 fffe", "negative length -2"),
            ("0003 0000 00000007 0001 ff", "not UTF-8"),
            ("0003 0009 00000007 ffff", "cut short"),
            ("0003 0009 00000007 ffff 01 00 05 00", "claims a length of 5"),
        ],
    )
    def test_damage(self, frame: str, said: str) -> None:
        with pytest.raises(MalformedMessage, match=said):
            read_request_header(bytes.fromhex(frame))

    def test_response_header(self) -> None:
        assert response_header(3, 8, 7) == bytes.fromhex("00000007")
        assert response_header(3, 9, 7) == bytes.fromhex("00000007 00")

    def test_response_header_of_api_versions_never_has_tags(self) -> None:
        assert response_header(18, 4, 7) == bytes.fromhex("00000007")


class TestIndex:
    def test_classes_are_found_by_key(self) -> None:
        assert request_class(18) is ApiVersionsRequest
        assert response_class(18) is ApiVersionsResponse

    def test_unknown_key(self) -> None:
        with pytest.raises(KeyError):
            request_class(999)
        assert not request_is_flexible(999, 0)

    def test_index_and_classes_agree(self) -> None:
        for key, api in REQUESTS.items():
            for cls in (request_class(key), response_class(key)):
                assert (key, (api.min_version, api.max_version)) == (cls.API_KEY, cls.VERSIONS)
                assert api.flexible_from == cls.FLEXIBLE_FROM


@pytest.mark.parametrize("version", [5, 1])
def test_more_elements_than_make_sense_are_refused_before_they_are_read(version: int) -> None:
    """A megabyte of empty names would become a gigabyte of objects."""
    crowd = DeleteTopicsRequest(topic_names=[""] * (ARRAY_LENGTH_MAX + 1), timeout_ms=1)
    with pytest.raises(MalformedMessage, match="100001 elements"):
        decode(DeleteTopicsRequest, version, encode(crowd, version))
    crowd.topic_names.pop()
    assert decode(DeleteTopicsRequest, version, encode(crowd, version)) == crowd
