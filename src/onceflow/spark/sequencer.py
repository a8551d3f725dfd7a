"""Whose turn it is to write: many tasks, one producer id, and sequences without a gap.

All tasks of a micro-batch write with one producer id. Kafka numbers what a producer writes to a partition, and takes
the numbers in order only; so on each partition the tasks must write one after the other, each going on with the
number where the last one stopped. The driver hands out these turns. A task

1. *enters*, once: a second attempt at the same task (a retry, a speculative copy, a stage run again) waits while the
   first one lives, and is refused when the first one broke off, since what that one wrote is already part of the
   transaction;
2. *takes* turns on some of the partitions it has data for, sends, *gives them back* with the next numbers. It never
   waits for a turn while it holds one, so that nobody waits for ever; and whoever has waited longest is next, so that
   a task with much to write does not keep the others out;
3. *leaves*, having given everything back.

A task that breaks off in between (its connection ends before it has left) spoils the run: what it has sent, and
whether that was stored, is unknown. A spoiled run grants nothing any more, and the driver aborts the transaction.

Hence the invariant that the commit rests on: **after `close()` has returned the reports, every task has left, nobody
holds a turn, and nobody will ever get one.** A zombie attempt may still run, but it has nothing on its way.

The network part is small: length-prefixed JSON over TCP, a secret per run, a thread per task.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from onceflow.client.cluster import TopicPartition
from onceflow.client.shared_transaction import Fenced
from onceflow.errors import OnceflowError

__all__ = ["Door", "Refusal", "Run", "Sequencer", "TaskReport", "Turns"]

MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024  # the offsets of 100,000 partitions fit
FIRST_WORDS_TIMEOUT_S: Final = 10.0
FIRST_WORDS_BYTES_MAX: Final = 4096
"""Whoever connects and does not say the secret, in few words, is cut off."""
ACCEPT_AGAIN_S: Final = 0.1

_LENGTH: Final = struct.Struct(">I")


class Refusal(OnceflowError):
    """This attempt may not write, or not any more: the batch is being given up, or somebody else has the task."""


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """What a task has written."""

    rows: int = 0
    bytes: int = 0
    partitions: dict[str, list[int]] = field(default_factory=dict)
    """The partitions written to, by topic."""
    dead_letters: int = 0
    """Of the rows: those that went to the dead-letter topic."""


@dataclass(frozen=True)
class Failure:
    """Why a run was spoiled: the first reason counts."""

    kind: str
    sentence: str


class Run:
    """One attempt at writing one micro-batch. Safe for threads."""

    def __init__(self, *, prepare: Callable[[Collection[TopicPartition]], None], patience_s: float) -> None:
        """`prepare` is called with the partitions that are about to be written for the first time."""
        self.secret = secrets.token_hex(16)
        self._prepare = prepare
        self._patience_s = patience_s
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # for those who wait to enter
        self._lines: dict[TopicPartition, deque[_Waiting]] = defaultdict(deque)
        self._writers: dict[int, str] = {}  # task -> the attempt that has entered
        self._reports: dict[int, TaskReport] = {}
        self._next: dict[TopicPartition, int] = {}
        self._holders: dict[TopicPartition, str] = {}
        self._failure: Failure | None = None
        self._closed = False

    @property
    def failure(self) -> Failure | None:
        return self._failure

    def enter(self, task: int, attempt: str) -> None:
        deadline = time.monotonic() + self._patience_s
        with self._changed:
            while task in self._writers and not self._is_over() and task not in self._reports:
                left = deadline - time.monotonic()
                if left <= 0:
                    self._spoil("task", f"another attempt at task {task} neither ends nor goes on")
                    break
                self._changed.wait(left)
            self._check()
            if task in self._writers:
                raise Refusal(
                    f"another attempt has written what belongs to task {task}: this one must not write it again. "
                    "Why Spark runs it again is in its log: look for 'Lost task'"
                )
            self._writers[task] = attempt

    def take(self, attempt: str, wanted: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The next sequence of each partition whose turn is granted: some of the wanted ones, at least one."""
        with self._lock:
            free = self._await_turns(_Waiting(list(wanted), threading.Condition(self._lock)))
            new = [each for each in free if each not in self._next]
            for each in free:
                self._holders[each] = attempt
                self._next.setdefault(each, 0)
            granted = {each: self._next[each] for each in free}
        if new:
            self._prepare(new)  # talks to the coordinator: not under the lock
            with self._lock:
                self._check()
        return granted

    def _await_turns(self, waiting: _Waiting) -> list[TopicPartition]:
        """Those that nobody holds and nobody waits for any longer than we do."""
        deadline = time.monotonic() + self._patience_s
        for each in waiting.wanted:
            self._lines[each].append(waiting)
        try:
            while True:
                self._check()
                if free := [each for each in waiting.wanted if self._is_next(waiting, each)]:
                    return free
                left = deadline - time.monotonic()
                if left <= 0:
                    self._spoil("task", f"no turn on any of {waiting.wanted[:3]} within {self._patience_s:g} s")
                    continue
                waiting.called.wait(left)
        finally:
            for each in waiting.wanted:
                self._lines[each].remove(waiting)
                self._call_next(each)

    def _is_next(self, waiting: _Waiting, where: TopicPartition) -> bool:
        return where not in self._holders and self._lines[where][0] is waiting

    def _call_next(self, where: TopicPartition) -> None:
        if self._lines[where]:
            self._lines[where][0].called.notify_all()

    def give_back(self, attempt: str, positions: Mapping[TopicPartition, int]) -> None:
        with self._lock:
            for where, sequence in positions.items():
                if self._holders.get(where) != attempt:
                    raise Refusal(f"the turn on {where} is not held by this task")
                self._next[where] = sequence
                del self._holders[where]
                self._call_next(where)

    def leave(self, task: int, attempt: str, report: TaskReport) -> None:
        with self._changed:
            self._check()
            if self._writers.get(task) != attempt or attempt in self._holders.values():
                raise Refusal(f"task {task} leaves without having entered, or with a turn in its hands")
            self._reports[task] = report
            self._changed.notify_all()

    def break_off(self, task: int, attempt: str, kind: str, sentence: str) -> None:
        """An attempt that has entered will not go on. After it has left, that does not matter any more."""
        with self._changed:
            if self._writers.get(task) == attempt and task not in self._reports:
                self._spoil(kind, sentence)

    def spoil(self, kind: str, sentence: str) -> None:
        with self._changed:
            self._spoil(kind, sentence)

    def close(self) -> tuple[dict[int, TaskReport], dict[TopicPartition, int]]:
        """The end: reports of all tasks, and per partition the number of records written. Raises `Refusal` if it is
        not complete."""
        with self._changed:
            self._check()
            self._closed = True
            self._call_all()
            missing = sorted(set(self._writers) - set(self._reports))
            if missing or self._holders:
                self._failure = Failure("task", f"tasks {missing} have not said that they are done")
                self._check()
            return dict(self._reports), dict(self._next)

    def _is_over(self) -> bool:
        return self._closed or self._failure is not None

    def _check(self) -> None:
        if self._failure is not None:
            raise Refusal(self._failure.sentence)
        if self._closed:
            raise Refusal("the batch is over")

    def _spoil(self, kind: str, sentence: str) -> None:
        if self._failure is None and not self._closed:
            self._failure = Failure(kind, sentence)
        self._call_all()

    def _call_all(self) -> None:
        self._changed.notify_all()
        for line in self._lines.values():
            for waiting in line:
                waiting.called.notify_all()


@dataclass(frozen=True, eq=False)
class _Waiting:
    """An attempt that waits for turns on any of these partitions."""

    wanted: list[TopicPartition]
    called: threading.Condition


@dataclass(frozen=True)
class Door:
    """Where a task finds the sequencer, and the word that lets it in."""

    host: str
    port: int
    secret: str


class Sequencer:
    """The driver's server: one per process and sink, for one run after the other."""

    def __init__(self, host: str, port: int = 0, *, advertised_host: str | None = None) -> None:
        self._server = socket.create_server((host, port), backlog=256)
        self._advertised = (advertised_host or host, self._server.getsockname()[1])
        self._runs: dict[str, Run] = {}
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="onceflow-sequencer", daemon=True)
        self._thread.start()

    def open(self, run: Run) -> Door:
        self._runs[run.secret] = run
        return Door(*self._advertised, run.secret)

    def forget(self, run: Run) -> None:
        run.spoil("over", "the batch is over")
        self._runs.pop(run.secret, None)

    def close(self) -> None:
        for run in list(self._runs.values()):
            self.forget(run)
        self._is_closed.set()
        # A thread in accept() holds the socket open after close(); shutdown wakes it up.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                connected, _ = self._server.accept()
            except OSError:  # closed; or no file handle is free just now, and tasks must not wait for ever
                self._is_closed.wait(ACCEPT_AGAIN_S)
                continue
            threading.Thread(target=self._serve, args=(connected,), name="onceflow-turns", daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        with connected:
            try:
                _keep_alive(connected)
                connected.settimeout(FIRST_WORDS_TIMEOUT_S)
                hello = _receive(connected, FIRST_WORDS_BYTES_MAX)
                run = self._known(hello.get("secret"))
                if run is None:
                    _answer(connected, {"refused": "the batch is over"})
                    return
                connected.settimeout(None)
                visit = _Visit(run, connected, hello)
            except (OSError, ValueError):
                return
            visit.serve()

    def _known(self, secret: object) -> Run | None:
        for known, run in list(self._runs.items()):
            if isinstance(secret, str) and hmac.compare_digest(known.encode(), secret.encode("utf-8", "replace")):
                return run
        return None


class _Visit:
    """One task's conversation."""

    def __init__(self, run: Run, connected: socket.socket, hello: dict[str, Any]) -> None:
        self._run = run
        self._connected = connected
        try:
            self._task, self._attempt = int(hello["task"]), str(hello["attempt"])
        except (KeyError, TypeError) as problem:
            raise ValueError("not the first words of a task") from problem

    def serve(self) -> None:
        broken = "a task ended without a word: its executor was lost or killed"
        kind = "executor"
        try:
            self._run.enter(self._task, self._attempt)
            _send(self._connected, {})
            while True:
                message = _receive(self._connected)
                if "failed" in message:
                    kind, broken = str(message["kind"]), str(message["failed"])
                    return
                _send(self._connected, self._react(message))
                if "report" in message:
                    return
        except Refusal as refusal:
            _answer(self._connected, {"refused": str(refusal)})
        except (OSError, ValueError):
            pass
        except OnceflowError as problem:  # the coordinator refused what a turn needs
            kind, broken = "fenced" if isinstance(problem, Fenced) else "transaction", str(problem)
            _answer(self._connected, {"refused": str(problem)})
        finally:
            self._run.break_off(self._task, self._attempt, kind, broken)

    def _react(self, message: dict[str, Any]) -> dict[str, Any]:
        self._run.give_back(self._attempt, {(topic, p): number for topic, p, number in message.get("back", ())})
        if "report" in message:
            self._run.leave(self._task, self._attempt, TaskReport(**message["report"]))
            return {}
        if "wanted" in message:
            granted = self._run.take(self._attempt, [(topic, p) for topic, p in message["wanted"]])
            return {"granted": [(topic, p, number) for (topic, p), number in granted.items()]}
        return {}


class Turns:
    """A task's side of the conversation. Raises `Refusal` when it must stop writing."""

    def __init__(self, door: Door, task: int, attempt: str, *, timeout_s: float) -> None:
        self._held: dict[TopicPartition, int] = {}
        try:
            self._connected = socket.create_connection((door.host, door.port), timeout=timeout_s)
        except OSError as problem:
            raise Refusal(
                f"task {task} cannot reach the driver at {door.host}:{door.port} ({problem}): executors need a way to "
                "that port; KafkaSink(driver_host=..., driver_port=...) sets it"
            ) from None
        try:
            _keep_alive(self._connected)
            self._ask({"secret": door.secret, "task": task, "attempt": attempt})
        except BaseException:
            self._connected.close()
            raise

    def take(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Gives back what is held, and waits for turns on some of these partitions."""
        answer = self._ask({"back": self._back(), "wanted": list(wanted)})
        self._held = {(topic, partition): number for topic, partition, number in answer["granted"]}
        return dict(self._held)

    def now_at(self, where: TopicPartition, sequence: int) -> None:
        """Everything below this sequence is acknowledged."""
        self._held[where] = sequence

    def give_back(self) -> None:
        """Lets the others write while this task is busy with something else."""
        self._ask({"back": self._back()})

    def leave(self, report: TaskReport) -> None:
        self._ask({"back": self._back(), "report": asdict(report)})
        self._connected.close()

    def fail(self, kind: str, sentence: str) -> None:
        """Tell the driver why, so that it can tell the user."""
        with contextlib.suppress(OSError):
            _send(self._connected, {"kind": kind, "failed": sentence})
        self._connected.close()

    def _back(self) -> list[tuple[str, int, int]]:
        back = [(topic, partition, number) for (topic, partition), number in self._held.items()]
        self._held = {}
        return back

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            self._connected.settimeout(None)  # the driver answers, or its end of the connection goes
            _send(self._connected, message)
            answer = _receive(self._connected)
        except (OSError, ValueError) as problem:
            raise Refusal(f"the driver has gone: {problem}") from None
        if "refused" in answer:
            raise Refusal(answer["refused"])
        return answer


def _keep_alive(connected: socket.socket) -> None:
    """A peer whose machine is gone is noticed after about a minute."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _send(connected: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message, separators=(",", ":")).encode()
    connected.sendall(_LENGTH.pack(len(data)) + data)


def _answer(connected: socket.socket, message: dict[str, Any]) -> None:
    """To somebody who may be gone."""
    with contextlib.suppress(OSError):
        _send(connected, message)


def _receive(connected: socket.socket, bytes_max: int = MESSAGE_BYTES_MAX) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(_read(connected, _LENGTH.size))
    if length > bytes_max:
        raise ValueError(f"a message of {length} bytes")
    try:
        message = json.loads(_read(connected, length))
    except RecursionError:
        raise ValueError("a message of brackets") from None
    if not isinstance(message, dict):
        raise ValueError("not a message")
    return message


def _read(connected: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = connected.recv(length - len(data))
        if not piece:
            raise ConnectionResetError("the connection was closed")
        data += piece
    return bytes(data)
