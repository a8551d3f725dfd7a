"""Rows of Spark on their way into a database: the kinds of their columns, and what tasks do with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from onceflow.errors import ConfigError
from onceflow.sinks.databases.database import Again, Column, Database, Gone, Kind, Loaded, Refused, Stage, Trouble
from onceflow.spark.stage_attempts import was_run_again

__all__ = ["IS_JSON", "LoadFailed", "columns_of", "load", "prepared"]

IS_JSON: Final = {"json": True}
"""Metadata of a column of text that is JSON already."""

_PLAIN: Final = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double",
    "string": "text",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
_NESTED: Final = ("array", "map", "struct", "variant")


def columns_of(schema: Any) -> list[Column]:
    """Of a DataFrame's schema. Raises `ConfigError` for a type that no table can hold."""
    return [
        Column(each.name, Kind("json") if _is_json(each) else _kind(each.name, each.dataType)) for each in schema.fields
    ]


def _is_json(field: Any) -> bool:
    return bool(field.metadata == IS_JSON and field.dataType.typeName() == "string")


def _kind(name: str, type_: Any) -> Kind:
    known = type_.typeName()
    if known == "decimal":
        return Kind("decimal", type_.precision, type_.scale)
    if known in _NESTED:
        return Kind("json")
    text = type_.simpleString().partition("(")[0].partition(" ")[0]
    if known in ("varchar", "char") or text in ("string", "varchar", "char"):
        return Kind("text")
    if text not in _PLAIN:
        raise ConfigError(
            f"column {name!r} is {type_.simpleString()}, and there is no type for it in a table: cast it in Spark, to "
            "string for example. Nothing was written"
        )
    return Kind(_PLAIN[text])


def prepared(frame: Any, columns: Sequence[Column]) -> Any:
    """The DataFrame as tasks want it: what is nested becomes JSON, with its nulls, by Spark itself."""
    is_ready = {each.name: _is_json(each) for each in frame.schema.fields}
    if all(each.kind.name != "json" or is_ready[each.name] for each in columns):
        return frame
    from pyspark.sql import functions as sql

    def each(column: Column) -> Any:
        quoted = f"`{column.name.replace('`', '``')}`"
        if column.kind.name != "json" or is_ready[column.name]:
            return sql.col(quoted)
        return sql.to_json(sql.col(quoted), {"ignoreNullFields": "false"}).alias(column.name)

    return frame.select(*map(each, columns))


# --- loading

_RESULT: Final = "report string"
_TROUBLE: Final = {each.__name__: each for each in (Again, Gone, Refused)}


class LoadFailed(NamedTuple):
    """What a task met, and brought back in place of raising it: Spark would only have repeated it."""

    task: int
    trouble: Trouble


def load(frame: Any, database: Database, stage: Stage) -> list[Loaded] | LoadFailed:
    """Run the DataFrame, and leave its rows in the stage: what each task that succeeded has left there, or the first
    trouble. Raises what Spark raises.

    A stage that Spark ran more than once is trouble: what tasks of the first attempt have left need not fit what those
    of the second were given (see `onceflow.spark.sequencer`).
    """
    rows = prepared(frame, stage.columns).mapInArrow(_loader(database, stage), _RESULT).collect()
    reports = [json.loads(each.report) for each in rows]
    troubles = [
        LoadFailed(each["task"], _TROUBLE[each["trouble"]](each["reason"])) for each in reports if each["trouble"]
    ]
    if troubles:
        return next((each for each in troubles if isinstance(each.trouble, Refused)), troubles[0])
    for number in sorted({each["stage"] for each in reports}):
        is_mixed = was_run_again(frame.sparkSession, number)
        if is_mixed or is_mixed is None:
            what = (
                f"Spark has run stage {number} again, since it had lost what the stage reads, and rows of both "
                "attempts need not fit together"
                if is_mixed
                else f"Spark does not say whether stage {number} was run once: its listeners are behind"
            )
            return LoadFailed(reports[0]["task"], Again(what))
    return [Loaded(each["task"], each["attempt"], each["rows"]) for each in reports]


def _loader(database: Database, stage: Stage) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        from onceflow.spark.columns import repeated_text

        context = TaskContext.get()
        assert context is not None, "tasks have one"
        task, attempt = context.partitionId(), context.taskAttemptId()
        report: dict[str, Any] = {"task": task, "attempt": attempt, "rows": 0, "trouble": None}
        report["stage"] = context.stageId()
        try:
            report["rows"] = database.load(stage, task, attempt, batches)
        except Trouble as problem:
            report |= {"trouble": type(problem).__name__, "reason": str(problem)}
            for _ in batches:  # Spark takes a reader that stops early for a broken one
                pass
        yield pa.RecordBatch.from_arrays([repeated_text(json.dumps(report), 1)], names=["report"])

    return run
