"""The addresses in a broker's answers, replaced by others: so that clients come back to where they asked.

A client learns where the nodes of a cluster are from five answers, and goes there:

    Metadata, DescribeCluster     all nodes
    FindCoordinator               the node that coordinates a group or a transactional id
    Produce, Fetch                nodes that have become leaders (KIP-951), in tagged fields

Invariants:

- No address leaves unreplaced. An answer that we cannot read, in a version newer than our tables, raises
  `MalformedMessage`. It does not come to that with clients that ask for versions first: in ApiVersions these five are
  announced no higher than we know them. ShareFetch and ShareAcknowledge carry addresses too and are not announced at
  all: groups that share partitions are not exactly once anyway.
- What has nothing to replace stays byte for byte as it was, and so do all other answers.
- The controllers in a DescribeCluster that asks for them are left alone: they are nodes of another kind, whose ids may
  be those of brokers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from onceflow.client.addresses import Address
from onceflow.errors import ErrorCode, MalformedMessage
from onceflow.verify.fates import Frame
from onceflow.wire import codec
from onceflow.wire.messages import REQUESTS, request_is_flexible, response_class
from onceflow.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from onceflow.wire.primitives import skip_tags
from onceflow.wire.schema import Message

__all__ = ["Locate", "rewritten", "without_records"]

Locate = Callable[[int, Address], Address]
"""Where clients are to go for the node of this id, which is at this address."""

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, API_VERSIONS, DESCRIBE_CLUSTER = 0, 1, 3, 10, 18, 60
FIRST_WITH_ADDRESSES: Final = {PRODUCE: 10, FETCH: 16, METADATA: 0, FIND_COORDINATOR: 0, DESCRIBE_CLUSTER: 0}
"""By api, the first version whose answers name nodes."""
NOT_ANNOUNCED: Final = frozenset({78, 79})
BROKERS: Final = 1  # the endpoint type of a DescribeCluster that is not about controllers
CORRELATION_ID_BYTES: Final = 4


class _Named(NamedTuple):
    """A part of an answer that has a host and a port, and the id of the node that they are of."""

    node_id: int
    part: Any


def rewritten(frame: Frame, response: bytes, locate: Locate) -> bytes:
    """The response to `frame`, without the length prefix, as clients are to see it."""
    if frame.api_key == API_VERSIONS:
        return _announcing_what_we_know(frame, response)
    first = FIRST_WITH_ADDRESSES.get(frame.api_key)
    if first is None or frame.api_version < first:
        return response
    at = _body_at(frame, response)
    message = _decoded(response_class(frame.api_key), frame.api_version, response, at)
    named = list(_named(message))
    for node_id, part in named:
        part.host, part.port = locate(node_id, Address(part.host, part.port))
    return response[:at] + codec.encode(message, frame.api_version) if named else response


def without_records(frame: Frame, response: bytes) -> bytes:
    """The response to `frame`, without the length prefix; if that is a Fetch, without its records. Where logs begin and
    end is still said."""
    if frame.api_key != FETCH:
        return response
    at = _body_at(frame, response)
    message = _decoded(response_class(FETCH), frame.api_version, response, at)
    partitions = [each for topic in message.responses for each in topic.partitions if each.records]
    for each in partitions:
        each.records = b""
    return response[:at] + codec.encode(message, frame.api_version) if partitions else response


def _named(answer: Any) -> Iterator[_Named]:
    match answer.API_KEY:
        case 0 | 1:
            found = [_Named(each.node_id, each) for each in answer.node_endpoints]
        case 3:
            found = [_Named(each.node_id, each) for each in answer.brokers]
        case 10:  # before version 4 there is one, and it is the answer itself
            found = [_Named(each.node_id, each) for each in (*answer.coordinators, answer)]
        case _:
            of_brokers = answer.brokers if answer.endpoint_type == BROKERS else []
            found = [_Named(each.broker_id, each) for each in of_brokers]
    # A coordinator that was not found has no address.
    return (each for each in found if each.node_id >= 0 and each.part.host)


def _announcing_what_we_know(frame: Frame, response: bytes) -> bytes:
    schema = REQUESTS[API_VERSIONS]
    if frame.api_version > schema.max_version:
        return _refusal(response)
    # The refusal of a version comes in version 0 (KIP-511).
    refused = response[4:6] == struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)
    version = 0 if refused else frame.api_version
    answer = _decoded(ApiVersionsResponse, version, response, CORRELATION_ID_BYTES)
    known = [_capped(each) for each in answer.api_keys if each.api_key not in NOT_ANNOUNCED]
    if known == answer.api_keys:
        return response
    answer.api_keys = known
    return response[:CORRELATION_ID_BYTES] + codec.encode(answer, version)


def _refusal(response: bytes) -> bytes:
    """In place of an answer that we cannot read: what a broker says that does not know such a version, either."""
    schema = REQUESTS[API_VERSIONS]
    known = ApiVersion(api_key=API_VERSIONS, min_version=schema.min_version, max_version=schema.max_version)
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[known])
    return response[:CORRELATION_ID_BYTES] + codec.encode(refusal, 0)


def _capped(announced: ApiVersion) -> ApiVersion:
    if announced.api_key not in FIRST_WITH_ADDRESSES and announced.api_key != API_VERSIONS:
        return announced
    highest = min(announced.max_version, REQUESTS[announced.api_key].max_version)
    return ApiVersion(api_key=announced.api_key, min_version=announced.min_version, max_version=highest)


def _body_at(frame: Frame, response: bytes) -> int:
    if not request_is_flexible(frame.api_key, frame.api_version):
        return CORRELATION_ID_BYTES
    try:
        return skip_tags(response, CORRELATION_ID_BYTES, len(response))
    except IndexError:
        raise MalformedMessage("The header of an answer is cut short.") from None


def _decoded(cls: type[Message], version: int, response: bytes, at: int) -> Any:
    try:
        return codec.decode(cls, version, response, at)
    except ValueError as problem:  # a version that we do not know
        raise MalformedMessage(str(problem)) from problem
