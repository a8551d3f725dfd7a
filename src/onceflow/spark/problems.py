"""What can go wrong in a sink, for the person who reads the log of a query that has stopped.

    SinkError                  something of the sink; the message says what was written and what was not
    |-- TakenOver              another run with the same app id has taken over: this one must stop
    |-- TransactionTimedOut    the batch took longer than transaction_timeout_ms: nothing of it is visible
    |-- BatchFailed            the tasks failed, after all retries: nothing of the batch is visible
    |-- NotInAllSinks          of several sinks the first ones have committed the batch, and the next one failed
    |-- CheckpointMismatch     the checkpoint and the progress in Kafka contradict each other: nothing was written
    |-- CommitUnknown          the commit was not answered: visible as a whole or not at all; a restart finds out
    `-- QueryStopped           the query was stopped while the sink worked: no failure, and Spark shows it to nobody

Wrong settings are `onceflow.errors.ConfigError`, as everywhere.
"""

from __future__ import annotations

from onceflow.errors import OnceflowError

__all__ = [
    "BatchFailed",
    "CheckpointMismatch",
    "CommitUnknown",
    "NotInAllSinks",
    "QueryStopped",
    "SinkError",
    "TakenOver",
    "TransactionTimedOut",
]


class SinkError(OnceflowError):
    """The base of what sinks raise."""


class TakenOver(SinkError):
    """Another run with the same app id has taken over."""


class TransactionTimedOut(SinkError):
    """The broker aborted the transaction because it was open for too long."""


class BatchFailed(SinkError):
    """The batch could not be written; nothing of it is visible."""


class NotInAllSinks(SinkError):
    """The batch is committed in some of the sinks of `sinks(...)`, and not in all; its cause is what failed."""


class CheckpointMismatch(SinkError):
    """Writing would lose or double records: the checkpoint is not the one that the progress belongs to."""


class CommitUnknown(SinkError):
    """The outcome of the commit is not known yet."""


class QueryStopped(SinkError):
    """The query was stopped in the middle of a micro-batch. Listeners are told; the query ends without an exception."""
