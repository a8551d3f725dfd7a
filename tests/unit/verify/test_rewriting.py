"""Addresses in answers: replaced wherever clients would follow them, in every version, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.client.addresses import Address
from onceflow.errors import ErrorCode, MalformedMessage
from onceflow.verify.fates import Frame
from onceflow.verify.rewriting import rewritten, without_records
from onceflow.wire import codec
from onceflow.wire.messages import REQUESTS, response_class
from onceflow.wire.messages import fetch as fetch_messages
from onceflow.wire.messages import produce as produce_messages
from onceflow.wire.messages.api_versions import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey
from onceflow.wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from onceflow.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from onceflow.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from onceflow.wire.messages.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from onceflow.wire.messages.produce import ProduceResponse
from onceflow.wire.schema import Message

CORRELATION_ID = 77
PROXIES = {1: Address("127.0.0.1", 11001), 2: Address("127.0.0.1", 11002)}
BROKERS = {1: Address("kafka-1.example.org", 9092), 2: Address("kafka-2.example.org", 9092)}


def locate(node: int, address: Address) -> Address:
    assert address == BROKERS[node]
    return PROXIES[node]


def frame(api_key: int, version: int) -> Frame:
    return Frame(connection=1, api_key=api_key, api_version=version, correlation_id=CORRELATION_ID, size=0)


def answer(message: Message, version: int) -> bytes:
    assert message.API_KEY is not None
    return codec.response_header(message.API_KEY, version, CORRELATION_ID) + codec.encode(message, version)


def shown(message: Message, version: int) -> Any:
    """What a client reads."""
    assert message.API_KEY is not None
    data = rewritten(frame(message.API_KEY, version), answer(message, version), locate)
    header = codec.response_header(message.API_KEY, version, CORRELATION_ID)
    assert data.startswith(header)
    return codec.decode(response_class(message.API_KEY), version, data, len(header))


def versions(api_key: int, first: int = 0) -> list[int]:
    return list(range(max(first, REQUESTS[api_key].min_version), REQUESTS[api_key].max_version + 1))


def metadata(addresses: dict[int, Address]) -> MetadataResponse:
    brokers = [MetadataResponseBroker(node_id=id, host=at.host, port=at.port) for id, at in addresses.items()]
    return MetadataResponse(brokers=brokers, topics=[MetadataResponseTopic(name="orders")])


@pytest.mark.parametrize("version", versions(3))
def test_metadata_names_the_proxies(version: int) -> None:
    assert shown(metadata(BROKERS), version).brokers == metadata(PROXIES).brokers
    assert [topic.name for topic in shown(metadata(BROKERS), version).topics] == ["orders"]


def coordinators(addresses: dict[int, Address], version: int) -> FindCoordinatorResponse:
    if version < 4:
        return FindCoordinatorResponse(node_id=2, host=addresses[2].host, port=addresses[2].port)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key="a", node_id=2, host=addresses[2].host, port=addresses[2].port),
            Coordinator(key="b", node_id=-1, host="", port=-1, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ]
    )


@pytest.mark.parametrize("version", versions(10))
def test_find_coordinator_names_the_proxy(version: int) -> None:
    assert shown(coordinators(BROKERS, version), version) == coordinators(PROXIES, version)


@pytest.mark.parametrize("version", versions(10))
def test_a_coordinator_that_was_not_found_is_left_as_it_is(version: int) -> None:
    nobody = Coordinator(key="b", node_id=-1, host="", port=-1)
    none = FindCoordinatorResponse(node_id=-1, host="", port=-1, coordinators=[nobody])
    assert rewritten(frame(10, version), answer(none, version), locate) == answer(none, version)


def cluster(addresses: dict[int, Address], **rest: int) -> DescribeClusterResponse:
    brokers = [DescribeClusterBroker(broker_id=id, host=at.host, port=at.port) for id, at in addresses.items()]
    return DescribeClusterResponse(cluster_id="c", brokers=brokers, **rest)


@pytest.mark.parametrize("version", versions(60))
def test_describe_cluster_names_the_proxies(version: int) -> None:
    assert shown(cluster(BROKERS), version) == cluster(PROXIES)


@pytest.mark.parametrize("version", versions(60, first=1))
def test_controllers_keep_their_addresses(version: int) -> None:
    controllers = cluster(BROKERS, endpoint_type=2)
    assert shown(controllers, version) == controllers


@pytest.mark.parametrize("version", versions(0, first=10))
def test_new_leaders_in_a_produce_answer_are_behind_the_proxies(version: int) -> None:
    def produced(at: Address) -> ProduceResponse:
        endpoint = produce_messages.NodeEndpoint(node_id=2, host=at.host, port=at.port)
        return ProduceResponse(node_endpoints=[endpoint], throttle_time_ms=5)

    assert shown(produced(BROKERS[2]), version) == produced(PROXIES[2])


@pytest.mark.parametrize("version", versions(1, first=16))
def test_new_leaders_in_a_fetch_answer_are_behind_the_proxies_and_records_stay(version: int) -> None:
    def fetched(at: Address) -> FetchResponse:
        endpoint = fetch_messages.NodeEndpoint(node_id=1, host=at.host, port=at.port)
        partition = PartitionData(records=b"record batches", high_watermark=7)
        return FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])], node_endpoints=[endpoint])

    assert shown(fetched(BROKERS[1]), version) == fetched(PROXIES[1])


@pytest.mark.parametrize(("api_key", "version"), [(0, 2), (0, 9), (1, 3), (1, 15), (26, 5), (9999, 0), (-1, -1)])
def test_answers_without_addresses_are_not_even_looked_at(api_key: int, version: int) -> None:
    data = b"\0\0\0\x4dwhatever this is"
    assert rewritten(frame(api_key, version), data, locate) is data


@pytest.mark.parametrize("api_key", [0, 1, 3, 10, 60])
def test_an_answer_that_is_newer_than_we_know_is_not_let_through(api_key: int) -> None:
    with pytest.raises(MalformedMessage):
        rewritten(frame(api_key, REQUESTS[api_key].max_version + 1), b"\0\0\0\x4d\0\0\0\0", locate)


def test_an_answer_that_is_cut_short_is_not_let_through() -> None:
    with pytest.raises(MalformedMessage):
        rewritten(frame(3, 12), answer(metadata(BROKERS), 12)[:-3], locate)


def announced(**highest: int) -> ApiVersionsResponse:
    """ApiVersions of a broker; keys are written as k3=13."""
    keys = [ApiVersion(api_key=int(key[1:]), min_version=0, max_version=last) for key, last in highest.items()]
    return ApiVersionsResponse(api_keys=keys)


@pytest.mark.parametrize("version", versions(18))
def test_versions_that_we_could_not_read_are_not_announced(version: int) -> None:
    found = shown(announced(k0=99, k1=99, k3=99, k10=99, k18=99, k60=99, k26=99), version)
    assert {each.api_key: each.max_version for each in found.api_keys} == {
        **{key: REQUESTS[key].max_version for key in (0, 1, 3, 10, 18, 60)},
        26: 99,
    }


@pytest.mark.parametrize("version", versions(18))
def test_what_would_show_addresses_in_ways_that_we_do_not_read_is_not_announced(version: int) -> None:
    assert shown(announced(k0=9, k78=1, k79=1), version).api_keys == announced(k0=9).api_keys


@pytest.mark.parametrize("version", versions(18, first=3))
def test_features_stay_in_an_announcement_that_was_changed(version: int) -> None:
    told = announced(k3=99)
    told.finalized_features = [FinalizedFeatureKey(name="transaction.version", max_version_level=2)]
    assert shown(told, version).finalized_features == told.finalized_features


@pytest.mark.parametrize("version", versions(18))
def test_an_announcement_of_what_we_know_stays_as_it_is(version: int) -> None:
    known = answer(announced(k0=9, k3=12, k26=5), version)
    assert rewritten(frame(18, version), known, locate) is known


def test_a_refused_version_of_the_announcement_itself_is_read_as_version_0() -> None:
    refusal = announced(k18=99)
    refusal.error_code = ErrorCode.UNSUPPORTED_VERSION
    data = rewritten(frame(18, 4), answer(refusal, 0), locate)
    told = codec.decode(ApiVersionsResponse, 0, data, 4)
    assert (told.error_code, told.api_keys) == (ErrorCode.UNSUPPORTED_VERSION, announced(k18=4).api_keys)


def test_an_announcement_newer_than_we_know_is_refused_as_a_broker_refuses_it() -> None:
    data = rewritten(frame(18, 5), b"\0\0\0\x4dsomething new", locate)
    told = codec.decode(ApiVersionsResponse, 0, data, 4)
    assert data[:4] == b"\0\0\0\x4d"
    assert (told.error_code, told.api_keys) == (ErrorCode.UNSUPPORTED_VERSION, announced(k18=4).api_keys)


@pytest.mark.parametrize("version", versions(1))
def test_a_fetch_answer_without_its_records_still_says_where_the_log_ends(version: int) -> None:
    def fetched(records: bytes) -> FetchResponse:
        partitions = [PartitionData(partition_index=each, records=records, high_watermark=7 + each) for each in (0, 1)]
        return FetchResponse(responses=[FetchableTopicResponse(partitions=partitions)], throttle_time_ms=5)

    emptied = without_records(frame(1, version), answer(fetched(b"record batches"), version))
    assert emptied == answer(fetched(b""), version)
    assert without_records(frame(1, version), emptied) == emptied


def test_other_answers_have_no_records_to_leave_out() -> None:
    data = b"\0\0\0\x4dwhatever this is"
    assert without_records(frame(0, 9), data) is data
