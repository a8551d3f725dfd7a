"""Answers that come later: who waits is told once, and nothing keeps them afterwards."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from onceflow.broker.deferred import Answer, Deferred


class Large:
    """Stands for an answer of megabytes."""


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("is_done_before", [True, False])
def test_an_answer_is_gone_with_who_waited_for_it(no_garbage_collector: None, is_done_before: bool) -> None:
    """Though who waits knows the promise, and the promise who waits."""
    told: list[bool] = []
    deferred = Deferred()
    answer: Any = Large()

    def tell(waited_for: Deferred) -> None:
        told.append(waited_for.is_done)

    kept = weakref.ref(answer)
    if is_done_before:
        deferred.resolve(Answer(answer))
    deferred.on_cancel = deferred.on_hurry = deferred.on_release = partial(tell, deferred)
    deferred.when_done(partial(tell, deferred))
    deferred.resolve(Answer(answer))
    assert told == [True]
    del answer
    assert kept() is not None
    if is_done_before:
        deferred.on_cancel = deferred.on_hurry = deferred.on_release = None  # set after the end: not ours to drop
    del deferred
    assert kept() is None


def test_what_is_made_for_its_turn_is_made_when_it_is_asked_for() -> None:
    deferred = Deferred()
    deferred.make = lambda: Answer(b"made")
    deferred.resolve(None)
    assert deferred.is_done
    assert deferred.answer() == Answer(b"made")
