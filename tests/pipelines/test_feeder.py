"""The feeder as a process: what is in the topics in the end is the sample, whatever happened to it on the way."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import onceflow
from onceflow.client.settings import ClientSettings
from onceflow.pipelines.job import create_topics
from onceflow.pipelines.reading import NotRead, everything_in, raw_in
from onceflow.verify.workers import Workers
from onceflow.verify.workloads.reference_runs import Progress
from tests.pipelines.clicks import PIPELINE, generate
from tests.support.waiting import eventually

RECORDS = 4000
SEED = 5


@pytest.mark.timeout(120)
def test_a_feeder_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    with onceflow.Broker(tmp_path / "broker") as broker:
        settings = ClientSettings(bootstrap=broker.bootstrap)
        create_topics(PIPELINE, settings, "p-")
        shared = {"bootstrap": "127.0.0.1:1", "direct": broker.bootstrap, "client_config": {}, "seed": SEED}
        with Workers(tmp_path, {**shared, "zero": time.monotonic()}) as workers:
            feeder = workers.add(
                "feeder",
                "feeder",
                "onceflow.verify.programs.feeder",
                reference="tests.pipelines.clicks:REFERENCE",
                prefix="p-",
                records=RECORDS,
                rate=1000,
                faults=0,
                released=str(tmp_path / "released"),
                nemesis=str(tmp_path / "nemesis.jsonl"),
            )
            progress = Progress(tmp_path / "history")
            eventually(lambda: progress.look().fed > RECORDS // 4, "a quarter was fed", timeout_s=30)
            feeder.kill()
            eventually(lambda: progress.look().fed == RECORDS, "all was fed", timeout_s=60)
            assert feeder.life == 2
        there = everything_in(settings, {("p-clicks", 0): RECORDS // 2, ("p-clicks", 1): RECORDS // 2}, 20)
        found = sorted((raw_in(each, "p-") for each in there), key=lambda each: (each.partition, each.offset))
    wanted = sorted(generate(SEED, RECORDS), key=lambda each: each.partition)  # stable: in their order
    assert [(each.topic, each.partition, each.key, each.value, each.timestamp) for each in found] == wanted


def test_a_partition_that_cannot_be_read_to_its_end_is_named(tmp_path: Path) -> None:
    with onceflow.Broker(tmp_path) as broker:
        settings = ClientSettings(bootstrap=broker.bootstrap)
        create_topics(PIPELINE, settings, "p-")
        messages = everything_in(settings, {("p-clicks", 1): 1}, 0.0)
        with pytest.raises(NotRead, match=r"p-clicks-1 could not be read to the end within 0 s"):
            list(messages)
