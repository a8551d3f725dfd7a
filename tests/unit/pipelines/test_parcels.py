"""Shards, what travels to them, and what is to be sent."""

from __future__ import annotations

import gc
import marshal
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import ConfigError
from onceflow.pipelines import Send, Step
from onceflow.pipelines.parcels import Outbox, Parcels, labels, opened, shard_of
from tests.support.pages_pipeline import count, sent


class TestShards:
    def test_a_shard_is_for_ever(self) -> None:
        assert [shard_of(key, 8) for key in ("", "a", "user-1", "Köln", 7, True)] == [0, 3, 4, 3, 2, 3]

    @given(st.text() | st.integers(), st.integers(1, 64))
    def test_every_key_has_one(self, key: object, shards: int) -> None:
        assert 0 <= shard_of(key, shards) < shards

    def test_keys_are_spread_over_all_shards(self) -> None:
        assert {shard_of(f"user-{number}", 8) for number in range(200)} == set(range(8))

    def test_a_label_is_for_ever(self) -> None:
        assert labels(16) == (12, 16, 5, 1, 37, 20, 2, 35, 13, 6, 49, 7, 25, 15, 4, 0)

    @pytest.mark.parametrize("shards", [1, 2, 3, 16, 48])
    def test_no_two_shards_have_the_same_label(self, shards: int) -> None:
        assert len(set(labels(shards))) == shards


class TestParcels:
    def test_each_shard_gets_its_items_in_one_row(self) -> None:
        parcels = Parcels(Step(count, by="page", shards=8))
        for number in range(100):
            parcels.add[f"page-{number % 10}"]((number,))
        rows = {label: marshal.loads(parcel) for label, parcel in parcels.rows([], 0)}
        assert sorted(item for items, _ in rows.values() for item in items) == [(number,) for number in range(100)]
        for label, (items, _) in rows.items():
            assert {labels(8)[shard_of(f"page-{number % 10}", 8)] for (number,) in items} == {label}

    @given(st.permutations([1, 1.0, True, 0.0, -0.0, 0, "1", None]))
    def test_the_shard_of_a_key_does_not_depend_on_equal_keys_before_it(self, keys: list[Any]) -> None:
        parcels = Parcels(Step(count, by="page", shards=64))
        for key in keys:
            parcels.add[key]((repr(key),))
        found = {item: label for label, parcel in parcels.rows([], 0) for (item,) in marshal.loads(parcel)[0]}
        assert found == {repr(key): labels(64)[shard_of(key, 64)] for key in keys}

    @pytest.mark.parametrize("items", [0, 1, 5])
    @pytest.mark.parametrize("passing", [0, 1, 7, 100])
    @pytest.mark.parametrize("turn", [0, 3, 49])
    def test_what_passes_through_is_in_exactly_one_parcel(self, items: int, passing: int, turn: int) -> None:
        parcels = Parcels(Step(count, by="page"))
        for number in range(items):
            parcels.add[f"page-{number}"]((number,))
        rows = parcels.rows([b"%d" % number for number in range(passing)], turn)
        found, passed = opened(parcel for _, parcel in rows)
        assert sorted(found) == [(number,) for number in range(items)]
        assert sorted(passed, key=int) == [b"%d" % number for number in range(passing)]

    def test_what_passes_through_one_after_another_goes_to_all_in_turn(self) -> None:
        def place(turn: int) -> int:
            parcels = Parcels(Step(count, by="page", shards=16))
            for number in range(200):
                parcels.add[f"page-{number}"]((number,))
            [label] = [label for label, parcel in parcels.rows([b"x"], turn) if marshal.loads(parcel)[1]]
            return label

        assert sorted(map(place, range(16))) == sorted(labels(16))

    def test_nothing_is_no_row(self) -> None:
        assert Parcels(Step(count, by="page")).rows([], 0) == []

    def test_nothing_is_left_for_the_garbage_collector(self) -> None:
        class Item(tuple[Any, ...]):
            pass

        gc.disable()
        try:
            parcels = Parcels(Step(count, by="page"))
            parcels.add["/"](item := Item())
            gone = weakref.ref(parcels.add)
            del parcels, item
            assert gone() is None
        finally:
            gc.enable()


class TestOutbox:
    def test_a_mapping_becomes_json_a_text_stays_and_none_is_a_tombstone(self) -> None:
        outbox = Outbox({"views": "eu-views"})
        for value in ({"a": [1, None]}, "as it is", None):
            outbox.add(Send("views", "k", value))
        assert sent(outbox.packed()) == [("eu-views", "k", each) for each in ('{"a":[1,null]}', "as it is", None)]

    def test_topics_keep_their_own_order(self) -> None:
        outbox = Outbox({"a": "a", "b": "b"})
        for number in range(6):
            outbox.add(Send("ab"[number % 2], None, str(number)))
        found = sent(outbox.packed())
        assert [value for topic, _, value in found if topic == "a"] == ["0", "2", "4"]
        assert [value for topic, _, value in found if topic == "b"] == ["1", "3", "5"]

    def test_nothing_is_no_piece(self) -> None:
        assert Outbox({"views": "views"}).packed() == []

    def test_a_topic_that_is_not_declared_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="it sends to 'vievs', which is not declared: there is views, lists"):
            Outbox({"views": "views", "lists": "lists"}).add(Send("vievs", None, None))
