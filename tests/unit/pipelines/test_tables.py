"""What a pipeline may declare to land."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from onceflow.errors import ConfigError
from onceflow.pipelines import Input, Json, Lands, Pipeline, Record, Send, State, Step, Time
from onceflow.pipelines.tables import REQUIRED, Field, Kind, fields_of, table_name


class Everything(NamedTuple):
    name: str
    number: int
    share: float
    good: bool
    at: Time
    more: Json
    note: str | None
    seen: Time | None
    less: Json | None
    size: int | None = 7


class Click(NamedTuple):
    page: str


class Views(NamedTuple):
    page: str
    views: int


def count(state: State, clicks: list[Record[Click]]) -> Iterator[Send]:
    return iter(())


def pages(*lands: Lands) -> Pipeline:
    steps = [Step(count, by="page")]
    return Pipeline(name="pages", inputs=[Input("clicks", Click)], steps=steps, outputs={"views": 1}, lands=lands)


def test_a_schema_says_which_columns_there_are() -> None:
    fields = fields_of(Lands("views", Everything, columns={"name": "who"}))
    assert fields == [
        Field("name", "who", Kind.TEXT, False, REQUIRED),
        Field("number", "number", Kind.WHOLE, False, REQUIRED),
        Field("share", "share", Kind.NUMBER, False, REQUIRED),
        Field("good", "good", Kind.FLAG, False, REQUIRED),
        Field("at", "at", Kind.TIME, False, REQUIRED),
        Field("more", "more", Kind.JSON, False, REQUIRED),
        Field("note", "note", Kind.TEXT, True, REQUIRED),
        Field("seen", "seen", Kind.TIME, True, REQUIRED),
        Field("less", "less", Kind.JSON, True, REQUIRED),
        Field("size", "size", Kind.WHOLE, True, 7),
    ]


@pytest.mark.parametrize("declared", [bytes, list[int], int | str, Any, None])
def test_a_type_that_no_table_has_is_refused(declared: Any) -> None:
    class Odd(NamedTuple):
        field: declared

    Odd.__annotations__ = {"field": declared}
    with pytest.raises(ConfigError, match="the field 'field' of Odd is declared as"):
        Lands("views", Odd)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"key": ["pag"]}, "the table 'views': Views has no field 'pag'"),
        ({"mode": "upsert", "key": ["page"], "order_by": ["at"]}, "Views has no field 'at'"),
        ({"columns": {"user": "user_id"}}, "Views has no field 'user'"),
        ({"mode": "delete_and_upsert", "key": ["page"]}, "Views has no field 'deleted'"),
        ({"table": "page views"}, "'page views' is no plain name for a table"),
    ],
)
def test_names_that_are_not_there_are_refused(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Lands("views", Views, **wrong)


def test_a_table_has_the_name_of_its_topic_unless_it_has_one_of_its_own() -> None:
    assert Lands("views", Views).table == "views"
    assert table_name(Lands("views", Views, table="page_views"), "") == "page_views"


@pytest.mark.parametrize(
    ("prefix", "name"), [("test-1.", "test_1_views"), ("Ärger ", "_rger_views"), ("team_", "team_views")]
)
def test_of_a_prefix_a_table_gets_what_can_be_a_part_of_its_name(prefix: str, name: str) -> None:
    assert table_name(Lands("views", Views), prefix) == name


def test_a_schema_of_the_database_comes_first() -> None:
    assert table_name(Lands("views", Views), "a-", "shop") == "shop.a_views"


def test_a_pipeline_lands_only_what_it_writes() -> None:
    assert pages(Lands("views", Views)).lands
    with pytest.raises(ConfigError, match="lands 'visits', which is none of its outputs: there is views"):
        pages(Lands("visits", Views))


def test_two_topics_in_one_table_are_refused() -> None:
    with pytest.raises(ConfigError, match="'pages' lands two topics in one table"):
        pages(Lands("views", Views), Lands("views", Views, table="VIEWS"))
