"""A real Spark job on the page of the broker that it writes to: its micro-batches in the timeline."""

from __future__ import annotations

from pathlib import Path

import pytest

import onceflow
from tests.monitor.test_page import sees
from tests.spark.streams import Streams
from tests.support.browser import Page
from tests.support.spark import spark_session

pytestmark = pytest.mark.faults
BATCHES = 4


def test_the_micro_batches_of_a_job_are_in_the_timeline_with_what_their_transactions_took(
    browser: Page, tmp_path: Path
) -> None:
    with onceflow.Broker(http="127.0.0.1:0") as broker, spark_session(tmp_path / "spark") as spark:
        assert broker.http_url is not None
        browser.look()
        browser.forget()
        browser.visit(broker.http_url)
        streams = Streams(spark, broker.bootstrap, "watched", tmp_path)
        streams.send(range(5 * BATCHES))
        streams.run(maxOffsetsPerTrigger=5)
        assert streams.results.committed == list(range(BATCHES))

        bars = "[...document.querySelectorAll('#batches .lane g')].map(each => each.textContent)"
        found = sees(browser, f"{bars}.length === {BATCHES} && {bars}", "all micro-batches")
        assert "watched-app" in browser.run("document.querySelector('#batches .lane').textContent")
        for number, told in enumerate(found):
            assert told.startswith(f"batch {number}, committed at ")
            assert "took" in told
            is_last = number == BATCHES - 1  # what its transaction took, the next one tells
            assert ("of it for the transaction" in told) is not is_last
        assert browser.complaints == []
