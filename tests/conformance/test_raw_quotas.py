"""Quotas are asked for before a user's credentials are shown. There are none; filters are checked all the same."""

from __future__ import annotations

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tests.support.raw import Wire

EXACT, DEFAULT, ANY = range(3)
Component = tuple[str, int, str | None]


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
