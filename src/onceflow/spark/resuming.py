"""Whether a micro-batch was committed, by the progress that is kept where its rows are. Spark's own commit log is
written after the sink has returned, so a driver that dies in between runs a batch again.

**A micro-batch is skipped only if it is the one that was committed last**: the same query, the same number, and the
same entry in Spark's offset log (`MicroBatch.entry`). The number alone proves nothing. A checkpoint that was restored
from a backup counts on from an older number, and plans other records under numbers that were used before; with a file
source even the offsets are numbers of the checkpoint's own.

Everything else is written, or refused with a sentence where progress and checkpoint contradict each other: skipping
would lose records then, and writing would double them.

    the progress says        the checkpoint says            what happens
    nothing                  the first batch                written, unless the consumer group of the app is further, or
                                                            has no offsets and the last transaction was committed
    nothing                  a later batch                  refused: the progress is lost, or the sink is new; written
                                                            if the consumer group stands just where the batch starts
    batch N                  batch N, the same entry        skipped
    batch N                  batch N, another entry         refused: restored from a backup, or changed
    batch N                  a batch before N               refused: restored from a backup
    batch N                  batch N + 1                    written, if the checkpoint's batch N is the same, and it
                                                            starts where N ended
    batch N                  a batch after N + 1            refused: commits are lost, or the sink was not called
    batch N of another       any batch                      refused unless it starts where N ended, or `new_checkpoint`
    checkpoint                                              says otherwise

The consumer group of an app (`KafkaSink` only) is moved in the same transactions as its progress. So a group that is
further than the progress is evidence that progress was lost: the topic was deleted, or went back to an older state.
That includes a group with an offset where the progress, or the start of the first batch, has none: such a partition is
read from its beginning. A group that is behind, or has no offsets, is not evidence: offsets expire, and tools reset
them.

A query that reads no Kafka has no such offsets, and its first batch follows nothing. There the coordinator is evidence:
it remembers, for as long as nobody takes the app id again, that the last transaction was committed, and each
transaction of a sink has progress in it. So it is asked before the fence, and a refusal leaves it as it is.
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
MISSING_BATCHES: Final = ("refuse", "accept")

BEGINNING: Final = 0
"""The lowest offset there can be. A partition may begin higher, where retention has deleted records."""

Offsets = Mapping[TopicPartition, int]


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
    missing_batches: str = "refuse"
    """What to do if the checkpoint is further than the progress: see `KafkaSink`."""

    def __post_init__(self) -> None:
        _check_choice("new_checkpoint", self.new_checkpoint, NEW_CHECKPOINT)
        _check_choice("missing_batches", self.missing_batches, MISSING_BATCHES)

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
        if batch.batch_id < known.batch_id or known.entry != batch.entry:
            raise self._another_batch(known, batch)
        if known.run_id == batch.run_id:
            raise ConfigError(
                f"micro-batch {batch.batch_id} was committed under the app id {self.app_id!r} a moment ago, by "
                "another sink of this query: each sink needs an app_id of its own. This one wrote nothing"
            )
        return True

    def check_run(
        self, known: Progress | None, batch: MicroBatch, group: Offsets | None = None, starts: Offsets | None = None
    ) -> None:
        """At the start of a run, after the fence. `group`: what the consumer group of the app has committed in the
        partitions that the batch reads, `starts`: where the batch starts in these.

        Raises `CheckpointMismatch` if the keeper has lost progress, or may have.
        """
        if known is None:
            self._check_unknown(batch, group or {}, starts or {})
            return
        self._check_group(known.offsets, group or {}, known.ambiguous)
        if known.query_id != batch.query_id:
            return
        if batch.batch_id > known.batch_id and batch.entry_of(known.batch_id) not in (None, known.entry):
            raise self._another_batch(known, batch)
        if batch.batch_id == known.batch_id + 1:
            self._check_continuation(known, batch)
        elif batch.batch_id > known.batch_id:
            self._check_gap(
                f"by the checkpoint batch {batch.batch_id} of {self.app_id!r} is next, and {self.keeper} knows of none "
                f"after batch {known.batch_id}"
            )

    def check_lost(self) -> None:
        """Before the fence: the last transaction of the app was committed, and there is no progress of it."""
        if self.missing_batches == "accept":
            return
        raise CheckpointMismatch(
            f"the last transaction of the transactional id {self.app_id!r} was committed, and {self.keeper} has no "
            "progress of this app. A sink writes both in one transaction, so progress was lost (its topic was deleted, "
            "or restored from a backup), or something else writes under this id: a producer, or write() without once=. "
            "The first batch of this checkpoint may be there already, and would be written twice. Nothing was written. "
            "Bring back what was lost, or begin anew: with another app_id. To go on in spite of it: "
            f"{self.sink}(missing_batches='accept')"
        )

    def _check_unknown(self, batch: MicroBatch, group: Offsets, starts: Offsets) -> None:
        """Nothing is known of the app: it is new, or its progress was lost."""
        self._check_group(starts, group)
        if batch.batch_id == 0 or _is_in_step(batch, group):
            return
        self._check_gap(
            f"by the checkpoint batch {batch.batch_id} is next, and {self.keeper} knows nothing of an app "
            f"{self.app_id!r}"
        )

    def _check_group(self, known: Offsets, group: Offsets, ambiguous: frozenset[str] = frozenset()) -> None:
        """`known`: how far the app has come; a partition that is not in it is read from its beginning."""
        ahead = {
            where: at for where, at in group.items() if at > known.get(where, BEGINNING) and where[0] not in ambiguous
        }
        if not ahead or self.missing_batches == "accept":
            return
        topic, partition = where = min(ahead)
        progress = f"ends at {known[where]}" if where in known else "has nothing of it"
        raise CheckpointMismatch(
            f"the consumer group {self.app_id!r} has committed offset {ahead[where]} of partition {partition} of "
            f"{topic!r}, and the progress of the app {progress}. Both are written in one transaction, so progress was "
            "lost (its topic was deleted, or restored from a backup), or the app has read this topic before and left "
            "it, or somebody else has moved the group. Records would be written twice. Nothing was written. Start with "
            "a new checkpoint and startingOffsets of the group, or reset the group's offsets if they are wrong. To go "
            f"on in spite of it: {self.sink}(missing_batches='accept')"
        )

    def _check_gap(self, gap: str) -> None:
        """Spark has gone on from batches that are not known here: the keeper has lost commits, or nobody has called
        the sink for them, `if not df.isEmpty()` for example."""
        gap = (
            f"{gap}: it has lost what was committed since (deleted, an older backup, a replica that was behind), or "
            "the sink was not called for these batches"
        )
        if self.missing_batches == "accept":
            log.warning("%s; it goes on, since missing_batches is 'accept'", gap)
            return
        raise CheckpointMismatch(
            f"{gap}. Nothing was written. Bring back what was lost, or begin anew: with another app_id. If the sink is "
            f"new in this query, or not called for every batch: {self.sink}(missing_batches='accept')"
        )

    def _check_continuation(self, known: Progress, batch: MicroBatch) -> None:
        """In one checkpoint each batch starts where the one before has ended."""
        ambiguous = known.ambiguous | batch.ambiguous_starts
        wrong = _differing(known.offsets, batch.starts, ambiguous)
        if wrong is not None:
            raise self._another_batch(known, batch)

    def _another_batch(self, known: Progress, batch: MicroBatch) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"batch {known.batch_id} of {self.app_id!r} was committed last, up to {to_json(known.offsets)}, and the "
            f"checkpoint has another batch {batch.batch_id}, from {to_json(batch.starts)} to {to_json(batch.ends)}: it "
            "is an older checkpoint that goes another way now, or its offset log was changed. Skipping the batch would "
            "lose records, writing it would double some. Nothing was written. Bring the newest checkpoint back, or "
            f"{self._start_anew(known)}"
        )

    def _start_anew(self, known: Progress) -> str:
        if known.everything:
            return f"start with a new checkpoint: {self._advice(known)}"
        return "begin anew: with another app_id"

    def _no_state(self, known: Progress) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"the app {known.app_id!r} is known to {self.keeper} (batch {known.batch_id} of another checkpoint), and "
            "this query has a new checkpoint, without the state that it had collected. Nothing was written. Bring the "
            "old checkpoint back, or begin anew: with another app_id and "
            f"{'topics' if self.keeper == 'Kafka' else 'tables'} of its own"
        )

    def _check_start(self, known: Progress, batch: MicroBatch) -> None:
        """A new checkpoint must begin where the application left off."""
        what = self._wrong_start(known, batch)
        if what is None:
            return
        raise CheckpointMismatch(
            f"the app {known.app_id!r} is known to {self.keeper} (batch {known.batch_id} of another checkpoint), and "
            f"this query has a new checkpoint: {what}. Nothing was written. {self._advice(known)}, take another "
            f"app_id, or, if it is meant, {self.sink}(new_checkpoint='accept')"
        )

    def _wrong_start(self, known: Progress, batch: MicroBatch) -> str | None:
        topics = {topic for topic, _ in batch.starts}
        if twice := (known.ambiguous | batch.ambiguous_starts) & topics:
            return (
                f"topic {min(twice)!r} is read by several sources, from different offsets or clusters, so one offset "
                "for each partition does not tell what would be lost or doubled"
            )
        for topic in sorted(topics & known.topic_ids.keys() & batch.topic_ids.keys()):
            if known.topic_ids[topic] != batch.topic_ids[topic]:
                return (
                    f"topic {topic!r} is another one than the app has read under this name (id "
                    f"{batch.topic_ids[topic]}, before {known.topic_ids[topic]}): it was created anew, or is on "
                    "another cluster"
                )
        wrong = _differing(known.everything, batch.starts)
        if wrong is not None:
            return (
                f"partition {wrong[1]} of {wrong[0]!r} starts at {batch.starts[wrong]}, and the app has written "
                f"everything below {known.everything[wrong]}"
            )
        if not batch.starts.keys() & known.everything.keys():
            return "it reads from somewhere else, so nobody can tell what would be lost or doubled"
        read = {topic for topic, _ in known.everything}
        for where in sorted(batch.starts.keys() - known.everything.keys()):
            if where[0] in read and batch.starts[where] > BEGINNING:
                return (
                    f"partition {where[1]} of {where[0]!r} starts at {batch.starts[where]}, and the app has read other "
                    "partitions of this topic, and nothing of this one"
                )
        return None

    def _advice(self, known: Progress) -> str:
        if self.keeper == "Kafka":
            return "Start with startingOffsets=committed (and kafka.group.id set to the app id)"
        if not known.everything:
            return "Bring the old one back"
        return f"Start with startingOffsets={json.dumps(to_json(known.everything))}"


def _check_choice(name: str, value: str, there_is: tuple[str, ...]) -> None:
    if value not in there_is:
        raise ConfigError(f"{name}={value!r} does not exist; there is {', '.join(map(repr, there_is))}")


def _differing(known: Offsets, starts: Offsets, ambiguous: frozenset[str] = frozenset()) -> TopicPartition | None:
    """The first partition that does not start where it should."""
    both = (where for where in sorted(starts) if where in known and where[0] not in ambiguous)
    return next((where for where in both if starts[where] != known[where]), None)


def _is_in_step(batch: MicroBatch, group: Offsets) -> bool:
    """Whether the consumer group proves that everything before this batch was committed, and this batch was not."""
    return (
        bool(batch.starts)
        and not batch.has_other_sources
        and not batch.ambiguous_starts
        and batch.starts != batch.ends
        and all(group.get(where) == at for where, at in batch.starts.items())
    )
