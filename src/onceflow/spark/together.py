"""One micro-batch into several places: to Kafka and to a database, for example, exactly once in each.

    both = onceflow.spark.sinks(KafkaSink(...), SqlSink(...))
    df.writeStream.foreachBatch(both).option("checkpointLocation", "...").start()

Each sink is a transaction of its own, one after the other, in the order in which they were given; there is no
transaction over both. So for a moment, and if the job dies in between until it runs again, the first has a micro-batch
that the second does not have yet. It never stays so: Spark runs the micro-batch again, a sink that has it skips it, and
the others write it. A micro-batch that runs again must give the same rows for that (which state, sources and functions
that know no clock and no chance do), otherwise the places would hold different ones.

What can be refused is refused before the first sink writes: each is asked whether it can take the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onceflow.errors import ConfigError
from onceflow.spark.stopping import stop_is_recognised

__all__ = ["sinks"]

Sink = Callable[[Any, int], None]


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
        for each in self._sinks:
            check = getattr(each, "check", None)
            if check is not None:
                check(frame)
        if not self._persist or frame.is_cached:
            self._write(frame, batch_id)
            return
        frame.persist()
        try:
            self._write(frame, batch_id)
        finally:
            frame.unpersist()

    def _write(self, frame: Any, batch_id: int) -> None:
        for each in self._sinks:
            each(frame, batch_id)

    def close(self) -> None:
        """Close those that can be closed."""
        for each in self._sinks:
            close = getattr(each, "close", None)
            if close is not None:
                close()
