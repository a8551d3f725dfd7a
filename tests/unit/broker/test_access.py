"""What each API needs, both ways, through the broker's own code on a disk in memory.

With exactly the permissions of the table a request succeeds; without any one of them it is refused with that one's
error, and not a byte on disk changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker import access
from onceflow.broker.access import LOGGED_PER_SECOND_MAX
from onceflow.broker.authorization import NEEDS
from onceflow.broker.handlers import APIS, Peer
from onceflow.clock import ManualClock
from onceflow.config import STANDARD_AUTHORIZER
from onceflow.errors import ErrorCode, MalformedMessage, StorageError
from onceflow.wire.acls import CLUSTER_NAME, Acl, Operation, Pattern, Permission, Resource
from onceflow.wire.messages.create_acls import CreateAclsRequest
from onceflow.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from onceflow.wire.messages.describe_acls import DescribeAclsRequest
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.list_groups import ListGroupsRequest
from onceflow.wire.messages.list_transactions import ListTransactionsRequest
from onceflow.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from onceflow.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from onceflow.wire.schema import Message
from tests.support import access_requests as cases
from tests.support.access_cases import CASES, Case
from tests.support.access_hidden import HIDDEN, Hidden
from tests.support.access_requests import Place, acl, codes
from tests.support.memory_broker import DIRECTORY, MemoryBroker
from tests.support.raw import batch, fetch_request, now_ms, produce_request

ADMIN, USER = Peer(principal="User:admin"), Peer(host="10.0.0.7", principal="User:alice")
SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin"}
WITHOUT_REFUSAL = {16, 17, 18, 36, 60, 66}
"""They show less, or come before anybody is known."""
SHOWS_LESS_WITHOUT = {65: {(Operation.DESCRIBE, Resource.TOPIC)}}


class MemoryWorld:
    def __init__(self, **settings: str) -> None:
        self.broker = MemoryBroker(settings=SETTINGS | settings, clock=ManualClock(now_ms()))

    def as_admin(self, request: Message, version: int) -> Any:
        return self._ask(ADMIN, request, version)

    def as_user(self, request: Message, version: int) -> Any:
        return self._ask(USER, request, version)

    def _ask(self, peer: Peer, request: Message, version: int) -> Any:
        self.broker.peer = peer
        reply = self.broker.send(request, version)
        self.broker.settle()
        if not reply.is_there:
            self.broker.pass_time(10_000)
            self.broker.settle()
        return reply.message

    def allow(self, *rules: Acl) -> None:
        assert self.broker.node.authorizer is not None
        self.broker.node.authorizer.acls.add(rules)

    def on_disk(self) -> dict[str, bytes]:
        return dict(_files(self.broker, DIRECTORY))


def _files(broker: MemoryBroker, folder: Path) -> Iterator[tuple[str, bytes]]:
    for name in broker.files.list(folder):
        try:
            yield str(folder / name), broker.files.read_bytes(folder / name)
        except StorageError:
            yield from _files(broker, folder / name)


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()


@pytest.fixture
def place(world: MemoryWorld) -> Place:
    return Place(world, "a")


def allowed(place: Place, operation: Operation, resource: Resource, **rest: Any) -> Acl:
    return acl(operation, resource, place.name(resource), USER.principal, **rest)


# The table


def test_every_api_says_what_it_needs() -> None:
    assert set(APIS) <= set(NEEDS)


@pytest.mark.parametrize("api", sorted(set(APIS) - WITHOUT_REFUSAL))
def test_every_need_of_an_api_is_tested(api: int) -> None:
    tested = {need for case in CASES if case.api == api for need in case.needs} | SHOWS_LESS_WITHOUT.get(api, set())
    assert {(need.operation, need.resource) for need in NEEDS[api]} <= tested


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_request_succeeds_with_exactly_what_it_needs(case: Case, world: MemoryWorld, place: Place) -> None:
    case.before(place)
    world.allow(*case.rules(place, USER.principal))
    assert codes(world.as_user(*case.request(place))) <= case.as_well


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_request_is_refused_without_any_one_of_what_it_needs_and_nothing_is_written(case: Case) -> None:
    for missing, (operation, resource) in enumerate(case.needs):
        world = MemoryWorld()
        place = Place(world, "a")
        case.before(place)
        rules = case.rules(place, USER.principal)
        world.allow(*rules[:missing], *rules[missing + 1 :])
        before = world.on_disk()
        refused = codes(world.as_user(*case.request(place)))
        assert refused == {case.refusal(resource)}, (operation.name, resource.name)
        if operation is not case.for_the_answer_only:
            assert world.on_disk() == before


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_that_denies_wins(case: Case, world: MemoryWorld, place: Place) -> None:
    case.before(place)
    operation, resource = case.needs[0]
    denial = acl(operation, resource, "*", "User:*", permission=Permission.DENY)
    if resource is Resource.CLUSTER:
        denial = denial._replace(name=CLUSTER_NAME)
    world.allow(*case.rules(place, USER.principal), denial)
    assert codes(world.as_user(*case.request(place))) - case.as_well


# What is hidden, and what one may do, as bits


@pytest.mark.parametrize("check", HIDDEN, ids=lambda check: check.__name__)
def test_what_may_not_be_described_is_hidden(check: Hidden, world: MemoryWorld) -> None:
    check(world, Place(world, "a"), Place(world, "b"), USER.principal)


def test_a_missing_topic_is_not_created_for_who_may_only_describe(world: MemoryWorld, place: Place) -> None:
    world.allow(allowed(place, Operation.DESCRIBE, Resource.TOPIC))
    [found] = world.as_user(MetadataRequest(topics=[MetadataRequestTopic(name=place.topic)]), 12).topics
    assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert world.broker.node.topics.get(place.topic) is None
    world.allow(acl(Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME, USER.principal))
    [found] = world.as_user(MetadataRequest(topics=[MetadataRequestTopic(name=place.topic)]), 12).topics
    assert found.error_code == 0


# Single topics of a request


def test_the_topics_of_a_produce_request_that_are_allowed_are_written(world: MemoryWorld, place: Place) -> None:
    other = Place(world, "b")
    cases.topic(place)
    cases.topic(other)
    world.allow(allowed(place, Operation.WRITE, Resource.TOPIC))
    data = [PartitionProduceData(index=0, records=batch("x"))]
    topics = [TopicProduceData(name=name, partition_data=data) for name in (other.topic, place.topic)]
    answer = world.as_user(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics), 12)
    told = {each.name: each.partition_responses[0].error_code for each in answer.responses}
    assert told == {other.topic: 29, place.topic: 0}


def test_a_denied_topic_does_not_join_the_transaction(world: MemoryWorld, place: Place) -> None:
    cases.producer(place)
    world.allow(allowed(place, Operation.WRITE, Resource.TRANSACTIONAL_ID))
    assert codes(world.as_user(*cases.transactional_produce(place))) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    transaction = world.broker.node.transactions.coordinator.get(place.transactional_id)
    assert transaction is not None
    assert not transaction.partitions


def test_a_denied_write_without_acknowledgement_closes_the_connection(world: MemoryWorld, place: Place) -> None:
    cases.topic(place)
    world.broker.peer = USER
    with pytest.raises(MalformedMessage):
        world.broker.send(produce_request(place.topic, batch("x"), acks=0), 12)


# Rules that change, hosts, and what is counted


def test_a_change_of_rules_counts_from_the_next_request_on(world: MemoryWorld, place: Place) -> None:
    cases.topic(place)
    rule = allowed(place, Operation.READ, Resource.TOPIC)
    reading = fetch_request(place.topic, 0, max_wait_ms=0)
    assert codes(world.as_user(reading, 12)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    world.allow(rule)
    assert not codes(world.as_user(reading, 12))
    assert world.broker.node.authorizer is not None
    world.broker.node.authorizer.acls.remove([rule])
    assert codes(world.as_user(reading, 12)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_a_rule_for_one_host_is_for_that_host_alone(world: MemoryWorld, place: Place) -> None:
    cases.topic(place)
    world.allow(allowed(place, Operation.READ, Resource.TOPIC, host=USER.host))
    reading = fetch_request(place.topic, 0, max_wait_ms=0)
    assert not codes(world.as_user(reading, 12))
    world.broker.peer = USER._replace(host="10.0.0.8")
    assert codes(world.broker.ask(reading, 12)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_denials_are_counted_and_logged_and_not_too_often(
    world: MemoryWorld, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    cases.topic(place)
    with caplog.at_level(logging.INFO, "onceflow.broker.access"):
        for _ in range(LOGGED_PER_SECOND_MAX + 5):
            world.as_user(fetch_request(place.topic, 0, max_wait_ms=0), 12)
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == LOGGED_PER_SECOND_MAX
        for word in ("User:alice", "READ", "10.0.0.7", place.topic, "Denied"):
            assert word in lines[0]
        world.broker.clock.advance(1000)
        world.as_user(fetch_request("forged\nPrincipal = 'User:admin' is Allowed", 0, max_wait_ms=0), 12)
    more, last = [record.getMessage() for record in caplog.records[LOGGED_PER_SECOND_MAX:]]
    assert "5 more" in more
    assert "\n" not in last
    assert world.broker.node.meters.denied == {"topic": LOGGED_PER_SECOND_MAX + 6}


def test_what_is_left_out_of_a_list_is_neither_counted_nor_logged(world: MemoryWorld, place: Place) -> None:
    cases.offsets(place)
    world.as_user(MetadataRequest(topics=None), 12)
    world.as_user(ListGroupsRequest(), 5)
    world.as_user(ListTransactionsRequest(), 1)
    assert not world.broker.node.meters.denied


def test_idempotence_is_counted_as_denied_on_the_cluster(world: MemoryWorld) -> None:
    assert world.as_user(InitProducerIdRequest(), 5).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert world.broker.node.meters.denied == {"cluster": 1}


def test_everybody_may_use_what_no_rule_is_about_where_that_is_the_setting() -> None:
    world = MemoryWorld(**{"allow.everyone.if.no.acl.found": "true"})
    place = Place(world, "a")
    cases.topic(place)
    reading = fetch_request(place.topic, 0, max_wait_ms=0)
    assert not codes(world.as_user(reading, 12))
    world.allow(acl(Operation.READ, Resource.TOPIC, place.topic, "User:somebody"))
    assert codes(world.as_user(reading, 12)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_what_is_remembered_of_decisions_is_bounded(world: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "DECISIONS_MAX", 10)
    authorizer = world.broker.node.authorizer
    assert authorizer is not None
    for number in range(100):
        for name in (f"t{number}", "x" * access.NAME_LENGTH_MAX + str(number)):
            assert not authorizer.would_allow(USER, Operation.READ, Resource.TOPIC, name)
        assert len(authorizer._decisions) <= 10
        assert all(len(str(question[-1])) <= access.NAME_LENGTH_MAX for question in authorizer._decisions)


def test_a_broker_that_nobody_can_manage_says_so(caplog: pytest.LogCaptureFixture) -> None:
    MemoryWorld()
    assert not caplog.records
    MemoryWorld(**{"super.users": ""})
    assert "nobody may make any" in caplog.text


# The rules' own APIs


def everything() -> DescribeAclsRequest:
    return DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1)


def test_without_an_authorizer_there_are_no_rules() -> None:
    broker = MemoryBroker()
    place = Place(MemoryWorld(), "a")
    assert broker.ask(everything(), 3).error_code == ErrorCode.SECURITY_DISABLED
    assert codes(broker.ask(*cases.new_acl(place))) == {ErrorCode.SECURITY_DISABLED}
    filter = DeleteAclsFilter(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1)
    assert codes(broker.ask(DeleteAclsRequest(filters=[filter]), 3)) == {ErrorCode.SECURITY_DISABLED}


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type": 1},
        {"resource_type": 0},
        {"resource_type": 99},
        {"resource_pattern_type": 1},
        {"resource_pattern_type": 2},
        {"operation": 1},
        {"operation": 77},
        {"permission_type": 1},
        {"permission_type": 0},
        {"resource_name": ""},
        {"resource_name": "x" * 1001},
        {"resource_type": 4, "resource_name": "my-cluster"},
        {"principal": "alice"},
        {"principal": "User:"},
        {"principal": ""},
        {"host": ""},
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_one_is_refused_and_the_others_of_the_request_are_made(
    world: MemoryWorld, place: Place, wrong: dict[str, Any]
) -> None:
    good, _ = cases.new_acl(place)
    bad, _ = cases.new_acl(place)
    assert isinstance(good, CreateAclsRequest)
    assert isinstance(bad, CreateAclsRequest)
    for name, value in wrong.items():
        setattr(bad.creations[0], name, value)
    answer = world.as_admin(CreateAclsRequest(creations=[*bad.creations, *good.creations]), 3)
    assert [result.error_code for result in answer.results] == [ErrorCode.INVALID_REQUEST, 0]
    assert len(world.as_admin(everything(), 3).resources) == 1


def test_rules_are_described_by_resource_and_deleted_by_filter(world: MemoryWorld, place: Place) -> None:
    world.as_admin(*cases.new_acl(place))
    world.as_admin(*cases.new_acl(place))  # the same again is one
    prefixed = acl(Operation.ALL, Resource.TOPIC, "topic-", "User:third", pattern=Pattern.PREFIXED)
    world.allow(prefixed, acl(Operation.READ, Resource.GROUP, "g", "User:third"))
    found = world.as_admin(everything(), 3).resources
    assert [(each.resource_type, each.resource_name, each.pattern_type, len(each.acls)) for each in found] == [
        (2, "topic-", 4, 1),
        (2, place.topic, 3, 1),
        (3, "g", 3, 1),
    ]
    about = DeleteAclsFilter(
        resource_type_filter=2, resource_name_filter=place.topic, pattern_type_filter=2, operation=1, permission_type=1
    )
    unknown = DeleteAclsFilter(resource_type_filter=50, pattern_type_filter=1, operation=1, permission_type=1)
    deleted = world.as_admin(DeleteAclsRequest(filters=[unknown, about]), 3).filter_results
    assert [(each.error_code, len(each.matching_acls)) for each in deleted] == [(ErrorCode.INVALID_REQUEST, 0), (0, 2)]
    [left] = world.as_admin(everything(), 3).resources
    assert left.resource_name == "g"


def test_rules_survive_a_restart_and_others_cannot_get_in_meanwhile(world: MemoryWorld, place: Place) -> None:
    cases.topic(place)
    world.as_admin(*cases.new_acl(place))
    world.broker = world.broker.killed()
    third = Peer(principal="User:third")
    reading = fetch_request(place.topic, 0, max_wait_ms=0)
    world.broker.peer = third
    assert not codes(world.broker.ask(reading, 12))
    assert codes(world.as_user(reading, 12)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
