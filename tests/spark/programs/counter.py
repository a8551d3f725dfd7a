"""A count per key with state of its own (transformWithState)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

__all__ = ["counted"]


class Counter(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count bigint")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timer_values: Any) -> Iterator[pd.DataFrame]:  # noqa: N802
        before = self._count.get()
        count = (before[0] if before else 0) + sum(len(each) for each in rows)
        self._count.update((count,))
        yield pd.DataFrame({"key": [str(key[0])], "value": [str(count)]})

    def close(self) -> None:
        pass


def counted(frame: DataFrame) -> DataFrame:
    rows = frame.selectExpr("cast(key as string) as name")
    return rows.groupBy("name").transformWithStateInPandas(
        statefulProcessor=Counter(),
        outputStructType="key string, value string",
        outputMode="Update",
        timeMode="None",
    )
