"""The table of what each API needs (`tests/unit/broker/test_access.py`), with the real thing.

Apache Kafka refuses what we refuse, with the same error, and lets through what we let through.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest

from onceflow.cli import main
from onceflow.client.acls import AclAdmin
from onceflow.client.addresses import parse_bootstrap
from onceflow.client.cluster import NOT_YET, Cluster
from onceflow.client.connection import Connection
from onceflow.client.security import Security
from onceflow.client.settings import ClientSettings
from onceflow.errors import ErrorCode
from onceflow.wire.acls import Acl, AclFilter, Operation, Resource
from onceflow.wire.messages.find_coordinator import FindCoordinatorRequest
from onceflow.wire.schema import Message
from tests.support.access_cases import CASES, Case
from tests.support.access_hidden import HIDDEN, Hidden
from tests.support.access_requests import Place, codes
from tests.support.kafka_jars import JarsMissing, JavaMissing
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import eventually

pytestmark = pytest.mark.faults

PRINCIPAL = "User:alice"
WAITED_FOR = NOT_YET | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


class KafkaWorld:
    def __init__(self, kafka: SecuredKafka) -> None:
        bootstrap = self.bootstrap = kafka.bootstraps["PLAINTEXT"]
        self._cluster = Cluster(ClientSettings(bootstrap=bootstrap))
        self._acls = AclAdmin(self._cluster)
        self._admin = Connection(parse_bootstrap(bootstrap)[0], timeout_s=15)
        listener = "SASL_PLAINTEXT"
        security = Security.of(kafka.client(listener, "alice"))
        self._user = Connection(parse_bootstrap(kafka.bootstraps[listener])[0], timeout_s=15, security=security)

    def close(self) -> None:
        for each in (self._admin, self._user, self._cluster):
            each.close()

    def as_admin(self, request: Message, version: int) -> Any:
        return self._patiently(self._admin, request, version)

    def as_user(self, request: Message, version: int) -> Any:
        return self._patiently(self._user, request, version)

    def _patiently(self, connection: Connection, request: Message, version: int) -> Any:
        def settled() -> Any:
            answer = connection.ask(request, at_most=version)
            return None if codes(answer) & WAITED_FOR else answer

        return eventually(settled, f"{type(request).__name__} is answered")

    def allow(self, *rules: Acl) -> None:
        self._acls.add(rules)
        eventually(lambda: set(rules) <= set(self._acls.matching(AclFilter(principal=PRINCIPAL))), "the rules are seen")

    def allow_only(self, rules: list[Acl]) -> None:
        everything = AclFilter(principal=PRINCIPAL)
        self._acls.delete([everything])
        if rules:
            self._acls.add(rules)
        eventually(lambda: self._acls.matching(everything) == sorted(rules), "the broker has seen the rules")


@pytest.fixture(scope="module")
def world() -> Iterator[KafkaWorld]:
    with ExitStack() as stack:
        try:
            world = KafkaWorld(stack.enter_context(SecuredKafka()))
        except (JavaMissing, JarsMissing) as error:
            pytest.fail(str(error), pytrace=False)
        stack.callback(world.close)
        for kind in (0, 1):  # whoever asks first has the coordinators' topics made
            world.as_admin(FindCoordinatorRequest(key_type=kind, coordinator_keys=["anything"]), 4)
        yield world


@pytest.mark.parametrize("case", CASES, ids=str)
def test_apache_kafka_needs_the_same(case: Case, world: KafkaWorld) -> None:
    for missing, (operation, resource) in enumerate(case.needs):
        place = Place(world, str(uuid4()))
        case.before(place)
        rules = case.rules(place, PRINCIPAL)
        world.allow_only(rules[:missing] + rules[missing + 1 :])
        refused = codes(world.as_user(*case.request(place)))
        assert refused == {case.refusal(resource)}, (operation.name, resource.name)
    place = Place(world, str(uuid4()))
    case.before(place)
    world.allow_only(case.rules(place, PRINCIPAL))
    assert codes(world.as_user(*case.request(place))) <= case.as_well


@pytest.mark.parametrize("check", HIDDEN, ids=lambda check: check.__name__)
def test_apache_kafka_hides_the_same(check: Hidden, world: KafkaWorld) -> None:
    world.allow_only([])
    check(world, Place(world, str(uuid4())), Place(world, str(uuid4())), PRINCIPAL)


def test_the_command_works_with_apache_kafka(world: KafkaWorld, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"n-{uuid4()}"

    def acls(*words: str) -> list[tuple[str, str, str]]:
        assert main(["acls", *words, "--json", "--bootstrap", world.bootstrap]) == 0
        return [(each["resource"], each["operation"], each["pattern"]) for each in json.loads(capsys.readouterr().out)]

    rule = ["--principal", "User:carol", "--consumer", "--prefixed", "--topic", name, "--group", name]
    made = acls("add", *rule)
    eventually(lambda: acls("list", "--principal", "User:carol") == sorted(made, key=ordered), "the rules are there")
    assert acls("list", "--topic", f"{name}-longer") == [rule for rule in made if rule[0] == "topic"]
    assert acls("delete", "--principal", "User:carol", "--topic", name) == []  # there is none about just this name
    assert acls("delete", *rule) == sorted(made, key=ordered)
    eventually(lambda: acls("list", "--principal", "User:carol") == [], "the rules are gone")


def ordered(rule: tuple[str, str, str]) -> tuple[Resource, Operation]:
    return Resource[rule[0].upper()], Operation[rule[1].upper()]
