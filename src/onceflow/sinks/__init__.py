"""Landing: exactly once into SQL databases.

    from onceflow.sinks import SqlSink, consume_into

    sink = SqlSink(url="postgresql://...", table="orders", key=["order_id"], mode="upsert", app_id="orders")
    df.writeStream.foreachBatch(sink).option("checkpointLocation", "...").start()

- `SqlSink`: a sink for Spark. Each micro-batch is one transaction, in which the progress of the query moves as well.
- `write`: a DataFrame that does not stream, as one transaction.
- `consume_into`: without Spark: records of a topic into a database, with their offsets in the same transaction.
- `increment`: a counter that remembers the record that has changed it last.

PostgreSQL needs `pip install 'onceflow[sql]'`, SqlSink also `onceflow[spark]`. Names are imported when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceflow.sinks.consuming import Committed, Consumed, DataLossError, Record, consume_into
    from onceflow.sinks.increments import increment
    from onceflow.sinks.sql_sink import SqlSink, write
    from onceflow.sinks.tables import Table

__all__ = [
    "Committed",
    "Consumed",
    "DataLossError",
    "Record",
    "SqlSink",
    "Table",
    "consume_into",
    "increment",
    "write",
]

_WHERE = {
    "SqlSink": "sql_sink",
    "Table": "tables",
    "write": "sql_sink",
    "increment": "increments",
} | dict.fromkeys(("Committed", "Consumed", "DataLossError", "Record", "consume_into"), "consuming")


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_WHERE[name]}")
    return getattr(module, name)
