"""Deliberate defects of how a stream goes on: which micro-batch is skipped, which records are read.

Each was once the behaviour of source or sink. The functions take one protection away, for as long as the patch lasts;
`DEFECTS` names the anomaly that a verdict has to speak of then.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

from onceflow.client import fetching
from onceflow.client.cluster import TopicPartition
from onceflow.spark.positions import Positions
from onceflow.spark.progress import Progress
from onceflow.spark.query import MicroBatch
from onceflow.spark.resuming import Resuming
from tests.support.defects.spark import Defect

__all__ = ["DEFECTS"]

Patch = pytest.MonkeyPatch


def skipped_by_number_alone(patch: Patch) -> None:
    """Every micro-batch whose number is not above that of the last one counts as committed, whatever is in it."""

    def was_committed(_: Resuming, known: Progress | None, batch: MicroBatch) -> bool:
        return known is not None and known.query_id == batch.query_id and batch.batch_id <= known.batch_id

    patch.setattr(Resuming, "was_committed", was_committed)


def empty_fetch_taken_for_read(patch: Patch) -> None:
    """A Fetch that is answered without records is the end of the range."""

    def without_batches(reader: fetching._RangeReader, _: fetching.Fetched) -> list[fetching.Batch]:
        reader.position = reader._end
        return []

    patch.setattr(fetching._RangeReader, "_without_batches", without_batches)


def topic_ids_ignored(patch: Patch) -> None:
    """A topic is known by its name alone."""
    existing = Positions._existing

    def without_ids(positions: Positions, topics: Collection[str] | None) -> Collection[TopicPartition]:
        found = existing(positions, topics)
        positions._ids = {}
        return found

    patch.setattr(Positions, "_existing", without_ids)


def missing_progress_taken_for_a_new_app(patch: Patch) -> None:
    """Nobody asks the consumer group what the app has committed."""
    patch.setattr(Resuming, "check_run", lambda *_: None)


DEFECTS = {
    "skipped by number alone": Defect(skipped_by_number_alone, "lost write"),
    "empty fetch taken for read": Defect(empty_fetch_taken_for_read, "lost write"),
    "topic ids ignored": Defect(topic_ids_ignored, "lost write"),
    "missing progress taken for a new app": Defect(missing_progress_taken_for_a_new_app, "duplicate"),
}
