"""Whether a micro-batch was committed, and what is refused because nobody could tell."""

from __future__ import annotations

import pytest

from onceflow.errors import ConfigError
from onceflow.spark.problems import CheckpointMismatch
from onceflow.spark.progress import Progress
from onceflow.spark.query import MicroBatch
from onceflow.spark.resuming import Resuming

ORDERS = ("orders", 0)


def resuming(new_checkpoint: str = "refuse", keeper: str = "the database") -> Resuming:
    return Resuming(app_id="app", sink="SqlSink", keeper=keeper, new_checkpoint=new_checkpoint)


def known(batch_id: int, end: int, query_id: str = "query") -> Progress:
    return Progress(app_id="app", query_id=query_id, batch_id=batch_id, offsets={ORDERS: end})


def batch(batch_id: int, start: int, end: int, query_id: str = "query") -> MicroBatch:
    starts, ends = {ORDERS: start}, {ORDERS: end}
    return MicroBatch(query_id=query_id, run_id="run", batch_id=batch_id, starts=starts, ends=ends)


def test_the_first_batch_of_an_app_was_not_committed() -> None:
    assert not resuming().was_committed(None, batch(0, 0, 10))


def test_the_batch_after_the_last_one_was_not_committed() -> None:
    assert not resuming().was_committed(known(4, 50), batch(5, 50, 60))


def test_the_last_batch_was_committed_and_so_was_one_before() -> None:
    assert resuming().was_committed(known(4, 50), batch(4, 40, 50))
    assert resuming().was_committed(known(4, 50), batch(3, 30, 40))


def test_the_last_batch_with_another_end_is_refused() -> None:
    with pytest.raises(CheckpointMismatch, match="offset log was changed"):
        resuming().was_committed(known(4, 50), batch(4, 40, 51))


def test_a_gap_is_told_and_no_more_since_the_sink_may_not_have_been_called(caplog: pytest.LogCaptureFixture) -> None:
    resuming().look_for_gap(known(4, 50), batch(6, 60, 70))
    assert "batch 6 of 'app' is next, and the database knows of none after batch 4" in caplog.text


def test_no_gap_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    resuming().look_for_gap(known(4, 50), batch(5, 50, 60))
    resuming().look_for_gap(known(4, 50), batch(4, 40, 50))
    resuming().look_for_gap(known(4, 50), batch(9, 50, 60, "another"))
    resuming().look_for_gap(None, batch(9, 90, 95))
    assert caplog.text == ""


def test_a_gap_in_a_query_with_state_is_refused() -> None:
    with pytest.raises(CheckpointMismatch, match=r"batch 6 .* none after batch 4: it has lost .* begin anew"):
        resuming("never").look_for_gap(known(4, 50), batch(6, 60, 70))


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
