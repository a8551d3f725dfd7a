from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.group.assignors import Assignment, Assignor, Subscriber, assign_range, assign_uniform

A, B, C = (UUID(int=number) for number in (1, 2, 3))


def members(topics: str, names: str, had: dict[str, Assignment] | None = None) -> dict[str, Subscriber]:
    """Members with one-letter names that want all of the topics with these one-letter names."""
    wanted = frozenset({"a": A, "b": B, "c": C}[letter] for letter in topics)
    return {name: Subscriber(wanted, (had or {}).get(name, {})) for name in names}


def loads(assigned: dict[str, Assignment]) -> dict[str, int]:
    return {name: sum(map(len, partitions.values())) for name, partitions in assigned.items()}


# range


def test_range_gives_runs_and_the_extra_ones_to_the_first() -> None:
    assigned = assign_range(members("a", "xyz"), {A: 8})
    assert assigned == {"x": {A: {0, 1, 2}}, "y": {A: {3, 4, 5}}, "z": {A: {6, 7}}}


def test_range_gives_members_the_same_numbers_of_all_topics() -> None:
    assigned = assign_range(members("ab", "xy"), {A: 3, B: 3})
    assert assigned == {"x": {A: {0, 1}, B: {0, 1}}, "y": {A: {2}, B: {2}}}


def test_range_leaves_members_without_where_there_are_too_few() -> None:
    assert assign_range(members("a", "xyz"), {A: 2}) == {"x": {A: {0}}, "y": {A: {1}}, "z": {}}


def test_range_puts_static_members_first_in_the_order_of_their_instances() -> None:
    wanted = frozenset({A})
    joined = {
        "a": Subscriber(wanted),
        "b": Subscriber(wanted, instance_id="two"),
        "c": Subscriber(wanted, instance_id="one"),
    }
    assert assign_range(joined, {A: 3}) == {"c": {A: {0}}, "b": {A: {1}}, "a": {A: {2}}}


def test_range_counts_only_who_wants_a_topic() -> None:
    joined = members("ab", "x") | members("b", "y")
    assert assign_range(joined, {A: 2, B: 2}) == {"x": {A: {0, 1}, B: {0}}, "y": {B: {1}}}


# uniform


def test_uniform_shares_over_all_topics() -> None:
    assigned = assign_uniform(members("abc", "xyz"), {A: 1, B: 1, C: 1})
    assert loads(assigned) == {"x": 1, "y": 1, "z": 1}


def test_uniform_leaves_members_what_they_have() -> None:
    had: dict[str, Assignment] = {"x": {A: frozenset({0, 2})}, "y": {A: frozenset({1, 3})}}
    assert assign_uniform(members("a", "xy", had), {A: 4}) == had


def test_uniform_takes_from_who_has_too_many_and_moves_nothing_else() -> None:
    had: dict[str, Assignment] = {"x": {A: frozenset({0, 1, 2})}, "y": {A: frozenset({3, 4, 5})}}
    assigned = assign_uniform(members("a", "xyz", had), {A: 6})
    assert loads(assigned) == {"x": 2, "y": 2, "z": 2}
    assert assigned["x"][A] < had["x"][A]
    assert assigned["y"][A] < had["y"][A]


def test_uniform_lets_who_has_an_extra_one_keep_it() -> None:
    had: dict[str, Assignment] = {"y": {A: frozenset({0, 1})}, "x": {A: frozenset({2})}}
    assert assign_uniform(members("a", "xy", had), {A: 3}) == had


def test_uniform_drops_topics_that_are_no_longer_wanted() -> None:
    had: dict[str, Assignment] = {"x": {B: frozenset({0})}}
    assert assign_uniform(members("a", "x", had), {A: 1}) == {"x": {A: {0}}}


def test_uniform_with_different_wishes_moves_from_most_to_least() -> None:
    had: dict[str, Assignment] = {"x": {A: frozenset({0, 1, 2, 3})}}
    joined = members("ab", "x", had) | members("a", "y")
    assigned = assign_uniform(joined, {A: 4, B: 2})
    assert assigned["x"][B] == {0, 1}
    assert loads(assigned) == {"x": 3, "y": 3}


@pytest.mark.parametrize("assign", [assign_range, assign_uniform])
def test_without_topics_nobody_gets_anything(assign: Assignor) -> None:
    assert assign(members("", "xy"), {}) == {"x": {}, "y": {}}


@pytest.mark.parametrize("assign", [assign_range, assign_uniform])
def test_without_members_there_is_nothing_to_assign(assign: Assignor) -> None:
    assert assign({}, {A: 3}) == {}


# Both, whatever members want and had

TOPICS = [UUID(int=number) for number in range(1, 6)]
COUNTS = st.fixed_dictionaries({topic: st.integers(1, 7) for topic in TOPICS})
WISHES = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.frozensets(st.sampled_from(TOPICS)), max_size=7)


def check_complete(
    assigned: dict[str, Assignment], wishes: dict[str, frozenset[UUID]], counts: dict[UUID, int]
) -> None:
    """Every partition that somebody wants has exactly one owner, who wants it."""
    assert assigned.keys() == wishes.keys()
    owners = Counter(
        (topic, partition)
        for member, topics in assigned.items()
        for topic, partitions in topics.items()
        for partition in partitions
    )
    wanted = frozenset[UUID]().union(*wishes.values())
    assert owners == dict.fromkeys(((topic, at) for topic in wanted for at in range(counts[topic])), 1)
    for member, topics in assigned.items():
        assert topics.keys() <= wishes[member]
        assert all(topics.values()), "no topic without partitions"


@given(counts=COUNTS, before=WISHES, after=WISHES)
@pytest.mark.parametrize("assign", [assign_range, assign_uniform])
def test_every_wanted_partition_has_one_owner(
    assign: Assignor, counts: dict[UUID, int], before: dict[str, frozenset[UUID]], after: dict[str, frozenset[UUID]]
) -> None:
    first = assign({name: Subscriber(topics) for name, topics in before.items()}, counts)
    check_complete(first, before, counts)
    second = assign({name: Subscriber(topics, first.get(name, {})) for name, topics in after.items()}, counts)
    check_complete(second, after, counts)


@given(counts=COUNTS, names=st.sets(st.text("abc", min_size=1, max_size=2), min_size=1, max_size=7), data=st.data())
def test_uniform_is_even_where_all_want_the_same(counts: dict[UUID, int], names: set[str], data: st.DataObject) -> None:
    wanted = frozenset(TOPICS)
    subsets = st.sets(st.sampled_from(sorted(names)), min_size=1)
    first = assign_uniform({name: Subscriber(wanted) for name in data.draw(subsets)}, counts)
    second = assign_uniform({name: Subscriber(wanted, first.get(name, {})) for name in names}, counts)
    found = loads(second).values()
    assert max(found) - min(found) <= 1


@given(counts=COUNTS, wishes=WISHES)
def test_uniform_changes_nothing_the_second_time(counts: dict[UUID, int], wishes: dict[str, frozenset[UUID]]) -> None:
    first = assign_uniform({name: Subscriber(topics) for name, topics in wishes.items()}, counts)
    again = assign_uniform({name: Subscriber(topics, first[name]) for name, topics in wishes.items()}, counts)
    assert again == first


@given(counts=COUNTS, wishes=WISHES)
def test_uniform_leaves_no_partition_that_would_be_better_off_elsewhere(
    counts: dict[UUID, int], wishes: dict[str, frozenset[UUID]]
) -> None:
    assigned = assign_uniform({name: Subscriber(topics) for name, topics in wishes.items()}, counts)
    load = loads(assigned)
    for owner, topics in assigned.items():
        for topic in topics:
            assert load[owner] - min(load[name] for name, wanted in wishes.items() if topic in wanted) <= 1
