"""Whether a micro-batch was committed, and what is refused because nobody could tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from onceflow.client.cluster import TopicPartition
from onceflow.errors import ConfigError
from onceflow.spark.problems import CheckpointMismatch
from onceflow.spark.progress import Progress
from onceflow.spark.query import MicroBatch, SourceOffsets
from onceflow.spark.resuming import Resuming

ORDERS = ("orders", 0)


def resuming(new_checkpoint: str = "refuse", keeper: str = "the database", missing: str = "refuse") -> Resuming:
    return Resuming(app_id="app", sink="SqlSink", keeper=keeper, new_checkpoint=new_checkpoint, missing_batches=missing)


def known(batch_id: int, end: int, query_id: str = "query", **more: Any) -> Progress:
    entry = f"entry {batch_id}"
    return Progress(
        app_id="app", query_id=query_id, batch_id=batch_id, **{"entry": entry, "offsets": {ORDERS: end}, **more}
    )


def read(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], **more: Any) -> SourceOffsets:
    return SourceOffsets(start=start, end=end, **more)


def batch(batch_id: int, start: int, end: int, query_id: str = "query", **more: Any) -> MicroBatch:
    sources = (read({ORDERS: start}, {ORDERS: end}),)
    settings = {"run_id": "run", "entry": f"entry {batch_id}", "sources": sources, **more}
    return MicroBatch(query_id=query_id, batch_id=batch_id, **settings)


def test_the_first_batch_of_an_app_was_not_committed() -> None:
    assert not resuming().was_committed(None, batch(0, 0, 10))


def test_the_batch_after_the_last_one_was_not_committed() -> None:
    assert not resuming().was_committed(known(4, 50), batch(5, 50, 60))


def test_the_batch_that_was_committed_last_is_skipped_if_it_is_the_same_in_the_offset_log() -> None:
    assert resuming().was_committed(known(4, 50), batch(4, 40, 50))


@pytest.mark.parametrize(
    "another",
    [
        batch(4, 40, 51, entry="of another end"),
        batch(4, 40, 50, entry="of another file, with the same offset"),
        batch(4, 40, 50, sources=(read({("new", 0): 0}, {("new", 0): 9}),), entry="of a topic that is new"),
        batch(4, 40, 50, sources=(), entry="of a source that is not Kafka"),
    ],
)
def test_another_batch_under_the_number_of_the_last_one_is_refused(another: MicroBatch) -> None:
    with pytest.raises(CheckpointMismatch, match="offset log was changed"):
        resuming().was_committed(known(4, 50), another)


def test_a_batch_before_the_last_one_is_refused_whatever_it_reads() -> None:
    with pytest.raises(CheckpointMismatch, match=r"older checkpoint.*Nothing was written"):
        resuming().was_committed(known(4, 50), batch(3, 30, 40))


def test_progress_without_what_identifies_the_batch_proves_nothing() -> None:
    with pytest.raises(CheckpointMismatch):
        resuming().was_committed(known(4, 50, entry=None), batch(4, 40, 50))


def test_a_batch_that_was_committed_in_this_very_run_is_another_sinks() -> None:
    with pytest.raises(ConfigError, match="another sink of this query: each sink needs an app_id of its own"):
        resuming().was_committed(known(4, 50, run_id="run"), batch(4, 40, 50))
    assert resuming().was_committed(known(4, 50, run_id="the run before"), batch(4, 40, 50))


# --- at the start of a run


def test_a_gap_is_refused_unless_told(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CheckpointMismatch, match=r"batch 6 .* none after batch 4: .*missing_batches='accept'"):
        resuming().check_run(known(4, 50), batch(6, 60, 70))
    resuming(missing="accept").check_run(known(4, 50), batch(6, 60, 70))
    assert "batch 6 of 'app' is next, and the database knows of none after batch 4" in caplog.text


def test_no_gap_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    resuming().check_run(known(4, 50), batch(5, 50, 60))
    resuming().check_run(known(4, 50), batch(4, 40, 50))
    resuming().check_run(known(4, 50), batch(9, 50, 60, "another"))
    resuming().check_run(None, batch(0, 90, 95))
    assert caplog.text == ""


def test_the_next_batch_of_a_checkpoint_must_start_where_the_last_one_ended() -> None:
    with pytest.raises(CheckpointMismatch, match="another batch 5"):
        resuming().check_run(known(4, 50), batch(5, 51, 60))


def test_partitions_and_topics_that_come_and_go_are_no_contradiction() -> None:
    come = batch(5, 50, 60, sources=(read({ORDERS: 50, ("new", 0): 0}, {ORDERS: 60, ("new", 0): 7}),))
    resuming().check_run(known(4, 50, offsets={ORDERS: 50, ("gone", 0): 3}), come)


def test_an_app_that_is_not_known_and_does_not_begin_with_the_first_batch_is_refused_unless_told() -> None:
    with pytest.raises(CheckpointMismatch, match=r"batch 9 is next, and Kafka knows nothing of an app 'app'"):
        resuming(keeper="Kafka").check_run(None, batch(9, 90, 95))
    resuming(keeper="Kafka", missing="accept").check_run(None, batch(9, 90, 95))


@pytest.mark.parametrize("number", [0, 9])
def test_a_replay_after_the_progress_was_lost_is_refused_since_the_group_knows_better(number: int) -> None:
    with pytest.raises(CheckpointMismatch, match=r"group 'app' has committed offset 95 .* progress was lost"):
        resuming(keeper="Kafka").check_run(None, batch(number, 90, 95), {ORDERS: 95}, {ORDERS: 90})


def test_after_the_progress_was_lost_a_batch_that_the_group_does_not_know_is_written() -> None:
    resuming(keeper="Kafka").check_run(None, batch(9, 90, 95), {ORDERS: 90}, {ORDERS: 90})


@pytest.mark.parametrize(
    "unclear",
    [
        batch(9, 90, 90),
        batch(9, 90, 95, has_other_sources=True),
        batch(9, 90, 95, sources=(read({ORDERS: 90, ("more", 0): 1}, {ORDERS: 95, ("more", 0): 1}),)),
        batch(9, 90, 95, sources=()),
    ],
    ids=["nothing is read", "not only Kafka is read", "a partition without an offset", "no Kafka source"],
)
def test_after_the_progress_was_lost_what_the_group_cannot_prove_is_refused(unclear: MicroBatch) -> None:
    with pytest.raises(CheckpointMismatch, match="knows nothing"):
        resuming(keeper="Kafka").check_run(None, unclear, {ORDERS: 90}, unclear.starts or {ORDERS: 90})


def test_a_group_that_is_further_than_the_progress_is_refused() -> None:
    with pytest.raises(CheckpointMismatch, match=r"offset 60 of partition 0 of 'orders'.*ends at 50"):
        resuming(keeper="Kafka").check_run(known(4, 50), batch(5, 50, 60), {ORDERS: 60})


@pytest.mark.parametrize("before", [None, known(4, 50)], ids=["all of it was lost", "it is an older one"])
def test_a_group_with_an_offset_of_a_partition_that_the_progress_does_not_know_is_refused(
    before: Progress | None,
) -> None:
    """All that the lost progress had was of this partition, which has appeared with that batch."""
    appeared = ("orders", 1)
    replayed = batch(5, 50, 50, sources=(read({ORDERS: 50}, {ORDERS: 50, appeared: 7}),))
    with pytest.raises(CheckpointMismatch, match=r"offset 7 of partition 1 of 'orders'.*has nothing of it"):
        resuming(keeper="Kafka").check_run(before, replayed, {ORDERS: 50, appeared: 7}, {ORDERS: 50})
    resuming(keeper="Kafka").check_run(known(4, 50), replayed, {ORDERS: 50, appeared: 0}, {ORDERS: 50})


def test_a_topic_of_the_same_name_on_another_cluster_is_not_compared_with_the_group() -> None:
    """The progress has the lowest offset of both topics, the group that of one."""
    resuming(keeper="Kafka").check_run(known(4, 50, ambiguous=frozenset({"orders"})), batch(5, 50, 60), {ORDERS: 90})
    with pytest.raises(CheckpointMismatch, match="offset 91"):
        resuming(keeper="Kafka").check_run(None, batch(5, 50, 60), {ORDERS: 91}, {ORDERS: 90})


def test_a_checkpoint_in_which_the_batch_that_was_committed_last_is_another_one_is_refused() -> None:
    """A copy of the checkpoint has gone another way. Of sources that are not Kafka no offset would show that."""
    files = {"sources": (), "has_other_sources": True}
    with pytest.raises(CheckpointMismatch, match="goes another way"):
        resuming().check_run(known(4, 50), batch(5, 0, 0, entry_of={4: "entry of another file"}.get, **files))
    for told in ("refuse", "accept"):
        with pytest.raises(CheckpointMismatch, match="goes another way"):
            resuming(missing=told).check_run(known(4, 50), batch(7, 0, 0, entry_of={4: "another"}.get, **files))
    resuming().check_run(known(4, 50), batch(5, 0, 0, entry_of={4: "entry 4"}.get, **files))


def test_a_group_that_is_behind_proves_nothing() -> None:
    resuming(keeper="Kafka").check_run(known(4, 50), batch(5, 50, 60), {ORDERS: 20})


# --- a new checkpoint


def test_two_sources_of_one_topic_at_different_offsets_cannot_be_compared_with_one_offset() -> None:
    apart = (read({ORDERS: 50}, {ORDERS: 60}), read({ORDERS: 80}, {ORDERS: 90}))
    with pytest.raises(CheckpointMismatch, match="'orders' is read by several sources"):
        resuming().was_committed(known(4, 50), batch(0, 0, 0, "another", sources=apart))
    with pytest.raises(CheckpointMismatch, match="'orders' is read by several sources"):
        resuming().was_committed(known(4, 50, ambiguous=frozenset({"orders"})), batch(0, 50, 60, "another"))


def test_two_sources_of_one_topic_at_the_same_offsets_are_as_one() -> None:
    together = (read({ORDERS: 50}, {ORDERS: 60}), read({ORDERS: 50}, {ORDERS: 60}))
    assert not resuming().was_committed(known(4, 50), batch(0, 0, 0, "another", sources=together))


def test_topics_of_one_name_on_two_clusters_are_not_mixed_up() -> None:
    one = read({ORDERS: 50}, {ORDERS: 60}, topic_ids={"orders": "one"})
    other = read({ORDERS: 50}, {ORDERS: 60}, topic_ids={"orders": "other"})
    with pytest.raises(CheckpointMismatch, match="'orders' is read by several sources"):
        resuming().was_committed(known(4, 50), batch(0, 0, 0, "another", sources=(one, other)))


def test_another_topic_under_the_same_name_is_refused() -> None:
    anew = read({ORDERS: 50}, {ORDERS: 60}, topic_ids={"orders": "new"})
    with pytest.raises(CheckpointMismatch, match=r"'orders' is another one .* \(id new, before old\)"):
        resuming().was_committed(known(4, 50, topic_ids={"orders": "old"}), batch(0, 0, 0, "another", sources=(anew,)))


def test_an_idle_source_of_a_new_checkpoint_must_stand_where_the_app_left_off_as_well() -> None:
    other = ("other", 0)
    sources = (read({ORDERS: 50}, {ORDERS: 60}), read({other: 90}, {other: 90}))
    with pytest.raises(CheckpointMismatch, match="'other' starts at 90, and the app has written everything below 70"):
        resuming().was_committed(
            known(4, 50, offsets={ORDERS: 50, other: 70}), batch(0, 0, 0, "another", sources=sources)
        )


def test_a_topic_that_was_left_and_is_read_again_must_begin_where_it_was_left() -> None:
    before = known(4, 50, left={("left", 0): 7})
    sources = (read({ORDERS: 50, ("left", 0): 0}, {ORDERS: 60, ("left", 0): 9}),)
    with pytest.raises(CheckpointMismatch, match="'left' starts at 0, and the app has written everything below 7"):
        resuming().was_committed(before, batch(0, 0, 0, "another", sources=sources))


def test_a_partition_that_the_app_has_never_read_must_begin_at_its_beginning() -> None:
    """It has appeared since, and its first records are as new to the app as the next ones."""
    for start in (5, 0):
        sources = (read({ORDERS: 50, ("orders", 1): start}, {ORDERS: 60, ("orders", 1): 9}),)
        new = batch(0, 0, 0, "another", sources=sources)
        if start:
            with pytest.raises(CheckpointMismatch, match=r"partition 1 of 'orders' starts at 5.*nothing of this one"):
                resuming().was_committed(known(4, 50), new)
        else:
            assert not resuming().was_committed(known(4, 50), new)


@pytest.mark.parametrize(
    ("keeper", "advice"),
    [("Kafka", "startingOffsets=committed"), ("the database", 'startingOffsets={"orders": {"0": 50}}')],
)
def test_a_new_checkpoint_that_starts_elsewhere_is_refused_with_where_to_start(keeper: str, advice: str) -> None:
    with pytest.raises(CheckpointMismatch, match=f"known to {keeper}") as refused:
        resuming(keeper=keeper).was_committed(known(4, 50), batch(0, 0, 10, "another"))
    assert advice in str(refused.value)


def test_a_new_checkpoint_that_starts_where_the_app_left_off_goes_on() -> None:
    assert not resuming().was_committed(known(4, 50), batch(0, 50, 60, "another"))


def test_a_new_checkpoint_of_a_query_with_state_is_always_refused() -> None:
    with pytest.raises(CheckpointMismatch, match="without the state"):
        resuming("never").was_committed(known(4, 50), batch(0, 50, 60, "another"))


def test_an_unknown_way_to_deal_with_new_checkpoints_is_refused() -> None:
    with pytest.raises(ConfigError, match="new_checkpoint='maybe' does not exist"):
        resuming("maybe")
    with pytest.raises(ConfigError, match="missing_batches='maybe' does not exist"):
        resuming(missing="maybe")


def test_a_commit_without_progress_is_refused_unless_told() -> None:
    with pytest.raises(CheckpointMismatch, match=r"progress was lost.*Nothing was written.*missing_batches='accept'"):
        resuming(keeper="Kafka").check_lost()
    resuming(keeper="Kafka", missing="accept").check_lost()
