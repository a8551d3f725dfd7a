"""Pages of state, and what a step may yield; without Spark, and with a state store of a few lines."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.pipelines import Record, Send, State, Step
from onceflow.pipelines.parsing import INT_MAX
from onceflow.pipelines.stages import Pages, StepFailed, _blamed_on, _rows, _Work
from onceflow.spark.packed_rows import pack_rows
from tests.support.pages_pipeline import PAGES, Click, sent


class Store:
    """Spark's `MapState`, as far as `Pages` needs it, and what was asked of it."""

    def __init__(self, **pages: str) -> None:
        self.pages = pages
        self.asked: list[str] = []

    def exists(self) -> bool:
        return bool(self.pages)

    def keys(self) -> Iterator[tuple[str]]:
        yield from ((name,) for name in self.pages)

    def getValue(self, key: tuple[str]) -> tuple[str] | None:  # noqa: N802, Spark's name
        self.asked.append(f"get {key[0]}")
        return (self.pages[key[0]],) if key[0] in self.pages else None

    def updateValue(self, key: tuple[str], value: tuple[str]) -> None:  # noqa: N802, Spark's name
        self.asked.append(f"put {key[0]}")
        self.pages[key[0]] = value[0]

    def removeKey(self, key: tuple[str]) -> None:  # noqa: N802, Spark's name
        self.asked.append(f"remove {key[0]}")
        del self.pages[key[0]]


class TestPages:
    def test_a_page_is_read_when_it_is_first_asked_for_and_only_then(self) -> None:
        store = Store(a='{"n":1}', b='{"n":2}')
        pages = Pages(store)
        assert store.asked == []
        assert pages["a"] == {"n": 1}
        assert pages["a"] is pages["a"]
        assert store.asked == ["get a"]

    def test_a_page_that_has_not_changed_is_not_written(self) -> None:
        store = Store(a='{"n":1}')
        pages = Pages(store)
        pages["a"]["n"] += 1
        pages["a"]["n"] -= 1
        pages.save()
        assert store.asked == ["get a"]

    def test_a_change_inside_a_page_is_written_back(self) -> None:
        store = Store(a='{"n":1}')
        pages = Pages(store)
        pages["a"]["n"] += 1
        assert store.pages == {"a": '{"n":1}'}, "not before the end"
        pages.save()
        assert store.pages == {"a": '{"n":2}'}

    def test_a_new_page_is_there_for_the_next_batch(self) -> None:
        store = Store()
        pages = Pages(store)
        pages.setdefault("x", []).append(1)
        pages.save()
        assert Pages(store)["x"] == [1]

    def test_a_page_that_is_not_there_costs_one_question_and_is_not_made(self) -> None:
        store = Store()
        pages = Pages(store)
        assert pages.get("x") is None
        assert "x" not in pages
        pages.save()
        assert store.asked == ["get x"]

    def test_a_deleted_page_is_removed(self) -> None:
        store = Store(a="1", b="2")
        pages = Pages(store)
        del pages["a"]
        assert "a" not in pages
        pages.save()
        assert store.pages == {"b": "2"}

    def test_a_page_that_came_and_went_within_a_batch_was_never_there(self) -> None:
        store = Store()
        pages = Pages(store)
        pages["x"] = 1
        del pages["x"]
        pages.save()
        assert store.asked == ["get x"]

    def test_to_delete_what_is_not_there_is_an_error_as_with_any_dict(self) -> None:
        with pytest.raises(KeyError):
            del Pages(Store())["x"]

    def test_a_page_that_was_deleted_and_made_again_is_written(self) -> None:
        store = Store(a="1")
        pages = Pages(store)
        assert pages.pop("a") == 1
        pages["a"] = 2
        pages.save()
        assert store.pages == {"a": "2"}

    @given(
        st.dictionaries(st.sampled_from("abcd"), st.integers(-INT_MAX, INT_MAX)),
        st.lists(st.tuples(st.sampled_from(["get", "set", "delete", "list", "next"]), st.sampled_from("abcd"))),
    )
    def test_pages_are_a_dict_that_outlives_the_batch(
        self, first: dict[str, int], steps: list[tuple[str, str]]
    ) -> None:
        model = dict(first)
        store = Store(**{name: str(value) for name, value in first.items()})
        pages = Pages(store)
        for number, (what, name) in enumerate(steps):
            if what == "get":
                assert pages.get(name) == model.get(name)
            elif what == "set":
                pages[name] = model[name] = number
            elif what == "delete":
                assert pages.pop(name, None) == model.pop(name, None)
            elif what == "next":
                pages.save()
                pages = Pages(store)
            assert sorted(pages) == sorted(model) if what == "list" else True
            assert len(pages) == len(model) if what == "list" else True
        pages.save()
        assert {name: int(value) for name, value in store.pages.items()} == model


def parcel(items: list[Any], sends: list[bytes] | None = None) -> bytes:
    return marshal.dumps((items, sends or []))


def through(step: Step, following: Step | None, parcels: list[bytes], store: Store | None = None) -> list[Any]:
    """Rows of the next stage; if there is none, what is sent."""
    names = {each: f"eu-{each}" for each in PAGES.outputs}
    rows = _rows(_Work(step, following, {"clicks": Click}, names), 0, store or Store(), parcels)
    if following is not None:
        return rows
    return sent([row["packed"] for row in rows])


class TestSteps:
    def test_records_of_several_parcels_come_in_the_order_of_their_arrival(self) -> None:
        def told(state: State, clicks: list[Record[Click]]) -> Iterator[Send]:
            yield Send("views", None, ",".join(f"{each.timestamp}/{each.topic}/{each.offset}" for each in clicks))

        one = [(5, "clicks", 0, 9, ("/", "a")), (1, "clicks", 0, 3, ("/", "b"))]
        two = [(1, "clicks", 0, 2, ("/", "c"))]
        rows = through(Step(told, by="page"), None, [parcel(one), parcel(two)])
        assert rows == [("eu-views", None, "1/clicks/2,1/clicks/3,5/clicks/9")]

    def test_a_step_hands_on_to_the_next_and_what_it_sends_passes_through(self) -> None:
        first, second = PAGES.steps
        store = Store()
        records = [(2, "clicks", 0, 1, ("/b", "bob")), (1, "clicks", 0, 0, ("/a", "ann"))]
        letter = pack_rows({"letters": ([None], [b"x"])})
        [row] = through(first, second, [parcel(records, [letter])], store)
        items, passing = marshal.loads(row["parcel"])
        assert (row["shard"], items) == (0, [("ann", "/a"), ("bob", "/b")])
        one = '{"views":1}'
        sends = [("letters", None, "x"), ("eu-views", "/a", one), ("eu-views", "/b", one)]
        assert sent(passing) == sends
        assert store.pages == {"/a": "1", "/b": "1"}

        rows = through(second, None, [parcel([("bob", "/b"), ("ann", "/a")], passing)])
        assert rows == [*sends, ("eu-lists", None, "ann:/a bob:/b")], "what a step is handed comes sorted"

    @pytest.mark.parametrize("order", [1, -1], ids=["one order of arrival", "the other"])
    def test_a_step_is_handed_anything_in_one_order_whatever_the_order_of_arrival(self, order: int) -> None:
        class Note(NamedTuple):
            page: str
            about: Any

        def told(state: State, notes: list[Note]) -> Iterator[Send]:
            yield Send("lists", None, repr([each.about for each in notes]))

        abouts = [None, True, 1, 1.0, float("nan"), "a", b"a", ("a", None), ["a"], {"a": None}, {"a": 1}]
        items = [("/", about) for about in abouts][::order]
        step = Step(told, by="page", takes=Note)
        [(_, _, seen)] = through(step, None, [parcel([each]) for each in items])
        expected = "[None, 1, 1.0, True, nan, 'a', b'a', ('a', None), ['a'], {'a': None}, {'a': 1}]"
        assert seen == expected, "1, 1.0 and True are equal: the order of their texts decides"

    def test_a_step_without_records_is_not_called(self) -> None:
        def never(state: State, clicks: list[Any]) -> Iterator[Send]:
            raise AssertionError

        passing = [pack_rows({"views": ([None], [None])})]
        assert through(Step(never, by="page"), None, [parcel([], passing)]) == [("views", None, None)]

    @pytest.mark.parametrize(
        ("following", "words"),
        [(None, "yielded Click: a step yields Send, as there is no step after it"), (PAGES.steps[1], "yielded Click")],
    )
    def test_what_a_step_must_not_yield_is_refused(self, following: Step | None, words: str) -> None:
        def wrong(state: State, clicks: list[Record[Click]]) -> Iterator[Any]:
            yield clicks[0].value

        with pytest.raises(StepFailed, match=words):
            through(Step(wrong, by="page"), following, [parcel([(1, "clicks", 0, 0, ("/", "a"))])])

    def test_a_topic_that_is_not_declared_is_refused(self) -> None:
        def elsewhere(state: State, clicks: list[Any]) -> Iterator[Send]:
            yield Send("vievs", None, None)

        with pytest.raises(StepFailed, match="it sends to 'vievs', which is not declared: there is views, lists"):
            through(Step(elsewhere, by="page"), None, [parcel([(1, "clicks", 0, 0, ("/", "a"))])])

    def test_what_a_step_raises_names_the_step_and_the_reason(self) -> None:
        with (
            pytest.raises(StepFailed, match=r"^the step 'count' failed: ValueError: no such page$"),
            _blamed_on(PAGES.steps[0]),
        ):
            raise ValueError("no such page")
