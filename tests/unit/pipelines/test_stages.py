"""Parcels, shards, pages of state, and what a step may yield; without Spark, and with a state store of a few lines."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import ConfigError
from onceflow.pipelines import Input, Pipeline, Record, Send, State, Step
from onceflow.pipelines.parsing import INT_MAX
from onceflow.pipelines.stages import (
    Pages,
    StepFailed,
    _blamed_on,
    _columns,
    _frames,
    _Packing,
    _Parcels,
    _Work,
    shard_of,
    topic_names,
)


class Click(NamedTuple):
    page: str
    user: str


class View(NamedTuple):
    user: str
    page: str


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


class TestShards:
    def test_a_shard_is_for_ever(self) -> None:
        assert [shard_of(key, 8) for key in ("", "a", "user-1", "Köln", 7, True)] == [0, 3, 4, 3, 2, 3]

    @given(st.text() | st.integers(), st.integers(1, 64))
    def test_every_key_has_one(self, key: object, shards: int) -> None:
        assert 0 <= shard_of(key, shards) < shards

    def test_keys_are_spread_over_all_shards(self) -> None:
        assert {shard_of(f"user-{number}", 8) for number in range(200)} == set(range(8))


def unpacked(rows: list[dict[str, Any]]) -> dict[int, tuple[list[Any], list[Any]]]:
    return {row["shard"]: marshal.loads(row["parcel"]) for row in rows}


class TestParcels:
    def test_each_shard_gets_its_items_in_one_row(self) -> None:
        parcels = _Parcels(Step(count, by="page", shards=8))
        for number in range(100):
            parcels.add(f"page-{number % 10}", (number,))
        rows = unpacked(parcels.rows())
        assert sorted(item for items, _ in rows.values() for item in items) == [(number,) for number in range(100)]
        for shard, (items, _) in rows.items():
            assert {shard_of(f"page-{number % 10}", 8) for (number,) in items} == {shard}

    @pytest.mark.parametrize("items", [0, 1, 5])
    @pytest.mark.parametrize("sends", [0, 1, 7, 100])
    def test_what_passes_through_is_in_exactly_one_parcel(self, items: int, sends: int) -> None:
        parcels = _Parcels(Step(count, by="page"))
        for number in range(items):
            parcels.add(f"page-{number}", (number,))
        parcels.pass_on([("views", str(number), None) for number in range(sends)])
        found = [each for _, passing in unpacked(parcels.rows()).values() for each in passing]
        assert sorted(found, key=lambda each: int(each[1])) == [("views", str(number), None) for number in range(sends)]

    def test_nothing_is_no_row(self) -> None:
        assert _Parcels(Step(count, by="page")).rows() == []


def count(state: State, clicks: list[Record[Click]]) -> Iterator[Any]:
    for click in clicks:
        state[click.value.page] = state.get(click.value.page, 0) + 1
        yield View(click.value.user, click.value.page)
        yield Send("views", click.value.page, {"views": state[click.value.page]})


def listed(state: State, views: list[View]) -> Iterator[Send]:
    yield Send("lists", None, " ".join(f"{view.user}:{view.page}" for view in views))


PAGES = Pipeline(
    name="pages",
    inputs=[Input("clicks", Click)],
    steps=[Step(count, by="page"), Step(listed, by="user", takes=View, shards=1)],
    outputs={"views": 1, "lists": 1},
)


def batch(*records: tuple[str, int, int, int, bytes | None, bytes | None]) -> Any:
    import pyarrow as pa

    names = ("topic", "partition", "offset", "timestamp", "key", "value")
    types = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary())
    columns = [pa.array([each[index] for each in records], types[index]) for index in range(6)]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


class TestPacking:
    def test_records_are_parsed_under_the_name_that_the_pipeline_knows(self) -> None:
        [packed] = _Packing(PAGES, topic_names(PAGES, "eu-"))(
            [batch(("eu-clicks", 1, 5, 99, b"k", b'{"page":"/","user":"ann"}'))]
        )
        [(items, sends)] = unpacked(packed.to_pylist()).values()
        assert items == [(99, "clicks", 1, 5, ("/", "ann"))]
        assert sends == []

    def test_what_does_not_fit_travels_along_as_a_dead_letter(self) -> None:
        [packed] = _Packing(PAGES, topic_names(PAGES, ""))([batch(("clicks", 0, 0, 1, None, b"{"))])
        [(items, [(topic, key, letter)])] = unpacked(packed.to_pylist()).values()
        assert (items, topic, key) == ([], "pages_dead_letters", None)
        assert '"reason":"not JSON"' in letter


def through(step: Step, following: Step | None, parcels: list[Any], store: Store | None = None) -> list[Any]:
    pages = Pages(store or Store())
    names = {each: f"eu-{each}" for each in PAGES.outputs}
    frames = list(_frames(_Work(step, following, {"clicks": Click}, names), pages, parcels))
    pages.save()
    return [tuple(row) for frame in frames for row in frame.itertuples(index=False)]


class TestSteps:
    def test_records_of_several_parcels_come_in_the_order_of_their_arrival(self) -> None:
        def told(state: State, clicks: list[Record[Click]]) -> Iterator[Send]:
            yield Send("views", None, ",".join(f"{each.timestamp}/{each.topic}/{each.offset}" for each in clicks))

        one = [(5, "clicks", 0, 9, ("/", "a")), (1, "clicks", 0, 3, ("/", "b"))]
        two = [(1, "clicks", 0, 2, ("/", "c"))]
        rows = through(Step(told, by="page"), None, [(one, []), (two, [])])
        assert rows == [("eu-views", None, "1/clicks/2,1/clicks/3,5/clicks/9")]

    def test_a_step_hands_on_to_the_next_and_what_it_sends_passes_through(self) -> None:
        first, second = PAGES.steps
        store = Store()
        records = [(2, "clicks", 0, 1, ("/b", "bob")), (1, "clicks", 0, 0, ("/a", "ann"))]
        [(shard, parcel)] = through(first, second, [(records, [("dead_letters", None, "x")])], store)
        items, sends = marshal.loads(parcel)
        assert (shard, items) == (0, [("ann", "/a"), ("bob", "/b")])
        one = '{"views":1}'
        assert sends == [("dead_letters", None, "x"), ("eu-views", "/a", one), ("eu-views", "/b", one)]
        assert store.pages == {"/a": "1", "/b": "1"}

        rows = through(second, None, [([("bob", "/b"), ("ann", "/a")], sends)])
        assert rows == [*sends, ("eu-lists", None, "ann:/a bob:/b")], "what a step is handed comes sorted"

    def test_a_step_without_records_is_not_called(self) -> None:
        def never(state: State, clicks: list[Any]) -> Iterator[Send]:
            raise AssertionError

        assert through(Step(never, by="page"), None, [([], [("views", None, None)])]) == [("views", None, None)]

    def test_a_mapping_becomes_json_a_text_stays_and_none_is_a_tombstone(self) -> None:
        def three(state: State, clicks: list[Any]) -> Iterator[Send]:
            yield from (Send("views", "k", value) for value in ({"a": [1, None]}, "as it is", None))

        rows = through(Step(three, by="page"), None, [([(1, "clicks", 0, 0, ("/", "a"))], [])])
        assert [value for _, _, value in rows] == ['{"a":[1,null]}', "as it is", None]

    @pytest.mark.parametrize(
        ("following", "words"),
        [(None, "yielded Click: a step yields Send, as there is no step after it"), (PAGES.steps[1], "yielded Click")],
    )
    def test_what_a_step_must_not_yield_is_refused(self, following: Step | None, words: str) -> None:
        def wrong(state: State, clicks: list[Record[Click]]) -> Iterator[Any]:
            yield clicks[0].value

        with pytest.raises(ConfigError, match=words):
            through(Step(wrong, by="page"), following, [([(1, "clicks", 0, 0, ("/", "a"))], [])])

    def test_a_topic_that_is_not_declared_is_refused(self) -> None:
        def elsewhere(state: State, clicks: list[Any]) -> Iterator[Send]:
            yield Send("vievs", None, None)

        with pytest.raises(ConfigError, match="it sends to 'vievs', which is not declared: there is views, lists"):
            through(Step(elsewhere, by="page"), None, [([(1, "clicks", 0, 0, ("/", "a"))], [])])

    def test_what_a_step_raises_names_the_step_and_the_reason(self) -> None:
        with (
            pytest.raises(StepFailed, match=r"^the step 'count' failed: ValueError: no such page$"),
            _blamed_on(PAGES.steps[0]),
        ):
            raise ValueError("no such page")


class Typed(NamedTuple):
    page: int


class Topical(NamedTuple):
    topic: str


def same(frame: Any) -> Any:
    return frame


class TestColumns:
    def test_a_field_of_several_inputs_is_one_column(self) -> None:
        inputs = [Input("clicks", Click), Input("views", View)]
        pipeline = Pipeline(name="p", inputs=inputs, outputs={"o": 1}, build=same)
        assert _columns(pipeline) == {"page": "STRING", "user": "STRING"}

    @pytest.mark.parametrize(
        ("schema", "words"), [(Typed, "'page' is of different types"), (Topical, "cannot be called 'topic'")]
    )
    def test_fields_that_cannot_be_columns_are_refused(self, schema: type[Any], words: str) -> None:
        inputs = [Input("clicks", Click), Input("others", schema)]
        with pytest.raises(ConfigError, match=words):
            _columns(Pipeline(name="p", inputs=inputs, outputs={"o": 1}, build=same))
