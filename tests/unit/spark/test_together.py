"""One micro-batch into several sinks: what is asked before the first one writes, and what is said when one fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onceflow.errors import ConfigError
from onceflow.spark import sinks
from onceflow.spark.problems import BatchFailed, CommitUnknown, NotInAllSinks, SinkError

FRAME = SimpleNamespace(is_cached=True)


class Fake:
    """A sink that fails where it is told to."""

    def __init__(self, name: str, calls: list[str], **problems: Exception) -> None:
        self._name = name
        self._calls = calls
        self._problems = problems

    def __repr__(self) -> str:
        return f"Fake({self._name!r})"

    def check(self, frame: Any) -> None:
        self._call("check")

    def prepare(self, frame: Any, batch_id: int) -> None:
        self._call("prepare")

    def __call__(self, frame: Any, batch_id: int) -> None:
        self._call("write")

    def _call(self, what: str) -> None:
        if what in self._problems:
            raise self._problems[what]
        self._calls.append(f"{what} {self._name}")


def test_all_are_checked_then_prepared_then_written() -> None:
    calls: list[str] = []
    sinks(Fake("a", calls), Fake("b", calls))(FRAME, 0)
    assert calls == ["check a", "check b", "prepare a", "prepare b", "write a", "write b"]


@pytest.mark.parametrize("where", ["check", "prepare"])
def test_nobody_writes_if_one_cannot(where: str) -> None:
    calls: list[str] = []
    missing = ConfigError("there is no topic 'out'. Create it first: nothing was written")
    with pytest.raises(ConfigError, match=r"nothing was written$"):
        sinks(Fake("a", calls), Fake("b", calls, **{where: missing}))(FRAME, 0)
    assert not any(each.startswith("write") for each in calls)
    assert not any(each.startswith("prepare") for each in calls) or where == "prepare"


def test_a_function_is_a_sink_without_checks() -> None:
    calls: list[str] = []
    sinks(lambda frame, batch_id: calls.append(f"function {batch_id}"), Fake("b", calls))(FRAME, 7)
    assert calls == ["check b", "prepare b", "function 7", "write b"]


def test_what_the_first_one_raises_is_what_it_raises() -> None:
    problem = BatchFailed("batch 0 of 'a' failed once; nothing of it is visible. Last reason: x")
    with pytest.raises(BatchFailed) as raised:
        sinks(Fake("a", [], write=problem), Fake("b", []))(FRAME, 0)
    assert raised.value is problem


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        (
            "batch 3 of 'b' failed once; nothing of it is visible. Last reason: no leader",
            "batch 3 of 'b' failed once; nothing of it is visible there. Last reason: no leader",
        ),
        (
            "batch 3 cannot be written: too large. Nothing of it is visible",
            "batch 3 cannot be written: too large. Nothing of it is visible there",
        ),
        ("Nothing of the batch is visible and nothing is lost", "Nothing of the batch is visible there and nothing is"),
        ("b: CHECK failed. Nothing of batch 3 was written", "b: CHECK failed. Nothing of batch 3 was written there"),
        ("no topic. Create it first: nothing was written", "no topic. Create it first: nothing was written there"),
    ],
)
def test_an_error_of_a_later_one_says_who_has_the_batch_and_never_that_nobody_has(sentence: str, told: str) -> None:
    problem = SinkError(sentence)
    with pytest.raises(NotInAllSinks) as raised:
        sinks(Fake("a", []), Fake("b", [], write=problem), Fake("c", []))(FRAME, 3)
    said = str(raised.value)
    assert said.startswith(
        "micro-batch 3 is committed in Fake('a'); it is not in Fake('b'), and not in Fake('c'), which comes after it. "
        f"Fake('b') says: {told}"
    )
    assert said.endswith("the micro-batch is skipped where it is committed, and written where it is missing")
    assert raised.value.__cause__ is problem


def test_cause_says_no_more_than_the_error_since_spark_shows_both() -> None:
    problem = BatchFailed("batch 3 of 'b' failed once; nothing of it is visible. Last reason: no leader")
    with pytest.raises(NotInAllSinks) as raised:
        sinks(Fake("a", []), Fake("b", [], write=problem))(FRAME, 3)
    assert str(raised.value.__cause__) == (
        "batch 3 of 'b' failed once; nothing of it is visible there. Last reason: no leader"
    )


def test_the_first_one_speaks_for_itself_since_another_may_have_the_batch_from_an_earlier_run() -> None:
    problem = BatchFailed("batch 3 of 'a' failed once; nothing of it is visible. Last reason: no leader")
    with pytest.raises(BatchFailed, match=r"nothing of it is visible in Fake\('a'\)\. Last reason: no leader$"):
        sinks(Fake("a", [], write=problem), Fake("b", []))(FRAME, 3)


@pytest.mark.parametrize("where", ["check", "prepare"])
@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        ("Create it first: nothing was written", "Create it first: in this run nothing was written"),
        ("no right. Nothing was written", "no right. Nothing was written in this run"),
        ("the sink was called twice", "the sink was called twice"),
    ],
)
def test_what_is_refused_before_is_said_of_this_run_since_an_earlier_one_may_have_written(
    where: str, sentence: str, told: str
) -> None:
    with pytest.raises(SinkError) as raised:
        sinks(Fake("a", []), Fake("b", [], **{where: SinkError(sentence)}))(FRAME, 0)
    assert str(raised.value) == told


def test_one_sink_alone_says_what_it_says() -> None:
    problem = SinkError("no right. Nothing was written")
    with pytest.raises(SinkError, match=r"^no right\. Nothing was written$"):
        sinks(Fake("a", [], check=problem))(FRAME, 0)


@pytest.mark.parametrize("problem", [ZeroDivisionError("division by zero"), RuntimeError("Job aborted")])
def test_sink_that_does_not_promise_all_or_nothing_may_have_a_part(problem: Exception) -> None:
    """A function of the user's, or a sink without transactions."""
    with pytest.raises(NotInAllSinks, match=r"it is not known whether it is in Fake\('b'\)\. Fake"):
        sinks(Fake("a", []), Fake("b", [], write=problem))(FRAME, 3)


def test_a_commit_that_was_not_answered_is_not_called_missing() -> None:
    problem = CommitUnknown("the commit of batch 3 was not answered: visible as a whole or not at all.")
    with pytest.raises(NotInAllSinks, match=r"in Fake\('a'\); it is not known whether it is in Fake\('b'\)\. Fake"):
        sinks(Fake("a", []), Fake("b", [], write=problem))(FRAME, 3)


def test_an_interruption_is_one() -> None:
    def interrupted(frame: Any, batch_id: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sinks(Fake("a", []), interrupted)(FRAME, 3)
