"""Quotas are asked for before a user's credentials are shown. There are none; filters are checked all the same, and so
is what is to be set."""

from __future__ import annotations

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    OpData,
    RequestEntryData,
)
from onceflow.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tests.support.raw import Wire

EXACT, DEFAULT, ANY = range(3)
Component = tuple[str, int, str | None]
Entity = list[tuple[str, str | None]]
Quota = tuple[str, float | None]
"""The name of a quota, and what it is set to; None takes it back."""


def quotas(
    wire: Wire, *asked: Component, strict: bool = False, version: int | None = None
) -> DescribeClientQuotasResponse:
    components = [ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in asked]
    answer: DescribeClientQuotasResponse = wire.ask(
        DescribeClientQuotasRequest(components=components, strict=strict), version
    )
    return answer


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize(
    "asked",
    [
        [],
        [("user", EXACT, "nobody")],
        [("client-id", DEFAULT, None)],
        [("ip", ANY, None)],
        [("user", ANY, None), ("client-id", EXACT, "")],
    ],
    ids=["all", "a-user", "default-client", "addresses", "user-and-client"],
)
def test_nobody_has_quotas(wire: Wire, asked: list[Component], version: int) -> None:
    for strict in (False, True):
        answer = quotas(wire, *asked, strict=strict, version=version)
        assert (answer.error_code, answer.entries) == (ErrorCode.NONE, [])


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ([("", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("weekday", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("weekday", 3, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "name")], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, "name")], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, None), ("ip", ANY, None)], ErrorCode.INVALID_REQUEST),
    ],
    ids=[
        "no-kind",
        "bad-kind",
        "bad-kind-and-match",
        "bad-match",
        "exactly-nothing",
        "default-with-name",
        "any-with-name",
        "twice",
        "user-at-address",
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(wire: Wire, asked: list[Component], code: ErrorCode) -> None:
    answer = quotas(wire, *asked)
    assert (answer.error_code, answer.entries) == (code, None)
    assert answer.error_message


def alter(
    wire: Wire, *asked: tuple[Entity, list[Quota]], validate_only: bool = False, version: int | None = None
) -> dict[frozenset[tuple[str, str | None]], int]:
    """What is answered about each entity."""
    entries = [
        RequestEntryData(
            entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas],
        )
        for entity, quotas in asked
    ]
    answer = wire.ask(AlterClientQuotasRequest(entries=entries, validate_only=validate_only), version)
    return {
        frozenset((each.entity_type, each.entity_name) for each in entry.entity): entry.error_code
        for entry in answer.entries
    }


@pytest.mark.parametrize("version", range(2))
def test_what_was_never_set_can_be_taken_back(wire: Wire, version: int) -> None:
    entities: list[Entity] = [
        [("user", "nobody")],
        [("user", None)],
        [("client-id", "nobody"), ("user", "nobody")],
        [("ip", "127.0.0.1")],
    ]
    asked: list[tuple[Entity, list[Quota]]] = [
        (entity, [("producer_byte_rate", None), ("no.such.quota", None)]) for entity in entities
    ]
    for validate_only in (True, False):
        answers = alter(wire, *asked, ([("user", "other")], []), validate_only=validate_only, version=version)
        assert answers == {frozenset(entity): ErrorCode.NONE for entity in (*entities, [("user", "other")])}
    assert alter(wire) == {}


BYTES: list[Quota] = [("producer_byte_rate", 1000.0)]


@pytest.mark.parametrize(
    ("entity", "quotas"),
    [
        ([], BYTES),
        ([("", None)], BYTES),
        ([("weekday", "monday")], BYTES),
        ([("weekday", "monday")], [("producer_byte_rate", None)]),
        ([("user", "")], BYTES),
        ([("user", "a"), ("ip", "127.0.0.1")], [("connection_creation_rate", 10.0)]),
        ([("ip", "127.0.0.1")], BYTES),
        ([("user", "a")], [("connection_creation_rate", 10.0)]),
        ([("user", "a")], [("no.such.quota", 1.0)]),
        ([("user", "a")], [("producer_byte_rate", -1.0)]),
        ([("user", "a")], [("producer_byte_rate", 0.0)]),
        ([("user", "a")], [("producer_byte_rate", 1.5)]),
        ([("user", "a")], [("producer_byte_rate", 1.0), ("producer_byte_rate", None)]),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused(wire: Wire, entity: Entity, quotas: list[Quota]) -> None:
    for validate_only in (True, False):
        assert alter(wire, (entity, quotas), validate_only=validate_only) == {
            frozenset(entity): ErrorCode.INVALID_REQUEST
        }
    assert quotas_of_all(wire) == []


def test_an_entity_is_named_once_and_others_are_not_concerned(wire: Wire) -> None:
    taken_back: list[Quota] = [("producer_byte_rate", None)]
    twice: Entity = [("user", "a")]
    assert alter(wire, (twice, taken_back), (twice, taken_back), ([("user", "b")], taken_back)) == {
        frozenset(twice): ErrorCode.INVALID_REQUEST,
        frozenset({("user", "b")}): ErrorCode.NONE,
    }


@pytest.mark.onceflow_differs("A quota is refused with 35, since none would be enforced")
def test_a_quota_can_be_set(wire: Wire) -> None:
    entity: Entity = [("user", "a")]
    assert alter(wire, (entity, BYTES), validate_only=True) == {frozenset(entity): ErrorCode.NONE}


def quotas_of_all(wire: Wire) -> object:
    return quotas(wire).entries
