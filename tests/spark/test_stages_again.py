"""A stage that Spark runs again, since shuffle files were lost while it read them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from tests.spark.programs import lost_shuffle
from tests.support.brokers import RunningBroker
from tests.support.readers import committed
from tests.support.spark import DriverProcess
from tests.support.waiting import eventually

COUNT = 60
SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
}
"""Spark's own checksums would see that the rows have moved, and are no part of what is promised."""
WAIT_S = 240.0


@pytest.mark.faults  # of every day: tests/unit/spark/test_stage_attempts.py, test_sequencer.py and test_task.py
@pytest.mark.timeout(600)
def test_rows_of_two_attempts_at_a_stage_are_not_mixed(
    broker: RunningBroker, new_name: Callable[[], str], tmp_path: Path, new_driver: Callable[..., DriverProcess]
) -> None:
    topic = new_name()
    Admin(ClientSettings(bootstrap=broker.bootstrap)).create(topic, partitions=3)
    driver = new_driver(Path(lost_shuffle.__file__), broker.bootstrap, topic, tmp_path, COUNT, settings=SETTINGS)
    for sink, why in (("kafka", "Spark runs stage"), ("sqlite", "Spark has run stage")):
        found = driver.wait_for(f"written-to-{sink} ", WAIT_S)
        assert found.split() == [f"written-to-{sink}", str(COUNT), "2", "True"]
        assert why in driver.log
    assert driver.wait(WAIT_S) == 0
    eventually(lambda: len(committed(broker.bootstrap, topic)) >= COUNT, "the markers are written")
    assert sorted(int(each.value or b"") for each in committed(broker.bootstrap, topic)) == list(range(COUNT))
    with sqlite3.connect(tmp_path / "rows.db") as database:
        assert [row[0] for row in database.execute("SELECT id FROM numbers ORDER BY id")] == list(range(COUNT))
    database.close()
