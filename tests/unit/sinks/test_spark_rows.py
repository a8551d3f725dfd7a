"""The kinds of a DataFrame's columns."""

from __future__ import annotations

import pytest
from pyspark.sql import types

from onceflow.errors import ConfigError
from onceflow.sinks.databases.database import Column, Kind
from onceflow.sinks.spark_rows import columns_of

KINDS = {
    types.BooleanType(): "boolean",
    types.ByteType(): "smallint",
    types.ShortType(): "smallint",
    types.IntegerType(): "integer",
    types.LongType(): "bigint",
    types.FloatType(): "real",
    types.DoubleType(): "double",
    types.StringType(): "text",
    types.VarcharType(20): "text",
    types.CharType(3): "text",
    types.BinaryType(): "binary",
    types.DateType(): "date",
    types.TimestampType(): "timestamp",
    types.TimestampNTZType(): "timestamp_ntz",
    types.ArrayType(types.IntegerType()): "json",
    types.MapType(types.StringType(), types.IntegerType()): "json",
    types.StructType([types.StructField("a", types.IntegerType())]): "json",
    types.VariantType(): "json",
}


def schema(kind: types.DataType) -> types.StructType:
    return types.StructType([types.StructField("column", kind)])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.simpleString())
def test_type_of_sparks_has_a_kind(kind: types.DataType) -> None:
    assert columns_of(schema(kind)) == [Column("column", Kind(KINDS[kind]))]


def test_decimal_keeps_precision_and_scale() -> None:
    assert columns_of(schema(types.DecimalType(38, 9))) == [Column("column", Kind("decimal", 38, 9))]


@pytest.mark.parametrize(
    "kind", [types.DayTimeIntervalType(), types.YearMonthIntervalType(), types.CalendarIntervalType(), types.NullType()]
)
def test_type_without_a_kind_is_refused_with_advice(kind: types.DataType) -> None:
    with pytest.raises(ConfigError, match=r"column 'column' is .*cast it in Spark.*Nothing was written"):
        columns_of(schema(kind))
