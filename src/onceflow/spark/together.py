"""One micro-batch into several places: to Kafka and to a database, for example, exactly once in each.

    both = onceflow.spark.sinks(KafkaSink(...), SqlSink(...))
    df.writeStream.foreachBatch(both).option("checkpointLocation", "...").start()

Each sink is a transaction of its own, one after the other, in the order in which they were given; there is no
transaction over both. So for a moment, and if the job dies in between until it runs again, the first has a micro-batch
that the second does not have yet. It never stays so: Spark runs the micro-batch again, a sink that has it skips it, and
the others write it. A micro-batch that runs again must give the same rows for that (which state, sources and functions
that know no clock and no chance do), otherwise the places would hold different ones.

What can be refused is refused before the first sink writes. A sink may have two methods beside the call:

    check(frame)              raises unless such rows can be written: columns, topics, tables, rights
    prepare(frame, batch_id)  takes the app id and reads its progress: raises if another run has it, or the
                              checkpoint does not belong to the progress

All are asked to check before any of them prepares, and all have prepared before any of them writes. What fails then
says in which sinks the micro-batch is committed.

Where a sink says that nothing was written, it knows of itself only, and others may have the micro-batch, from an
earlier run for example. So what it says is limited to itself or to this run, also in the cause: Spark shows both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from onceflow.errors import ConfigError, OnceflowError
from onceflow.spark.problems import CommitUnknown, NotInAllSinks
from onceflow.spark.stopping import stop_is_recognised

__all__ = ["sinks"]

Sink = Callable[[Any, int], None]

_NOTHING: Final = re.compile(
    r"nothing (?:of \S+(?: batch| \d+)? )?(?:is|was) (?:visible|written)(?! there)", re.IGNORECASE
)
"""What a sink says of itself, and is not true of all."""


def sinks(*several: Sink, persist: bool = True) -> Sink:
    """A function for `foreachBatch`. `persist`: compute the rows once and keep them, in memory or on disk, until all
    have written; without it they are computed once for each."""
    if not several:
        raise ConfigError("sinks() needs at least one sink")
    for each in several:
        if not callable(each):
            raise ConfigError(f"{each!r} is no sink: give KafkaSink(...), SqlSink(...), or a function of yours")
    return _Together(several, persist)


class _Together:
    def __init__(self, several: tuple[Sink, ...], persist: bool) -> None:
        self._sinks = several
        self._persist = persist and len(several) > 1

    def __call__(self, frame: Any, batch_id: int) -> None:
        with stop_is_recognised(frame, batch_id):
            self._take(frame, batch_id)

    def _take(self, frame: Any, batch_id: int) -> None:
        with self._limited(_in_this_run):
            for check in self._methods("check"):
                check(frame)
            for prepare in self._methods("prepare"):
                prepare(frame, batch_id)
        if not self._persist or frame.is_cached:
            self._write(frame, batch_id)
            return
        frame.persist()
        try:
            self._write(frame, batch_id)
        finally:
            frame.unpersist()

    def _methods(self, name: str) -> list[Callable[..., None]]:
        """Of those that have it."""
        return [method for each in self._sinks if (method := getattr(each, name, None)) is not None]

    def _write(self, frame: Any, batch_id: int) -> None:
        for number, each in enumerate(self._sinks):
            try:
                with self._limited(_there if number else _in(each)):
                    each(frame, batch_id)
            except Exception as problem:
                if number == 0:
                    raise
                raise NotInAllSinks(self._told(batch_id, number, problem)) from problem

    @contextmanager
    def _limited(self, limited: Callable[[re.Match[str]], str]) -> Iterator[None]:
        """What a sink raises says of itself only what is true beside others."""
        try:
            yield
        except OnceflowError as problem:
            if len(self._sinks) > 1:
                problem.args = (_NOTHING.sub(limited, str(problem)),)
            raise

    def _told(self, batch_id: int, number: int, problem: Exception) -> str:
        failed, *waiting = (_name(each) for each in self._sinks[number:])
        # An error that is not ours is of a function of the user's, or of a sink without transactions.
        is_known = isinstance(problem, OnceflowError) and not isinstance(problem, CommitUnknown)
        there = "it is not in" if is_known else "it is not known whether it is in"
        missing = f"{there} {failed}" + (f", and not in {_listed(waiting)}, which comes after it" if waiting else "")
        said = (str(problem) or type(problem).__name__).rstrip(".")
        return (
            f"micro-batch {batch_id} is committed in {_listed([_name(each) for each in self._sinks[:number]])}; "
            f"{missing}. {failed} says: {said}. When the query is started again with the same checkpoint, the "
            "micro-batch is skipped where it is committed, and written where it is missing"
        )

    def close(self) -> None:
        """Close those that can be closed."""
        for each in self._sinks:
            close = getattr(each, "close", None)
            if close is not None:
                close()


def _in_this_run(nothing: re.Match[str]) -> str:
    begins_a_sentence = nothing[0][0].isupper()
    return f"{nothing[0]} in this run" if begins_a_sentence else f"in this run {nothing[0]}"


def _there(nothing: re.Match[str]) -> str:
    return f"{nothing[0]} there"


def _in(sink: Sink) -> Callable[[re.Match[str]], str]:
    return lambda nothing: f"{nothing[0]} in {_name(sink)}"


def _name(sink: Sink) -> str:
    return getattr(sink, "__name__", None) or repr(sink)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names)
