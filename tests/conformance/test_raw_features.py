"""Feature levels: raised, lowered, announced; and what a level of 0 takes away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.api_versions import ApiVersionsRequest
from onceflow.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from tests.support.raw import Wire
from tests.support.raw_consumer_members import RawMember, describe_group, refusal
from tests.support.raw_transactions import GROUP, find_coordinator
from tests.support.waiting import eventually

UPGRADE, SAFE, UNSAFE = 1, 2, 3
REFUSED = ErrorCode.INVALID_UPDATE_VERSION
TRANSACTIONS, GROUPS = "transaction.version", "group.version"
HIGHEST = {TRANSACTIONS: 2, GROUPS: 1}
Update = tuple[str, int, int]


def announced(wire: Wire) -> tuple[dict[str, int], int]:
    """The levels of the features that both brokers have, and the epoch."""
    answer = wire.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), version=4)
    levels = {}
    for each in answer.finalized_features:
        assert each.min_version_level == each.max_version_level
        if each.name in HIGHEST:
            levels[each.name] = each.max_version_level
    return levels, answer.finalized_features_epoch


def levels(wire: Wire) -> dict[str, int]:
    return announced(wire)[0]


def update(wire: Wire, *asked: Update, version: int | None = None, **options: Any) -> UpdateFeaturesResponse:
    updates = [
        FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind, allow_downgrade=kind != UPGRADE)
        for name, level, kind in asked
    ]
    answer: UpdateFeaturesResponse = wire.ask(UpdateFeaturesRequest(feature_updates=updates, **options), version)
    return answer


def await_levels(wire: Wire, **expected: int) -> None:
    wanted = HIGHEST | {name.replace("_", "."): level for name, level in expected.items()}
    wanted = {name: level for name, level in wanted.items() if level}  # Level 0 is not announced.
    eventually(lambda: levels(wire) == wanted, f"the levels are {wanted}")


@pytest.fixture(autouse=True)
def restored(wire: Wire) -> Iterator[None]:
    """Other tests use the same broker."""
    yield
    for name, level in HIGHEST.items():
        assert update(wire, (name, level, UPGRADE)).error_code == ErrorCode.NONE
    await_levels(wire)


def test_a_level_is_lowered_and_raised(wire: Wire) -> None:
    await_levels(wire)
    _, before = announced(wire)
    for level, kind in ((1, SAFE), (2, UPGRADE), (0, UNSAFE), (1, UPGRADE), (1, UPGRADE), (1, SAFE)):
        answer = update(wire, (TRANSACTIONS, level, kind))
        assert (answer.error_code, answer.error_message or "", answer.results) == (ErrorCode.NONE, "", [])
        await_levels(wire, transaction_version=level)
    assert announced(wire)[1] > before


@pytest.mark.parametrize(
    "refused",
    [
        ("no.such.feature", 1, UPGRADE),
        ("no.such.feature", 0, SAFE),
        ("", 1, UPGRADE),
        (TRANSACTIONS, 3, UPGRADE),
        (TRANSACTIONS, -1, SAFE),
        (TRANSACTIONS, 1, UPGRADE),
        (TRANSACTIONS, 1, 0),
        (TRANSACTIONS, 1, 4),
        (GROUPS, 2, UPGRADE),
        (GROUPS, 0, UPGRADE),
    ],
    ids=[
        "unknown",
        "unknown-off",
        "no-name",
        "too-high",
        "negative",
        "downgrade-as-upgrade",
        "no-type",
        "bad-type",
        "groups-too-high",
        "groups-off-as-upgrade",
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_all_changes_are_made_or_none(wire: Wire, refused: Update, version: int) -> None:
    possible = (GROUPS if refused[0] == TRANSACTIONS else TRANSACTIONS, 0, SAFE)
    for asked in ([refused], [refused, possible], [possible, refused]):
        answer = update(wire, *asked, version=version)
        assert (answer.error_code, answer.results) == (REFUSED, [])
        assert answer.error_message
        assert levels(wire) == HIGHEST


def test_a_downgrade_does_not_go_up(wire: Wire) -> None:
    update(wire, (TRANSACTIONS, 0, SAFE))
    await_levels(wire, transaction_version=0)
    for kind in (SAFE, UNSAFE):
        assert update(wire, (TRANSACTIONS, 1, kind)).error_code == REFUSED
        assert levels(wire) == {GROUPS: 1}


@pytest.mark.parametrize("version", [1, 2])
def test_it_can_be_asked_whether_a_change_would_be_made(wire: Wire, version: int) -> None:
    would = update(wire, (TRANSACTIONS, 1, SAFE), validate_only=True, version=version)
    would_not = update(wire, (TRANSACTIONS, 3, UPGRADE), validate_only=True, version=version)
    assert (would.error_code, would_not.error_code) == (ErrorCode.NONE, REFUSED)
    assert levels(wire) == HIGHEST


def test_of_two_changes_of_a_feature_the_last_one_is_made(wire: Wire) -> None:
    assert update(wire, (TRANSACTIONS, 3, UPGRADE), (TRANSACTIONS, 1, SAFE)).error_code == ErrorCode.NONE
    await_levels(wire, transaction_version=1)


@pytest.mark.parametrize("version", [0, 1])
def test_older_versions_name_what_was_changed(wire: Wire, version: int) -> None:
    update(wire, (TRANSACTIONS, 1, SAFE))
    await_levels(wire, transaction_version=1)
    answer = update(wire, (TRANSACTIONS, 2, UPGRADE), (GROUPS, 1, UPGRADE), version=version)
    assert {(each.feature, each.error_code) for each in answer.results} == {(TRANSACTIONS, 0), (GROUPS, 0)}
    await_levels(wire)


def test_the_oldest_version_cannot_lower_a_level(wire: Wire) -> None:
    assert update(wire, (TRANSACTIONS, 1, SAFE), version=0).error_code == REFUSED
    assert levels(wire) == HIGHEST


def test_no_changes_are_fine(wire: Wire) -> None:
    assert update(wire).error_code == ErrorCode.NONE
    assert levels(wire) == HIGHEST


def test_without_group_version_there_are_no_consumer_groups(
    wire: Wire, topic: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    find_coordinator(wire, group, GROUP)
    member = RawMember(wire, group).join(topic)
    assert describe_group(wire, group).error_code == ErrorCode.NONE
    assert update(wire, (GROUPS, 0, SAFE)).error_code == ErrorCode.NONE
    await_levels(wire, group_version=0)
    assert {refusal(member.send(member_epoch=epoch)) for epoch in (0, 1, -1)} == {ErrorCode.UNSUPPORTED_VERSION}
    assert describe_group(wire, group).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert update(wire, (GROUPS, 1, UPGRADE)).error_code == ErrorCode.NONE
    await_levels(wire)
    assert describe_group(wire, group).error_code == ErrorCode.NONE  # It was there all the time.
    member.leave()
