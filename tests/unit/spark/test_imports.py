"""What a Python worker has to load, since every one of them does."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import numpy as np
import pyarrow as pa
import onceflow.spark.source, onceflow.spark.task
from onceflow.spark.columns import binary_array
from onceflow.spark.decoding import to_arrow
from onceflow.spark.encoding import Rows, pack_by_partition
from onceflow.spark.murmur2 import partitions_of
from onceflow.wire.batch import batches

rows = binary_array(np.array([0, 3, 6], dtype=np.int32), pa.py_buffer(b"abcdef"))
[(_, packed)] = pack_by_partition(Rows(keys=rows, values=rows), partitions_of(rows, 1), now_ms=1)
read = to_arrow(list(batches(packed.sealed(1, 0, 0, True))), 0, 2, topic="t", partition=0, include_headers=True)
assert read.num_rows == 2
print(*sorted({"pandas", "confluent_kafka", "rich", "onceflow.broker"} & set(sys.modules)))
"""


def test_workers_load_neither_pandas_nor_clients_nor_the_broker() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
