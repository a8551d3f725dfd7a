"""Turns: who may write to which partition, from which sequence on, and who may not any more."""

from __future__ import annotations

import contextlib
import errno
import json
import resource
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from onceflow.client.cluster import TopicPartition
from onceflow.client.shared_transaction import Fenced
from onceflow.errors import OnceflowError
from onceflow.spark import sequencer as module
from onceflow.spark.sequencer import Door, Refusal, Run, Sequencer, TaskReport, Turns
from tests.support.waiting import eventually

P0, P1, P2 = ("t", 0), ("t", 1), ("t", 2)
DONE = TaskReport(rows=1)


def nothing(_: Collection[TopicPartition]) -> None:
    pass


@pytest.fixture
def run() -> Run:
    return Run(prepare=nothing, patience_s=10)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def is_waiting(run: Run, count: int = 1) -> bool:
    """Whether so many stand in line for a turn."""
    with run._lock:
        return len({id(each) for line in run._lines.values() for each in line}) == count


def wait_in_line(pool: ThreadPoolExecutor, run: Run, attempt: str, *wanted: TopicPartition) -> Future[Any]:
    with run._lock:
        before = len({id(each) for line in run._lines.values() for each in line})
    future = pool.submit(run.take, attempt, wanted)
    eventually(lambda: is_waiting(run, before + 1), "it stands in line", every_s=0.001)
    return future


# --- turns


def test_the_first_turn_on_a_partition_begins_at_zero_and_the_next_where_that_one_stopped(run: Run) -> None:
    run.enter(0, "a")
    run.enter(1, "b")
    assert run.take("a", [P0, P1]) == {P0: 0, P1: 0}
    run.give_back("a", {P0: 10})
    assert run.take("b", [P0, P1]) == {P0: 10}
    run.give_back("a", {P1: 3})
    run.give_back("b", {P0: 12})
    assert run.take("b", [P1, P0]) == {P1: 3, P0: 12}


def test_whoever_finds_every_partition_taken_waits_for_the_first_that_is_free(
    run: Run, pool: ThreadPoolExecutor
) -> None:
    run.take("a", [P0, P1])
    waiting = wait_in_line(pool, run, "b", P0, P1)
    run.give_back("a", {P1: 5})
    assert waiting.result(5) == {P1: 5}


def test_whoever_waited_longest_is_next(run: Run, pool: ThreadPoolExecutor) -> None:
    run.take("a", [P0])
    second = wait_in_line(pool, run, "b", P0)
    third = wait_in_line(pool, run, "c", P0)
    run.give_back("a", {P0: 1})
    assert second.result(5) == {P0: 1}
    assert not third.done()
    run.give_back("b", {P0: 2})
    assert third.result(5) == {P0: 2}


def test_a_task_that_takes_the_same_partition_again_lets_those_go_first_who_wait(
    run: Run, pool: ThreadPoolExecutor
) -> None:
    run.take("a", [P0, P1])
    waiting = wait_in_line(pool, run, "b", P0)
    with run._lock:  # as if it were quicker than the one that is woken
        run.give_back("a", {P0: 1, P1: 1})
        assert run.take("a", [P0, P1]) == {P1: 1}
    assert waiting.result(5) == {P0: 1}


def test_nobody_waits_behind_one_who_waits_for_something_else(run: Run, pool: ThreadPoolExecutor) -> None:
    run.take("a", [P0])
    wait_in_line(pool, run, "b", P0)
    assert run.take("c", [P1]) == {P1: 0}
    run.spoil("task", "over")


def test_partitions_are_prepared_before_their_first_turn_and_only_then() -> None:
    prepared: list[list[TopicPartition]] = []
    run = Run(prepare=lambda new: prepared.append(list(new)), patience_s=10)
    run.take("a", [P0])
    run.give_back("a", {P0: 1})
    run.take("b", [P0, P1])
    assert prepared == [[P0], [P1]]


def test_a_turn_is_not_granted_if_the_run_was_spoiled_while_it_was_prepared() -> None:
    run = Run(prepare=lambda _: run.spoil("executor", "somebody died"), patience_s=10)
    with pytest.raises(Refusal, match="somebody died"):
        run.take("a", [P0])


def test_a_turn_that_is_not_held_cannot_be_given_back(run: Run) -> None:
    run.take("a", [P0])
    with pytest.raises(Refusal, match="not held"):
        run.give_back("b", {P0: 9})
    run.give_back("a", {P0: 1})
    assert run.take("b", [P0]) == {P0: 1}


def test_a_turn_that_never_comes_spoils_the_run() -> None:
    run = Run(prepare=nothing, patience_s=0.05)
    run.take("a", [P0])
    with pytest.raises(Refusal, match="no turn on any"):
        run.take("b", [P0])
    assert run.failure is not None
    assert run.failure.kind == "task"


# --- attempts


def test_a_second_attempt_waits_while_the_first_lives_and_is_refused_when_it_has_left(
    run: Run, pool: ThreadPoolExecutor
) -> None:
    run.enter(0, "first")
    second = pool.submit(run.enter, 0, "second")
    with pytest.raises(TimeoutError):
        second.result(0.05)
    run.leave(0, "first", DONE)
    with pytest.raises(Refusal, match="another attempt has written"):
        second.result(5)
    assert run.close()[0] == {0: DONE}


def test_a_second_attempt_is_refused_when_the_first_broke_off(run: Run, pool: ThreadPoolExecutor) -> None:
    run.enter(0, "first")
    second = pool.submit(run.enter, 0, "second")
    run.break_off(0, "first", "executor", "it was killed")
    with pytest.raises(Refusal, match="it was killed"):
        second.result(5)
    with pytest.raises(Refusal, match="it was killed"):
        run.close()


def test_a_second_attempt_does_not_wait_for_ever() -> None:
    run = Run(prepare=nothing, patience_s=0.05)
    run.enter(0, "first")
    with pytest.raises(Refusal, match="neither ends nor goes on"):
        run.enter(0, "second")


def test_a_refused_attempt_that_breaks_off_spoils_nothing(run: Run) -> None:
    run.enter(0, "first")
    run.break_off(0, "second", "executor", "a copy was killed")
    run.leave(0, "first", DONE)
    run.break_off(0, "first", "executor", "its worker ended")
    assert run.failure is None
    assert run.close() == ({0: DONE}, {})


def test_the_first_reason_counts(run: Run) -> None:
    run.spoil("refused", "too large")
    run.spoil("executor", "killed")
    assert run.failure is not None
    assert (run.failure.kind, run.failure.sentence) == ("refused", "too large")


def test_nobody_leaves_with_a_turn_in_hand_or_without_having_entered(run: Run) -> None:
    with pytest.raises(Refusal):
        run.leave(0, "a", DONE)
    run.enter(0, "a")
    run.take("a", [P0])
    with pytest.raises(Refusal):
        run.leave(0, "a", DONE)
    run.give_back("a", {P0: 1})
    run.leave(0, "a", DONE)


# --- stages that Spark runs again


class Stages:
    """The newest attempt at each stage."""

    def __init__(self) -> None:
        self.newest: dict[int, int] = {}
        self.run = Run(prepare=nothing, patience_s=10, stage_attempt=lambda stage: self.newest.get(stage, 0))


@pytest.mark.parametrize("task", [0, 1], ids=["a task that has left", "a task that had not come the first time"])
def test_stage_that_is_run_again_does_not_write_beside_its_first_attempt(task: int) -> None:
    stages = Stages()
    stages.run.enter(0, "a", stage=7)
    stages.run.leave(0, "a", DONE)
    stages.newest[7] = 1
    with pytest.raises(Refusal, match="Spark runs stage 7 again"):
        stages.run.enter(task, "b", stage=7)
    assert stages.run.failure is not None
    assert stages.run.failure.kind == "stage"
    with pytest.raises(Refusal, match="Spark runs stage 7 again"):
        stages.run.close()


def test_task_of_the_first_attempt_that_comes_when_the_second_has_begun_is_refused() -> None:
    """Nobody can tell it from one of the second attempt, which may have other rows."""
    stages = Stages()
    stages.newest[7] = 1
    with pytest.raises(Refusal, match="Spark runs stage 7 again"):
        stages.run.enter(0, "a", stage=7)
    with pytest.raises(Refusal):
        stages.run.close()


def test_tasks_of_a_stage_that_is_run_once_enter_and_those_of_a_run_that_is_over_spoil_nothing() -> None:
    stages = Stages()
    for task, attempt in enumerate("ab"):
        stages.run.enter(task, attempt, stage=7)
        stages.run.leave(task, attempt, DONE)
    assert set(stages.run.close()[0]) == {0, 1}
    stages.newest[7] = 1
    with pytest.raises(Refusal, match="over"):
        stages.run.enter(2, "c", stage=7)
    assert stages.run.failure is None


# --- the end


def test_the_end_reports_what_every_task_and_partition_has(run: Run) -> None:
    for task, attempt in enumerate("ab"):
        run.enter(task, attempt)
        for where, sequence in run.take(attempt, [P0, P1]).items():
            run.give_back(attempt, {where: sequence + 5})
        run.leave(task, attempt, TaskReport(rows=10, bytes=task, partitions={"t": [0, 1]}))
    reports, counts = run.close()
    assert [reports[task].bytes for task in (0, 1)] == [0, 1]
    assert counts == {P0: 10, P1: 10}


def test_the_end_is_refused_while_a_task_has_not_left_and_spoils_the_run(run: Run) -> None:
    run.enter(0, "a")
    run.enter(7, "b")
    run.leave(0, "a", DONE)
    with pytest.raises(Refusal, match=r"tasks \[7\] have not said"):
        run.close()
    with pytest.raises(Refusal):
        run.take("b", [P0])


def test_after_the_end_nobody_gets_a_turn_or_enters(run: Run) -> None:
    run.enter(0, "a")
    run.leave(0, "a", DONE)
    run.close()
    for late in (lambda: run.take("a", [P0]), lambda: run.enter(1, "b"), lambda: run.enter(0, "c"), run.close):
        with pytest.raises(Refusal, match="over"):
            late()


def test_those_who_wait_are_refused_when_the_run_is_spoiled(run: Run, pool: ThreadPoolExecutor) -> None:
    run.enter(0, "a")
    run.take("a", [P0])
    waiting = [wait_in_line(pool, run, attempt, P0) for attempt in "bc"]
    entering = pool.submit(run.enter, 0, "again")
    run.break_off(0, "a", "executor", "killed")
    for future in (*waiting, entering):
        with pytest.raises(Refusal, match="killed"):
            future.result(5)


# --- over the network


@pytest.fixture
def server() -> Iterator[Sequencer]:
    server = Sequencer("127.0.0.1")
    yield server
    server.close()


@pytest.fixture
def door(server: Sequencer, run: Run) -> Door:
    return server.open(run)


NewTurns = Callable[..., Turns]


@pytest.fixture
def new_turns(door: Door) -> Iterator[NewTurns]:
    made: list[Turns] = []

    def make(task: int, attempt: str) -> Turns:
        made.append(Turns(door, task, attempt, timeout_s=5))
        return made[-1]

    yield make
    for each in made:
        each._connected.close()


def test_tasks_pass_a_partition_on_from_one_to_the_next(run: Run, new_turns: NewTurns) -> None:
    first, second = new_turns(0, "a"), new_turns(1, "b")
    assert first.take([P0, P1]) == {P0: 0, P1: 0}
    first.now_at(P0, 7)
    first.now_at(P1, 9)
    assert first.take([P1]) == {P1: 9}
    assert second.take([P0, P1]) == {P0: 7}
    first.now_at(P1, 11)
    first.leave(DONE)
    second.now_at(P0, 8)
    assert second.take([P1]) == {P1: 11}
    second.leave(TaskReport(rows=2, bytes=30, partitions={"t": [0, 1]}))
    assert run.close() == (
        {0: DONE, 1: TaskReport(rows=2, bytes=30, partitions={"t": [0, 1]})},
        {P0: 8, P1: 11},
    )


def test_turns_can_be_given_back_without_taking_others(new_turns: NewTurns) -> None:
    first, second = new_turns(0, "a"), new_turns(1, "b")
    first.take([P0])
    first.now_at(P0, 4)
    first.give_back()
    assert second.take([P0]) == {P0: 4}


def test_a_connection_that_ends_before_its_task_has_left_spoils_the_run(run: Run, new_turns: NewTurns) -> None:
    dying, other = new_turns(0, "a"), new_turns(1, "b")
    dying.take([P0])
    dying._connected.close()
    eventually(lambda: run.failure, "the driver notices")
    with pytest.raises(Refusal, match="lost or killed"):
        other.take([P1])


def test_a_task_that_fails_tells_why(run: Run, new_turns: NewTurns) -> None:
    new_turns(0, "a").fail("refused", "the record is too large")
    failure = eventually(lambda: run.failure, "the driver hears of it")
    assert (failure.kind, failure.sentence) == ("refused", "the record is too large")


def test_a_second_attempt_over_the_network_waits_and_is_refused(new_turns: NewTurns, pool: ThreadPoolExecutor) -> None:
    first = new_turns(0, "a")
    second = pool.submit(new_turns, 0, "b")
    with pytest.raises(TimeoutError):
        second.result(0.05)
    first.leave(DONE)
    with pytest.raises(Refusal, match="another attempt"):
        second.result(5)


def test_what_the_coordinator_refuses_reaches_the_task_and_the_driver(server: Sequencer) -> None:
    def refuse(_: Collection[TopicPartition]) -> None:
        raise Fenced("somebody took over")

    run = Run(prepare=refuse, patience_s=10)
    turns = Turns(server.open(run), 0, "a", timeout_s=5)
    with pytest.raises(Refusal, match="somebody took over"):
        turns.take([P0])
    failure = eventually(lambda: run.failure, "the driver knows")
    assert failure.kind == "fenced"
    turns._connected.close()


def test_what_else_goes_wrong_in_preparing_is_of_the_transaction(server: Sequencer) -> None:
    def refuse(_: Collection[TopicPartition]) -> None:
        raise OnceflowError("no such topic")

    run = Run(prepare=refuse, patience_s=10)
    turns = Turns(server.open(run), 0, "a", timeout_s=5)
    with pytest.raises(Refusal, match="no such topic"):
        turns.take([P0])
    assert eventually(lambda: run.failure, "the driver knows").kind == "transaction"
    turns._connected.close()


def test_a_run_that_is_forgotten_lets_nobody_in_and_grants_nothing(
    server: Sequencer, run: Run, door: Door, new_turns: NewTurns
) -> None:
    early = new_turns(0, "a")
    server.forget(run)
    with pytest.raises(Refusal, match="over"):
        early.take([P0])
    with pytest.raises(Refusal, match="over"):
        new_turns(1, "b")


def test_a_closed_sequencer_is_not_reached_and_the_refusal_names_the_settings() -> None:
    server = Sequencer("127.0.0.1")
    door = server.open(Run(prepare=nothing, patience_s=1))
    server.close()
    server._thread.join(5)
    assert not server._thread.is_alive()
    with pytest.raises(Refusal, match="driver_host"):
        Turns(door, 0, "a", timeout_s=1)


def test_the_address_for_the_executors_may_be_another_one() -> None:
    server = Sequencer("127.0.0.1", advertised_host="driver.example")
    assert server.open(Run(prepare=nothing, patience_s=1)).host == "driver.example"
    server.close()


def test_task_of_a_stage_that_is_run_again_is_refused_over_the_network(server: Sequencer) -> None:
    stages = Stages()
    door = server.open(stages.run)
    first = Turns(door, 0, "a", timeout_s=5, stage=7)
    stages.newest[7] = 1
    with pytest.raises(Refusal, match="Spark runs stage 7 again"):
        Turns(door, 1, "b", timeout_s=5, stage=7)
    with pytest.raises(Refusal, match="Spark runs stage 7 again"):
        first.take([P0])
    first._connected.close()


# --- a driver that does not answer


def silent_driver(answer_within_s: float) -> tuple[socket.socket, Door]:
    server = socket.create_server(("127.0.0.1", 0))
    return server, Door("127.0.0.1", server.getsockname()[1], "secret", answer_within_s)


def test_task_whose_driver_accepts_and_never_answers_gives_up() -> None:
    server, door = silent_driver(0.2)
    with server, pytest.raises(Refusal, match=r"did not answer within 0\.2 s"):
        Turns(door, 0, "a", timeout_s=5)


def test_task_whose_driver_answers_byte_by_byte_gives_up() -> None:
    server, door = silent_driver(0.5)

    def drip() -> None:
        connected, _ = server.accept()
        with connected, contextlib.suppress(OSError):
            connected.sendall(struct.pack(">I", 1000))
            while True:
                connected.sendall(b" ")
                select.select([], [], [], 0.05)

    threading.Thread(target=drip, daemon=True).start()
    with server, pytest.raises(Refusal, match=r"did not answer within 0\.5 s"):
        Turns(door, 0, "a", timeout_s=5)


def test_task_that_has_entered_gives_up_when_the_driver_stops_answering(server: Sequencer) -> None:
    hung = threading.Event()

    def hang(_: Collection[TopicPartition]) -> None:
        hung.wait(20)

    run = Run(prepare=hang, patience_s=10)
    turns = Turns(server.open(run), 0, "a", timeout_s=5)  # to enter may take as long as it does on a busy machine
    turns._door = replace(turns._door, answer_within_s=0.3)
    with pytest.raises(Refusal, match=r"did not answer within 0\.3 s"):
        turns.take([P0])
    hung.set()
    turns._connected.close()


def test_task_that_is_cut_off_before_it_is_answered_introduces_itself_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELLO_AGAIN_S", 0.001)
    server, door = silent_driver(5)
    seen: list[bytes] = []

    def serve() -> None:
        for answer in (b"", b"\0\0", frame({})):
            connected, _ = server.accept()
            with connected:
                seen.append(connected.recv(4096))
                connected.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    Turns(door, 3, "a", timeout_s=5)._connected.close()
    thread.join()
    server.close()
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_task_that_is_cut_off_again_and_again_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELLO_AGAIN_S", 0.001)
    server, door = silent_driver(5)

    def serve() -> None:
        for _ in range(module.HELLOS):
            server.accept()[0].close()

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(Refusal, match="the driver has gone"):
        Turns(door, 0, "a", timeout_s=5)
    thread.join()
    server.close()


# --- strangers


def frame(message: object) -> bytes:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">I", len(data)) + data


def said(door: Door, data: bytes) -> bytes:
    """What comes back until the sequencer hangs up."""
    answer = b""
    with socket.create_connection((door.host, door.port), timeout=5) as stranger:
        try:
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            while piece := stranger.recv(4096):
                answer += piece
        except OSError as problem:
            # Whoever hangs up with something unread resets the connection, perhaps before we are done with it.
            if problem.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise
    return answer


@pytest.mark.parametrize("secret", ["wrong", "", "é", "\ud800", 7, None, ["x"]])
def test_whoever_has_a_wrong_secret_is_refused(run: Run, door: Door, secret: object) -> None:
    answer = said(door, frame({"secret": secret, "task": 0, "attempt": "a"}))
    assert json.loads(answer[4:]) == {"refused": "the batch is over"}
    run.enter(0, "the real one")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        frame(b"\xff\xfe"),
        frame(b"[" * 4000),
        frame([1, 2]),
        frame({})[:-1],
        struct.pack(">I", 0xFFFFFFFF) + b"x",
        frame(b'{"secret": "' + b"x" * module.FIRST_WORDS_BYTES_MAX + b'"}'),
    ],
    ids=["nothing", "a byte", "http", "not text", "brackets", "a list", "cut short", "huge", "too many words"],
)
def test_strangers_are_cut_off_and_change_nothing(run: Run, door: Door, new_turns: NewTurns, data: bytes) -> None:
    assert said(door, data) == b""
    assert new_turns(0, "a").take([P0]) == {P0: 0}
    assert run.failure is None


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"task": 0},
        {"attempt": "a"},
        {"task": "x", "attempt": "a"},
        {"task": None},
        {"task": float("inf"), "attempt": "a"},
        {"task": 0, "attempt": "a", "stage": float("nan")},
    ],
)
def test_first_words_that_do_not_say_who_it_is_are_not_answered(
    run: Run, door: Door, new_turns: NewTurns, words: dict[str, object]
) -> None:
    assert said(door, frame({"secret": door.secret, **words})) == b""
    new_turns(0, "a").leave(DONE)


def test_connection_that_cannot_be_watched_costs_itself_and_not_the_server(
    run: Run, door: Door, new_turns: NewTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """epoll has a limit of its own (ENOSPC)."""
    register = module.selectors.DefaultSelector.register
    failures = iter(range(2))

    def register_or_fail(selector: Any, *arguments: Any) -> Any:
        if isinstance(arguments[-1], module._Hello) and next(failures, None) is not None:
            raise OSError(errno.ENOSPC, "no space left on device")
        return register(selector, *arguments)

    monkeypatch.setattr(module.selectors.DefaultSelector, "register", register_or_fail)
    new_turns(0, "a").leave(DONE)
    assert next(failures, None) is None


def test_thread_of_the_server_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made: list[socket.socket] = []
    create = socket.create_server

    def create_and_keep(*arguments: Any, **settings: Any) -> socket.socket:
        made.append(create(*arguments, **settings))
        return made[-1]

    monkeypatch.setattr(threading.Thread, "start", fail)
    monkeypatch.setattr(socket, "create_server", create_and_keep)
    with pytest.raises(RuntimeError):
        Sequencer("127.0.0.1")
    assert [each.fileno() for each in made] == [-1]


def test_whoever_says_nothing_is_cut_off(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WORDS_TIMEOUT_S", 0.05)
    with socket.create_connection((door.host, door.port), timeout=5) as stranger:
        assert stranger.recv(1) == b""


def test_an_oversized_message_of_a_task_spoils_the_run(run: Run, new_turns: NewTurns) -> None:
    turns = new_turns(0, "a")
    turns._connected.sendall(struct.pack(">I", module.MESSAGE_BYTES_MAX + 1))
    assert eventually(lambda: run.failure, "the driver gives up").kind == "executor"


def test_a_server_that_cannot_accept_just_now_accepts_later(
    server: Sequencer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of file handles: tasks must not stand in the backlog for ever."""
    failed = threading.Event()
    accept = server._server.accept

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def accept(self) -> Any:
            if not failed.is_set():
                failed.set()
                raise OSError(24, "too many open files")
            return accept()

    real = server._server
    server._server = Failing()  # type: ignore[assignment]
    door = server.open(run)
    Turns(door, 0, "a", timeout_s=5).leave(DONE)  # the accept that was waiting already
    Turns(door, 1, "b", timeout_s=5).leave(DONE)
    assert failed.is_set()
    assert set(run.close()[0]) == {0, 1}


SILENT = 1500
DRIVER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from onceflow.spark.sequencer import Run, Sequencer
run = Run(prepare=lambda _: None, patience_s=60)
door = Sequencer("127.0.0.1").open(run)
print(door.port, door.secret, flush=True)
sys.stdin.read()
print(sorted(run.close()[0]), flush=True)
"""
"""A driver with as many file handles as processes have by default."""


@contextlib.contextmanager
def many_handles(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("words", [b"", struct.pack(">I", 100)], ids=["silent", "a few bytes each"])
def test_tasks_enter_while_a_driver_has_1500_connections_that_say_nothing(words: bytes) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(many_handles(2 * SILENT))
        driver = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert driver.stdout is not None
        port, secret = driver.stdout.readline().split()
        for _ in range(SILENT):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", int(port)), timeout=5))
            silent.sendall(words)
        began = time.monotonic()
        for task in range(20):
            turns = Turns(Door("127.0.0.1", int(port), secret, 20), task, "a", timeout_s=5)
            assert turns.take([P0]) == {P0: task}
            turns.now_at(P0, task + 1)
            turns.leave(DONE)
        assert time.monotonic() - began < module.FIRST_WORDS_TIMEOUT_S, "none had to wait until others are cut off"
        out, _ = driver.communicate()
        assert out.strip() == str(list(range(20)))


def test_first_words_that_come_byte_by_byte_have_one_deadline_for_all(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_WORDS_TIMEOUT_S", 0.3)
    with socket.create_connection((door.host, door.port), timeout=5) as slow:
        words = iter(frame({"secret": door.secret, "task": 0, "attempt": "a", "more": "x" * 2000}))
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while not select.select([slow], [], [], 0.05)[0]:
                slow.sendall(bytes([next(words)]))
            assert slow.recv(1) == b""
        assert time.monotonic() - began < 5


def test_newest_connections_are_kept_when_there_are_too_many(
    server: Sequencer, run: Run, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNKNOWN_MAX", 3)
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((door.host, door.port), timeout=5)) for _ in range(3 + 2)
        ]
        for oldest in silent[:2]:
            assert oldest.recv(1) == b""
        silent[2].sendall(frame({"secret": door.secret, "task": 0, "attempt": "a"}))
        assert silent[2].recv(100) == frame({})


def test_thread_that_cannot_be_started_costs_one_connection_and_not_the_server(
    run: Run, door: Door, new_turns: NewTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    failures = iter(range(2))

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name == "onceflow-turns" and next(failures, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    assert new_turns(0, "a").take([P0]) == {P0: 0}
    assert next(failures, None) is None
    assert run.failure is None
