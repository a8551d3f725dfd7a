"""Where a query's partitions begin and end, from answers that change between two questions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from onceflow.client.cluster import TopicPartition
from onceflow.client.offsets import LATEST
from onceflow.errors import ConfigError
from onceflow.spark.options import Position, SourceOptions
from onceflow.spark.positions import Positions

P0 = ("orders", 0)


class Growing(Positions):
    """A partition that gets a record after each question; `times` are those of its records."""

    def __init__(self, times: list[int], **options: str) -> None:
        self.times = times
        self.options = SourceOptions.of({"kafka.bootstrap.servers": "a:1", "subscribe": "orders", **options})
        super().__init__(self.options)

    def partitions(self, known: Collection[TopicPartition] = ()) -> set[TopicPartition]:
        return {P0}

    def _ask(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        [at] = wanted.values()
        found = next((offset for offset, time in enumerate(self.times) if time >= at), -1)
        answer = len(self.times) if at == LATEST else found
        self.times.append(100)
        return {P0: answer}


def starting(kafka: Growing) -> Position:
    return kafka.options.for_stream()


def test_a_record_that_is_new_enough_is_not_passed_over_by_the_question_for_the_end() -> None:
    kafka = Growing([1, 2], startingTimestamp="50", startingOffsetsByTimestampStrategy="latest")
    [at] = kafka.resolve(starting(kafka)).values()
    assert min(time for time in kafka.times[at:]) == 100
    assert 100 not in kafka.times[:at]


def test_without_a_record_that_is_new_enough_it_is_the_end_or_an_error() -> None:
    kafka = Growing([1, 2], startingTimestamp="500", startingOffsetsByTimestampStrategy="latest")
    assert kafka.resolve(starting(kafka)) == {P0: 2}
    kafka = Growing([1, 2], startingTimestamp="500")
    with pytest.raises(ConfigError, match="no record of orders-0 is as new as 500"):
        kafka.resolve(starting(kafka))
