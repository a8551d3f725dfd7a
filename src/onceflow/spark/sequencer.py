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

So does a stage that Spark runs again, after it has lost shuffle files for example. Tasks of the second attempt at a
stage count their own attempts from 0, and may have other rows than the first attempt had: rows move between tasks
wherever a query does not give the same rows in the same order each time. One that had not entered the first time would
write beside tasks of the first attempt. PySpark does not tell a task which attempt at its stage it is part of, so the
driver asks the scheduler for each task that enters. Only a stage that was never run again may write: a task of the
first attempt may still come when the second has begun.

Hence the invariant that the commit rests on: **after `close()` has returned the reports, every task has left, nobody
holds a turn, and nobody will ever get one.** A zombie attempt may still run, but it has nothing on its way.

The network part is small: length-prefixed JSON over TCP, a secret per run. Anybody can connect to the driver's port, so
connections that have not shown the secret cost little: one thread reads all of them, each has `FIRST_WORDS_TIMEOUT_S`
for its first message as a whole, and there are at most `UNKNOWN_MAX`; beyond that the oldest one is closed. A task that
was closed so, or for which no thread could be started, tries again. From its first message on a task has a thread of
its own in the driver; and it waits for no answer longer than the driver takes to decide.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import logging
import random
import secrets
import selectors
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
UNKNOWN_MAX: Final = 256
"""Connections that have not shown the secret; a process often has 1,024 file handles in all."""
ACCEPTED_AT_ONCE: Final = 32
"""Then those that are connected are heard: a task says who it is at once."""
BACKLOG: Final = 1024
ACCEPT_AGAIN_S: Final = 0.1
CLOSED_WITHIN_S: Final = 1.0

ANSWER_WITHIN_S: Final = 900.0
HELLOS: Final = 6
"""How often a task introduces itself if it is cut off before it is answered."""
HELLO_AGAIN_S: Final = 0.05
LAST_WORDS_TIMEOUT_S: Final = 5.0

_LENGTH: Final = struct.Struct(">I")
_HANDLES_USED_UP: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger("onceflow.spark")


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

    def __init__(
        self,
        *,
        prepare: Callable[[Collection[TopicPartition]], None],
        patience_s: float,
        stage_attempt: Callable[[int], int] = lambda _: 0,
    ) -> None:
        """`prepare` is called with the partitions that are about to be written for the first time. `stage_attempt`
        gives the newest attempt at a stage that Spark has begun, from 0."""
        self.secret = secrets.token_hex(16)
        self._prepare = prepare
        self._stage_attempt = stage_attempt
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

    def enter(self, task: int, attempt: str, stage: int | None = None) -> None:
        """`stage`: the stage that the task is part of."""
        deadline = time.monotonic() + self._patience_s
        if stage is not None and self._was_run_again(stage):
            self.spoil(
                "stage",
                f"Spark runs stage {stage} again, since it has lost what the stage had read: tasks of both attempts "
                "would write, and their rows need not be the same. Why it does is in its log: look for 'FetchFailed'",
            )
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

    def _was_run_again(self, stage: int) -> bool:
        """Talks to Spark: not under the lock. If it does not answer, the run is spoiled."""
        try:
            return self._stage_attempt(stage) > 0
        except Exception as problem:
            self.spoil("stage", f"Spark could not be asked whether stage {stage} is run again: {problem}")
            return False

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
    answer_within_s: float = ANSWER_WITHIN_S
    """Whoever is not answered in this time has no driver any more."""


class Sequencer:
    """The driver's server: one per process and sink, for one run after the other."""

    def __init__(self, host: str, port: int = 0, *, advertised_host: str | None = None) -> None:
        self._server = socket.create_server((host, port), backlog=BACKLOG)
        self._server.setblocking(False)
        self._advertised = (advertised_host or host, self._server.getsockname()[1])
        self._runs: dict[str, Run] = {}
        self._is_closed = threading.Event()
        self._woken, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="onceflow-sequencer", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # "can't start new thread": the port is to be free when it is tried again
            for each in (self._server, self._woken, self._wake):
                each.close()
            raise

    def open(self, run: Run, *, answer_within_s: float = ANSWER_WITHIN_S) -> Door:
        """`answer_within_s`: longer than any answer to a task of this run can take."""
        self._runs[run.secret] = run
        return Door(*self._advertised, run.secret, answer_within_s)

    def forget(self, run: Run) -> None:
        run.spoil("over", "the batch is over")
        self._runs.pop(run.secret, None)

    def close(self) -> None:
        for run in list(self._runs.values()):
            self.forget(run)
        self._is_closed.set()
        self._wake.close()  # the thread closes the rest
        if threading.current_thread() is not self._thread:  # a finalizer may run in any thread
            self._thread.join(CLOSED_WITHIN_S)

    # --- connections that have not shown the secret

    def _listen(self) -> None:
        with self._server, self._woken:
            self._receive_hellos()

    def _receive_hellos(self) -> None:
        unknown: dict[socket.socket, _Hello] = {}  # the oldest first
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ, "server")
            selector.register(self._woken, selectors.EVENT_READ, "closed")

            def drop(connected: socket.socket, *, close: bool = True) -> None:
                del unknown[connected]
                selector.unregister(connected)
                if close:
                    connected.close()

            while not self._is_closed.is_set():
                for key, _ in selector.select(_seconds_left(unknown)):
                    if key.data == "server":
                        self._accept(selector, unknown)
                    elif isinstance(key.data, _Hello) and key.data.connected in unknown:
                        self._hear(key.data, drop)
                for hello in list(unknown.values())[: max(0, len(unknown) - UNKNOWN_MAX)]:
                    drop(hello.connected)
                for hello in [each for each in unknown.values() if each.deadline <= time.monotonic()]:
                    drop(hello.connected)
            for connected in list(unknown):
                drop(connected)

    def _accept(self, selector: selectors.BaseSelector, unknown: dict[socket.socket, _Hello]) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, _ = self._server.accept()
            except BlockingIOError:
                return
            except OSError as problem:  # closed; or no file handle is free just now, and tasks must not wait for ever
                if problem.errno in _HANDLES_USED_UP and unknown:
                    oldest = next(iter(unknown))
                    del unknown[oldest]
                    selector.unregister(oldest)
                    oldest.close()
                else:
                    self._is_closed.wait(ACCEPT_AGAIN_S)
                return
            connected.setblocking(False)
            hello = _Hello(connected, time.monotonic() + FIRST_WORDS_TIMEOUT_S)
            try:
                selector.register(connected, selectors.EVENT_READ, hello)
            except OSError:  # no more can be watched; a task tries again
                connected.close()
                continue
            unknown[connected] = hello

    def _hear(self, hello: _Hello, drop: Callable[..., None]) -> None:
        """What has come of a first message."""
        try:
            message = hello.heard()
            if message is None:
                return
            run = self._known(message.get("secret"))
            if run is None:
                _answer(hello.connected, {"refused": "the batch is over"})
                raise ValueError("a secret that nobody has")
            visit = _Visit(run, hello.connected, message)
            hello.connected.setblocking(True)
            _keep_alive(hello.connected)
        except (OSError, ValueError):
            drop(hello.connected)
            return
        drop(hello.connected, close=False)
        try:
            threading.Thread(target=visit.serve, name="onceflow-turns", daemon=True).start()
        except (RuntimeError, MemoryError) as problem:  # "can't start new thread"
            log.warning("a task could not be served just now (%s); it will try again", problem)
            hello.connected.close()

    def _known(self, secret: object) -> Run | None:
        for known, run in list(self._runs.items()):
            if isinstance(secret, str) and hmac.compare_digest(known.encode(), secret.encode("utf-8", "replace")):
                return run
        return None


@dataclass(eq=False)
class _Hello:
    """The first message on a connection, as far as it has come."""

    connected: socket.socket
    deadline: float
    data: bytearray = field(default_factory=bytearray)

    def heard(self) -> dict[str, Any] | None:
        """Reads what is there: the message, or None if more has to come. Never reads beyond it."""
        while True:
            length = _LENGTH.unpack_from(self.data)[0] if len(self.data) >= _LENGTH.size else 0
            if length > FIRST_WORDS_BYTES_MAX:
                raise ValueError(f"a first message of {length} bytes")
            missing = _LENGTH.size + length - len(self.data)
            if missing == 0:
                return _message(bytes(self.data[_LENGTH.size :]))
            try:
                piece = self.connected.recv(missing)
            except BlockingIOError:
                return None
            if not piece:
                raise ConnectionResetError("the connection was closed")
            self.data += piece


def _seconds_left(unknown: Mapping[socket.socket, _Hello]) -> float | None:
    """Until the first of them is cut off."""
    oldest = next(iter(unknown.values()), None)
    return None if oldest is None else max(0.0, oldest.deadline - time.monotonic())


class _Visit:
    """One task's conversation."""

    def __init__(self, run: Run, connected: socket.socket, hello: dict[str, Any]) -> None:
        self._run = run
        self._connected = connected
        try:
            self._task, self._attempt = int(hello["task"]), str(hello["attempt"])
            self._stage = None if hello.get("stage") is None else int(hello["stage"])
        except (KeyError, TypeError, OverflowError) as problem:
            raise ValueError("not the first words of a task") from problem

    def serve(self) -> None:
        with self._connected:
            self._serve()

    def _serve(self) -> None:
        broken = "a task ended without a word: its executor was lost or killed"
        kind = "executor"
        try:
            self._run.enter(self._task, self._attempt, self._stage)
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


class _CutOff(Refusal):
    """The connection ended in place of an answer."""


class Turns:
    """A task's side of the conversation. Raises `Refusal` when it must stop writing."""

    def __init__(self, door: Door, task: int, attempt: str, *, timeout_s: float, stage: int | None = None) -> None:
        self._door = door
        self._held: dict[TopicPartition, int] = {}
        hello = {"secret": door.secret, "task": task, "attempt": attempt, "stage": stage}
        for again in range(1, HELLOS + 1):
            self._connected = self._connect(task, timeout_s)
            try:
                self._ask(hello)
                return
            except _CutOff:
                # The driver was busy with others. Should it have let us in nevertheless, it has noticed that we are
                # gone, and does not let us in twice.
                self._connected.close()
                if again == HELLOS:
                    raise
                time.sleep(HELLO_AGAIN_S * 2**again * random.uniform(0.5, 1.0))
            except BaseException:
                self._connected.close()
                raise

    def _connect(self, task: int, timeout_s: float) -> socket.socket:
        try:
            connected = socket.create_connection((self._door.host, self._door.port), timeout=timeout_s)
        except OSError as problem:
            raise Refusal(
                f"task {task} cannot reach the driver at {self._door.host}:{self._door.port} ({problem}): executors "
                "need a way to that port; KafkaSink(driver_host=..., driver_port=...) sets it"
            ) from None
        with contextlib.suppress(OSError):
            _keep_alive(connected)
        return connected

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
            self._connected.settimeout(LAST_WORDS_TIMEOUT_S)
            _send(self._connected, {"kind": kind, "failed": sentence})
        self._connected.close()

    def _back(self) -> list[tuple[str, int, int]]:
        back = [(topic, partition, number) for (topic, partition), number in self._held.items()]
        self._held = {}
        return back

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + self._door.answer_within_s
        try:
            self._connected.settimeout(self._door.answer_within_s)
            _send(self._connected, message)
            answer = _receive(self._connected, deadline)
        except TimeoutError:
            raise Refusal(
                f"the driver at {self._door.host}:{self._door.port} did not answer within "
                f"{self._door.answer_within_s:g} s: this task gives up"
            ) from None
        except (OSError, ValueError) as problem:
            raise _CutOff(f"the driver has gone: {problem}") from None
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


def _receive(connected: socket.socket, deadline: float | None = None) -> dict[str, Any]:
    """Raises `TimeoutError` if the message is not there as a whole by then."""
    (length,) = _LENGTH.unpack(_read(connected, _LENGTH.size, deadline))
    if length > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {length} bytes")
    return _message(_read(connected, length, deadline))


def _message(data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except RecursionError:
        raise ValueError("a message of brackets") from None
    if not isinstance(message, dict):
        raise ValueError("not a message")
    return message


def _read(connected: socket.socket, length: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < length:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connected.settimeout(left)
        piece = connected.recv(length - len(data))
        if not piece:
            raise ConnectionResetError("the connection was closed")
        data += piece
    return bytes(data)
