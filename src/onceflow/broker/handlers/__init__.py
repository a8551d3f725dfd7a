"""The APIs that this broker answers: one line here, one file each, named by api key.

ApiVersions is built from this table. A handler module is imported when its API is first asked for, or with all others
before a broker lets clients in (`load_all`): an import needs a file, and there may be none left later. It opens with a
card: versions, behaviour, KIPs, what is left out. It has one function:

    handle(node: Node, context: Context, request: SomeRequest) -> SomeResponse | Deferred | None

None means that the protocol wants no answer (Produce with acks=0). One that goes through a list is a generator, which
yields after each element and returns the same in the end: `large_requests` says why. A module on the hot path may have,
besides,

    handle_frame(node, context, frame, body_at) -> Answer | Deferred | None

which reads the request itself, and then is the one that is called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.large_requests import DECODED_AT_ONCE_MAX, FRAME_MAX, run_at_once
from onceflow.errors import MalformedMessage
from onceflow.monitor.meters import Reader
from onceflow.wire.codec import RequestHeader, decode_from
from onceflow.wire.messages import request_class
from onceflow.wire.schema import Message

if TYPE_CHECKING:
    from onceflow.broker.node import Node

__all__ = ["ANONYMOUS", "APIS", "Api", "Context", "Peer", "answer", "load_all"]


ELEMENTS_MAX: Final = 100_000
"""Ten times what clients of a large cluster ask for at once."""


class Api(NamedTuple):
    module: str
    min_version: int
    max_version: int
    elements_max: int = ELEMENTS_MAX
    """In all arrays of a request, and tagged fields, together."""


APIS: Final[dict[int, Api]] = {
    0: Api("k00_produce", 3, 13, elements_max=20_000),
    1: Api("k01_fetch", 4, 17, elements_max=20_000),
    2: Api("k02_list_offsets", 1, 10),
    3: Api("k03_metadata", 0, 13),
    8: Api("k08_offset_commit", 2, 10),
    9: Api("k09_offset_fetch", 1, 10),
    10: Api("k10_find_coordinator", 0, 6),
    11: Api("k11_join_group", 0, 9, elements_max=1_000),
    12: Api("k12_heartbeat", 0, 4),
    13: Api("k13_leave_group", 0, 5, elements_max=20_000),
    14: Api("k14_sync_group", 0, 5, elements_max=20_000),
    15: Api("k15_describe_groups", 0, 6),
    16: Api("k16_list_groups", 0, 5),
    17: Api("k17_sasl_handshake", 0, 1),
    18: Api("k18_api_versions", 0, 4),
    19: Api("k19_create_topics", 2, 7),
    20: Api("k20_delete_topics", 1, 6),
    21: Api("k21_delete_records", 0, 2),
    22: Api("k22_init_producer_id", 0, 5),
    23: Api("k23_offset_for_leader_epoch", 2, 4),
    24: Api("k24_add_partitions_to_txn", 0, 5, elements_max=20_000),
    25: Api("k25_add_offsets_to_txn", 0, 4),
    26: Api("k26_end_txn", 0, 5),
    27: Api("k27_write_txn_markers", 1, 2),
    28: Api("k28_txn_offset_commit", 0, 5, elements_max=10_000),
    29: Api("k29_describe_acls", 1, 3),
    30: Api("k30_create_acls", 1, 3, elements_max=20_000),
    31: Api("k31_delete_acls", 1, 3, elements_max=20_000),
    32: Api("k32_describe_configs", 1, 4),
    33: Api("k33_alter_configs", 0, 2),
    34: Api("k34_alter_replica_log_dirs", 1, 2),
    35: Api("k35_describe_log_dirs", 1, 4),
    36: Api("k36_sasl_authenticate", 0, 2),
    37: Api("k37_create_partitions", 0, 3),
    42: Api("k42_delete_groups", 0, 2),
    43: Api("k43_elect_leaders", 0, 2),
    44: Api("k44_incremental_alter_configs", 0, 1),
    45: Api("k45_alter_partition_reassignments", 0, 1),
    46: Api("k46_list_partition_reassignments", 0, 0),
    47: Api("k47_offset_delete", 0, 0, elements_max=20_000),
    48: Api("k48_describe_client_quotas", 0, 1),
    49: Api("k49_alter_client_quotas", 0, 1, elements_max=20_000),
    50: Api("k50_describe_user_scram_credentials", 0, 0),
    51: Api("k51_alter_user_scram_credentials", 0, 0),
    55: Api("k55_describe_quorum", 0, 2),
    57: Api("k57_update_features", 0, 2),
    60: Api("k60_describe_cluster", 0, 2),
    61: Api("k61_describe_producers", 0, 0),
    65: Api("k65_describe_transactions", 0, 0),
    66: Api("k66_list_transactions", 0, 2),
    68: Api("k68_consumer_group_heartbeat", 0, 1, elements_max=20_000),
    69: Api("k69_consumer_group_describe", 0, 1),
    74: Api("k74_list_config_resources", 0, 1),
    75: Api("k75_describe_topic_partitions", 0, 0),
}

API_VERSIONS: Final = 18
ANONYMOUS: Final = "User:ANONYMOUS"
"""Who has not proven who it is, as Kafka calls it."""


class Peer(NamedTuple):
    """Who is at the other end of a connection. Changes when it logs in."""

    host: str = "127.0.0.1"
    principal: str = ANONYMOUS
    address: tuple[str, int] | None = None
    """What clients of this listener are told to connect to; None for the node's own."""


NOBODY_IN_PARTICULAR: Final = Peer()


class Context(NamedTuple):
    """What a handler may want to know of a request besides its body."""

    version: int
    client_id: str | None
    peer: Peer = NOBODY_IN_PARTICULAR
    reader: Reader | None = None
    """What is counted of the connection as a consumer; None for who has no connection."""


Handler = Callable[["Node", Context, memoryview, int], Answer | Deferred | None]

_loaded: Final[dict[int, Handler]] = {}


def _load(api_key: int) -> Handler:
    module = importlib.import_module(f"{__name__}.{APIS[api_key].module}")
    _loaded[api_key] = getattr(module, "handle_frame", None) or _decoding(
        module.handle, request_class(api_key), APIS[api_key].elements_max
    )
    return _loaded[api_key]


def load_all() -> None:
    """Make all of them ready: it takes some twenty milliseconds."""
    for api_key in APIS:
        if api_key not in _loaded:
            _load(api_key)


def _decoding(handle: Callable[[Node, Context, Any], Any], cls: type[Message], elements_max: int) -> Handler:
    too_small_to_count = min(DECODED_AT_ONCE_MAX, elements_max)  # an element has at least a byte

    def handle_frame(node: Node, context: Context, frame: memoryview, body_at: int) -> Answer | Deferred | None:
        large = node.large_requests
        # Bytes behind the body are ignored, as Kafka ignores them: librdkafka sends some after Metadata.
        if len(frame) <= too_small_to_count:
            result = handle(node, context, decode_from(cls, context.version, frame, body_at)[0])
        elif len(frame) > FRAME_MAX:
            raise MalformedMessage(f"A {cls.__name__} of {len(frame)} bytes; {FRAME_MAX} at most.")
        else:
            decode = partial(decode_from, cls, context.version, frame, body_at, elements_max)
            if large is not None:
                return large.decode(decode, partial(handle, node, context), context.version)
            result = handle(node, context, decode()[0])
        if type(result) is GeneratorType:
            if large is not None:
                return large.run(result, context.version)
            result = run_at_once(result)
        return Answer(result) if isinstance(result, Message) else result

    return handle_frame


def answer(
    node: Node, header: RequestHeader, frame: memoryview, peer: Peer, reader: Reader | None = None
) -> Answer | Deferred | None:
    """Have one request handled, and give back what came of it."""
    api = APIS.get(header.api_key)
    if api is None:
        raise MalformedMessage(f"Api key {header.api_key} is not served here.")
    version = header.api_version
    if not api.min_version <= version <= api.max_version:
        if header.api_key == API_VERSIONS:
            from onceflow.broker.handlers import k18_api_versions

            return Answer(k18_api_versions.unsupported_version(), 0)
        raise MalformedMessage(f"Version {version} of api key {header.api_key} is not served here.")
    handler = _loaded.get(header.api_key) or _load(header.api_key)
    return handler(node, Context(version, header.client_id, peer, reader), frame, header.body_at)
