"""Many rows for the sink in one: a column of Arrow streams in place of the columns `topic`, `key` and `value`.

Python that makes rows by the thousand, in an operator with state for example, and the sink's tasks, which are Python as
well, would exchange them by way of Spark's rows: into Arrow, out of it, into rows, and back, one by one. Packed, they
pass through Spark as a few pieces of binary data.

    frame with the column `packed`  -->  KafkaSink  -->  as if its rows had stood there one by one
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from onceflow.spark.columns import binary_of_list, repeated_text

__all__ = ["PACKED", "pack_rows", "unpack_rows"]

PACKED: Final = "packed"
"""The name of the column, the only one of its DataFrame."""
_SCHEMA: Final = pa.schema([("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary())])

KeysAndValues = tuple[list[bytes | None], list[bytes | None]]


def pack_rows(rows: Mapping[str, KeysAndValues]) -> bytes:
    """Rows by their topic: their keys, and as many values."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, _SCHEMA) as writer:
        for topic, (keys, values) in rows.items():
            columns = [repeated_text(topic, len(values)), binary_of_list(keys), binary_of_list(values)]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
    return bytes(stream.getvalue())


def unpack_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that were packed; what is not packed stays as it is."""
    for batch in batches:
        if batch.schema.names != [PACKED]:
            yield batch
            continue
        for cell in batch.column(0):
            yield from pa.ipc.open_stream(cell.as_buffer())
