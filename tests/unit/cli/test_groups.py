"""`onceflow groups` without a broker: mistakes, the plan of a reset, and lag in words."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from typing import Any

import pytest

from onceflow.cli import main
from onceflow.cli.groups import WORDS, _assigned, _lag
from onceflow.cli.groups_reset import plan
from onceflow.client.groups import STATES, GroupPartition, Member
from onceflow.client.problems import ClientError
from tests.unit.client.fake_broker import FakeBroker


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: ACTION"),
        (["list", "--state", "tired"], "'tired' is not a state; there are stable, empty"),
        (["describe"], "required: GROUP"),
        (["describe", "g", "--isolation", "none"], "invalid choice: 'none'"),
        (["delete"], "required: GROUP"),
        (["reset-offsets", "g", "--to-latest"], "--topic --all-topics is required"),
        (["reset-offsets", "g", "--topic", "t"], "--to-earliest --to-latest --to-offset"),
        (["reset-offsets", "g", "--topic", "t", "--to-latest", "--to-earliest"], "not allowed with"),
        (["reset-offsets", "g", "--topic", "t:a", "--to-latest"], "'t:a' should look like TOPIC or TOPIC:0,1"),
        (["reset-offsets", "g", "--topic", ":1", "--to-latest"], "':1' should look like"),
        (["reset-offsets", "g", "--topic", "t", "--to-offset", "-1"], "--to-offset"),
        (["reset-offsets", "g", "--topic", "t", "--by-duration", "1y"], "'1y' is not a duration"),
        (["reset-offsets", "g", "--topic", "t", "--to-datetime", "noon"], "'noon' is not a time"),
        (["reset-offsets", "g", "--topic", "t", "--to-latest", "--execute", "--dry-run"], "not allowed with"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["groups", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["describe", "g"], ["delete", "g"], ["reset-offsets", "g", "--topic", "t", "--to-latest"]],
)
def test_an_unreachable_address_is_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        assert main(["groups", *arguments, "--bootstrap", f"127.0.0.1:{port}"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"onceflow: cannot reach a broker at 127.0.0.1:{port}: nobody listens there")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["describe", "g"], ["delete", "g"], ["reset-offsets", "g", "--all-topics", "--to-latest"]],
)
def test_a_broker_without_groups_is_one_sentence(arguments: list[str]) -> None:
    """As a process of its own: librdkafka's complaints come when it ends."""
    with FakeBroker() as broker:
        for api_key in (15, 16, 42, 68, 69):
            del broker.versions[api_key]
        command = [sys.executable, "-m", "onceflow", "groups", *arguments, "--bootstrap", str(broker.address)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(" groups failed: required feature not supported by broker\n")
    assert done.stderr.count("\n") == 1


def place(committed: int | None, earliest: int | None = 5, end: int | None = 20) -> GroupPartition:
    return GroupPartition(topic="t", partition=0, committed=committed, earliest=earliest, end=end, member=None)


@pytest.mark.parametrize(
    ("at", "lag", "words"),
    [
        (place(20), 0, "0"),
        (place(8), 12, "12"),
        (place(None), None, "nothing committed, 15 there"),
        (place(2), 18, "18, of which 3 are gone"),
        (place(22), -2, "committed 2 beyond the end"),
        (place(8, None, None), None, "the partition is gone"),
    ],
)
def test_the_lag_says_what_is_odd_about_it(at: GroupPartition, lag: int | None, words: str) -> None:
    assert at.lag == lag
    assert _lag(at) == words


def wish(**given: Any) -> argparse.Namespace:
    nothing: dict[str, Any] = dict.fromkeys(["to_offset", "shift_by", "to_datetime", "by_duration"])
    return argparse.Namespace(**({"to_earliest": False, "to_latest": False} | nothing | given))


@pytest.mark.parametrize(
    ("given", "after", "note"),
    [
        ({"to_earliest": True}, 5, ""),
        ({"to_latest": True}, 20, ""),
        ({"to_offset": 7}, 7, ""),
        ({"to_offset": 0}, 5, "0 is before the first"),
        ({"to_offset": 21}, 20, "21 is beyond the end"),
        ({"shift_by": -2}, 6, ""),
        ({"shift_by": -9}, 5, "-1 is before the first"),
        ({"shift_by": 0}, 8, ""),
        ({"to_datetime": 1}, 11, ""),
    ],
)
def test_a_plan_stays_within_what_is_there(given: dict[str, Any], after: int, note: str) -> None:
    (step,) = plan(wish(**given), [place(8)], {("t", 0): 11})
    assert (step.before, step.after, step.note) == (8, after, note)


def test_a_time_after_the_last_message_means_the_end() -> None:
    (step,) = plan(wish(by_duration=1), [place(8)], {("t", 0): None})
    assert step.after == 20


def test_nothing_can_be_shifted_where_nothing_is_committed() -> None:
    with pytest.raises(ClientError, match="nothing is committed for t-0"):
        plan(wish(shift_by=1), [place(None)], {})


def test_a_partition_that_is_gone_stops_the_whole_plan() -> None:
    with pytest.raises(ClientError, match="t-0 is gone"):
        plan(wish(to_latest=True), [place(3), place(3, None, None)], {})


def test_every_state_of_a_group_has_a_word() -> None:
    assert set(WORDS) == set(STATES.values())


def test_what_a_member_has_is_written_as_topic_takes_it() -> None:
    member = Member(member_id="m", instance_id=None, client_id="c", host="h", partitions=(("a", 0), ("a", 2), ("b", 1)))
    assert _assigned(member) == "a:0,2 b:1"
