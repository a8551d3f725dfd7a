"""Whether a micro-batch was committed, by the progress that is kept where its rows are. Spark's own commit log is
written after the sink has returned, so a driver that dies in between runs a batch again.

Progress and checkpoint can contradict each other: a checkpoint was deleted, restored from a backup, or belongs to
another query. Going on would then lose records or double them, and is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onceflow.client.cluster import TopicPartition
from onceflow.errors import ConfigError
from onceflow.spark.planning import to_json
from onceflow.spark.problems import CheckpointMismatch
from onceflow.spark.progress import Progress
from onceflow.spark.query import MicroBatch

__all__ = ["Resuming"]

log = logging.getLogger("onceflow.spark")

NEW_CHECKPOINT: Final = ("refuse", "accept", "never")


@dataclass(frozen=True, kw_only=True)
class Resuming:
    """How a sink goes on from where its application left off."""

    app_id: str
    sink: str
    """The name of its class, for messages."""
    keeper: str
    """Who keeps the progress: "Kafka", "the database"."""
    new_checkpoint: str = "refuse"
    """What to do with a checkpoint that the progress is not about: see `KafkaSink`."""

    def __post_init__(self) -> None:
        if self.new_checkpoint not in NEW_CHECKPOINT:
            raise ConfigError(
                f"new_checkpoint={self.new_checkpoint!r} does not exist; there is "
                f"{', '.join(map(repr, NEW_CHECKPOINT))}"
            )

    def was_committed(self, known: Progress | None, batch: MicroBatch) -> bool:
        """Raises `CheckpointMismatch` where going on would lose or double records."""
        if known is None:
            return False
        if known.query_id != batch.query_id:
            if self.new_checkpoint == "never":
                raise self._no_state(known)
            if self.new_checkpoint == "refuse":
                self._check_start(known, batch)
            return False
        if batch.batch_id > known.batch_id:
            return False
        if not _is_part_of(known, batch):
            raise CheckpointMismatch(
                f"batch {known.batch_id} of {self.app_id!r} was committed up to {to_json(known.offsets)}, and by the "
                f"checkpoint batch {batch.batch_id} ends at {to_json(batch.ends)}: its offset log was changed, or "
                "it is an older one that now goes another way. Skipping the batch would lose records, writing it "
                "would double some. Nothing was written. Start with a new checkpoint and startingOffsets=committed"
            )
        return True

    def look_for_gap(self, known: Progress | None, batch: MicroBatch) -> None:
        """At the start of a query. Spark has gone on from batches that are not known here: the keeper has lost commits.
        Or nobody has called the sink for them, `if not df.isEmpty()` for example: so this alone is no reason to stop.

        Our own pipelines, which keep state ("never"), call it for every batch: there it is one.
        """
        if known is None or known.query_id != batch.query_id or batch.batch_id <= known.batch_id + 1:
            return
        gap = (
            f"by the checkpoint batch {batch.batch_id} of {self.app_id!r} is next, and {self.keeper} knows of none "
            f"after batch {known.batch_id}: it has lost what was committed since (an older backup, a replica that was "
            "behind), or the sink was not called"
        )
        if self.new_checkpoint != "never":
            log.warning("%s; it goes on", gap)
            return
        raise CheckpointMismatch(
            f"{gap}. Nothing was written. Bring back what was lost, or begin anew: with another app_id. To go on "
            f"without it: {self.sink}(new_checkpoint='accept')"
        )

    def _no_state(self, known: Progress) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"the app {known.app_id!r} is known to {self.keeper} (batch {known.batch_id} of another checkpoint), and "
            "this query has a new checkpoint, without the state that it had collected. Nothing was written. Bring the "
            "old checkpoint back, or begin anew: with another app_id and "
            f"{'topics' if self.keeper == 'Kafka' else 'tables'} of its own"
        )

    def _check_start(self, known: Progress, batch: MicroBatch) -> None:
        """A new checkpoint must begin where the application left off."""
        both = [where for where in batch.starts if where in known.offsets]
        wrong = [where for where in both if batch.starts[where] != known.offsets[where]]
        if both and not wrong:
            return
        what = (
            f"partition {wrong[0][1]} of {wrong[0][0]!r} starts at {batch.starts[wrong[0]]}, and the app has written "
            f"everything below {known.offsets[wrong[0]]}"
            if wrong
            else "it reads from somewhere else, so nobody can tell what would be lost or doubled"
        )
        raise CheckpointMismatch(
            f"the app {known.app_id!r} is known to {self.keeper} (batch {known.batch_id} of another checkpoint), and "
            f"this query has a new checkpoint: {what}. Nothing was written. {self._advice(known)}, take another "
            f"app_id, or, if it is meant, {self.sink}(new_checkpoint='accept')"
        )

    def _advice(self, known: Progress) -> str:
        if self.keeper == "Kafka":
            return "Start with startingOffsets=committed (and kafka.group.id set to the app id)"
        if not known.offsets:
            return "Bring the old one back"
        return f"Start with startingOffsets={json.dumps(to_json(known.offsets))}"


def _is_part_of(known: Progress, batch: MicroBatch) -> bool:
    """Whether this batch can be one of those that were committed, by where it ends."""
    if batch.batch_id == known.batch_id:
        return dict(batch.ends) == _only(known.offsets, batch.ends)
    return all(at <= known.offsets.get(where, at) for where, at in batch.ends.items())


def _only(offsets: Mapping[TopicPartition, int], wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {where: at for where, at in offsets.items() if where in wanted}
