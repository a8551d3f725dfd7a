"""A driver program for the tests of the fixtures: it counts in tasks, says so, and goes on until it is ended.

    counting.py FOLDER

Each round writes the process ids of the tasks' Python workers to FOLDER/round-N.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession


def worker_ids(rows: Iterator[int]) -> Iterator[tuple[int, int]]:
    yield sum(rows), os.getppid()


def main(folder: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    number = 0
    while not (folder / "stop").exists():
        counted = spark.sparkContext.parallelize(range(100), 2).mapPartitions(worker_ids).collect()
        (folder / f"round-{number}").write_text("\n".join(str(pid) for _, pid in counted))
        print(f"round {number}: {sum(total for total, _ in counted)}", flush=True)
        number += 1
        time.sleep(0.1)
    spark.stop()
    print("stopped", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
