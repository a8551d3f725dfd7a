"""Which columns of PostgreSQL keep which values unchanged."""

from __future__ import annotations

import pytest

from onceflow.sinks.databases.database import Column, Kind, Refused, TableColumn
from onceflow.sinks.databases.postgresql_types import misfit, type_for


def fits(kind: Kind, type_there: str) -> bool:
    return misfit(Column("x", kind), TableColumn("x", type_there)) is None


def decimal(precision: int, scale: int) -> Kind:
    return Kind("decimal", precision, scale)


FITTING = [
    ("smallint", "smallint|integer|bigint|real|double precision|numeric|numeric(5,0)|numeric(38,10)"),
    ("integer", "integer|bigint|double precision|numeric|numeric(10,0)|numeric(12,2)"),
    ("bigint", "bigint|numeric|numeric(19,0)|numeric(38,19)"),
    ("real", "real|double precision"),
    ("double", "double precision"),
    ("boolean", "boolean"),
    ("binary", "bytea"),
    ("date", "date"),
    ("timestamp", "timestamp with time zone|timestamp(6) with time zone"),
    ("timestamp_ntz", "timestamp without time zone|timestamp(6) without time zone"),
    ("text", "text|character varying(20)|character varying|character(3)|uuid|json|jsonb|citext|inet|mood|text[]|xml"),
    ("text", "interval|time without time zone|geometry(Point,4326)"),
    ("json", "json|jsonb|text|character varying"),
]
NOT_FITTING = [
    ("smallint", "numeric(4,0)|numeric(5,1)|boolean|text"),
    ("integer", "smallint|real|numeric(9,0)|numeric(10,1)|text"),
    ("bigint", "integer|smallint|real|double precision|numeric(18,0)|numeric(19,1)|text|timestamp with time zone"),
    ("real", "numeric|integer|text"),
    ("double", "real|numeric|bigint"),
    ("boolean", "integer|text|bit(1)"),
    ("binary", "text|uuid"),
    ("date", "timestamp with time zone|timestamp without time zone|text"),
    ("timestamp", "timestamp without time zone|timestamp(3) with time zone|date|text|bigint"),
    ("timestamp_ntz", "timestamp with time zone|timestamp(0) without time zone|date"),
    ("text", "integer|bigint|numeric|numeric(3,1)|boolean|bytea|date|timestamp with time zone|double precision"),
    ("text", 'name|"char"|timestamp(3) without time zone'),
    ("json", "text[]|integer|bytea"),
]


def cases(table: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(kind, type_there) for kind, types in table for type_there in types.split("|")]


@pytest.mark.parametrize(("kind", "type_there"), cases(FITTING))
def test_values_are_kept_by(kind: str, type_there: str) -> None:
    assert fits(Kind(kind), type_there)


@pytest.mark.parametrize(("kind", "type_there"), cases(NOT_FITTING))
def test_values_would_not_be_kept_by(kind: str, type_there: str) -> None:
    assert not fits(Kind(kind), type_there)


@pytest.mark.parametrize(
    ("kind", "type_there"),
    [
        (decimal(12, 2), "numeric"),
        (decimal(12, 2), "numeric(12,2)"),
        (decimal(12, 2), "numeric(14,3)"),
        (decimal(38, 18), "numeric(38,18)"),
        (decimal(4, 0), "smallint"),
        (decimal(9, 0), "integer"),
        (decimal(18, 0), "bigint"),
        (decimal(3, 0), "numeric(3)"),
    ],
)
def test_a_decimal_is_kept_where_both_its_sides_have_room(kind: Kind, type_there: str) -> None:
    assert fits(kind, type_there)


@pytest.mark.parametrize(
    ("kind", "type_there"),
    [
        (decimal(12, 2), "numeric(12,3)"),  # nine digits before the point
        (decimal(12, 2), "numeric(13,1)"),
        (decimal(3, 0), "numeric(5,-2)"),
        (decimal(5, 0), "smallint"),
        (decimal(10, 0), "integer"),
        (decimal(19, 0), "bigint"),
        (decimal(4, 1), "bigint"),
        (decimal(4, 1), "double precision"),
        (decimal(4, 1), "text"),
    ],
)
def test_a_decimal_that_would_lose_digits_does_not_fit(kind: Kind, type_there: str) -> None:
    assert not fits(kind, type_there)


def test_the_message_names_both_types_and_what_to_do() -> None:
    said = misfit(Column("sum", decimal(12, 2)), TableColumn("sum", "numeric(9,2)"))
    assert said == (
        "column sum holds decimal(12,2) and is numeric(9,2) in the table, which does not keep all of its values "
        'unchanged. Either cast it in Spark, or: ALTER TABLE ... ALTER COLUMN "sum" TYPE numeric(12,2)'
    )


def test_a_kind_without_a_type_is_refused() -> None:
    with pytest.raises(Refused, match="no type for interval"):
        type_for(Kind("interval"))
