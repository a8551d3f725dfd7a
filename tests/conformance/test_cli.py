"""The client commands of `onceflow`, as processes, against both brokers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.conformance.conftest import RunningBroker

COMMAND = [sys.executable, "-m", "onceflow"]


class Shell:
    """Runs `onceflow ...` against one broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def run(self, *arguments: str, stdin: str | bytes = "") -> subprocess.CompletedProcess[bytes]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        command = [*COMMAND, *arguments, "--bootstrap", self.bootstrap]
        return subprocess.run(command, input=data, capture_output=True, timeout=60)

    def ok(self, *arguments: str, stdin: str | bytes = "") -> str:
        """Standard output of a command that has to succeed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def fails(self, *arguments: str, code: int = 1, stdin: str | bytes = "") -> str:
        """The complaint of a command that has to fail: no traceback, and nothing printed as a result."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == code, done.stderr.decode()
        assert b"Traceback" not in done.stderr
        assert done.stdout == b""
        return done.stderr.decode()

    def records(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ok("consume", *arguments, "--json").splitlines()]

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [*COMMAND, *arguments, "--bootstrap", self.bootstrap]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def shell(broker: RunningBroker) -> Shell:
    return Shell(broker.bootstrap)


@pytest.fixture
def topic(shell: Shell, new_name: Callable[[], str]) -> str:
    """A topic with one partition."""
    name = new_name()
    shell.ok("topics", "create", name, "--partitions", "1")
    return name


def test_a_topic_is_created_listed_described_and_deleted(shell: Shell, new_name: Callable[[], str]) -> None:
    name = new_name()
    created = shell.ok("topics", "create", name, "--partitions", "3", "--config", "retention.ms=7200000")
    assert created == f"Created topic {name} with 3 partitions.\n"

    listed = {topic["name"]: topic for topic in json.loads(shell.ok("topics", "list", "--json"))}
    assert listed[name] == {"name": name, "partitions": 3, "replication_factor": 1, "internal": False}

    shell.ok("produce", name, "--partition", "1", stdin="a\nb\n")
    (described,) = json.loads(shell.ok("topics", "describe", name, "--json"))
    assert described["name"] == name
    assert len(described["id"]) == 22
    assert described["configs"] == {"retention.ms": "7200000"}
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert [(p["earliest"], p["latest"], p["records_estimate"]) for p in described["partitions"]] == [
        (0, 0, 0),
        (0, 2, 2),
        (0, 0, 0),
    ]
    leader = described["partitions"][0]["leader"]
    assert all(p["replicas"] == p["isr"] == [leader] for p in described["partitions"])

    assert shell.ok("topics", "delete", name) == f"Deleted topic {name}.\n"
    assert name not in shell.ok("topics", "list")


def test_tables_are_readable_without_a_terminal(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, stdin="a\nb\nc\n")
    rows = shell.ok("topics", "list").splitlines()
    assert rows[0].split() == ["topic", "partitions", "replicas"]
    assert [topic, "1", "1"] in [row.split() for row in rows]

    lines = shell.ok("topics", "describe", topic).splitlines()
    assert lines[0].startswith(f"{topic}  id ")
    assert lines[0].endswith("about 3 records")
    assert lines[-1].split()[-3:] == ["0", "3", "3"]


def test_a_long_name_is_not_cut_short_without_a_terminal(shell: Shell, new_name: Callable[[], str]) -> None:
    name = f"{new_name()}-{'x' * 150}"
    shell.ok("topics", "create", name, "--partitions", "1")
    assert [name, "1", "1"] in [row.split() for row in shell.ok("topics", "list").splitlines()]
    shell.ok("topics", "delete", name)


def test_describing_without_names_describes_all_but_internal_topics(shell: Shell, topic: str) -> None:
    names = [described["name"] for described in json.loads(shell.ok("topics", "describe", "--json"))]
    assert topic in names
    assert names == sorted(names)
    assert not any(name.startswith("__") for name in names)


def test_creating_a_topic_twice_fails_unless_that_is_fine(shell: Shell, topic: str) -> None:
    assert f"there already is a topic '{topic}'" in shell.fails("topics", "create", topic)
    assert "nothing was changed" in shell.ok("topics", "create", topic, "--if-not-exists", "--partitions", "7")
    again = json.loads(shell.ok("topics", "create", topic, "--if-not-exists", "--json"))
    assert again == {"name": topic, "created": False}
    (described,) = json.loads(shell.ok("topics", "describe", topic, "--json"))
    assert len(described["partitions"]) == 1


@pytest.mark.parametrize(
    "wish",
    [
        ["not/a/name"],
        ["x" * 250],
        ["fine", "--config", "no.such.setting=1"],
        ["fine", "--config", "retention.ms=soon"],
        ["fine", "--replication-factor", "3"],
    ],
)
def test_a_topic_that_cannot_be_is_exit_code_2(shell: Shell, wish: list[str]) -> None:
    assert "was not created: " in shell.fails("topics", "create", *wish, code=2)
    assert wish[0] not in [topic["name"] for topic in json.loads(shell.ok("topics", "list", "--json"))]


def test_a_missing_topic_is_one_sentence(shell: Shell, new_name: Callable[[], str]) -> None:
    name = new_name()
    for arguments in (
        ["topics", "describe", name],
        ["topics", "delete", name],
        ["produce", name],
        ["consume", name],
    ):
        complaint = shell.fails(*arguments, stdin="a\n")
        assert f"there is no topic '{name}'" in complaint
        assert complaint.count("\n") == 1
    assert name not in shell.ok("topics", "list"), "asking for it must not create it"
    shell.ok("topics", "delete", name, "--if-exists")


def test_deleting_several_topics_goes_on_after_a_missing_one(
    shell: Shell, topic: str, new_name: Callable[[], str]
) -> None:
    missing = new_name()
    done = shell.run("topics", "delete", missing, topic, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == [
        {"name": missing, "deleted": False},
        {"name": topic, "deleted": True},
    ]


def test_lines_come_back_as_they_went(shell: Shell, topic: str) -> None:
    done = shell.run("produce", topic, stdin="one\n\n  two \nthree")
    assert done.returncode == 0
    assert done.stdout == b""
    assert done.stderr.decode().startswith(f"4 messages acknowledged by {shell.bootstrap} in ")
    assert shell.ok("consume", topic) == "one\n\n  two \nthree\n"


def test_keys_headers_nulls_and_offsets_are_shown_on_demand(shell: Shell, topic: str) -> None:
    options = ["--key-separator", ":", "--null-value", "-", "--header", "from=test", "--header", "n=1"]
    shell.ok("produce", topic, *options, stdin="k1:v:1\nk2:-\n")
    shell.ok("produce", topic, stdin="no key\n")
    assert shell.ok("consume", topic, "--keys", "--headers", "--offsets") == (
        "0:0\tfrom=test,n=1\tk1\tv:1\n0:1\tfrom=test,n=1\tk2\tnull\n0:2\t\tnull\tno key\n"
    )
    assert shell.ok("consume", topic, "--from", "1", "--max", "1", "--null-value", "NIL") == "NIL\n"


def test_json_round_trip_keeps_everything(shell: Shell, topic: str, new_name: Callable[[], str]) -> None:
    lines = [
        {
            "key": "k",
            "value": "v",
            "headers": {"h": "1", "twice": ["a", None]},
            "timestamp": 1_700_000_000_000,
        },
        {"key": {"base64": "/wA="}, "value": {"base64": "gIGC"}, "headers": {"b": {"base64": "/w=="}}},
        {"value": None},
        {"key": "", "value": ""},
    ]
    shell.ok("produce", topic, "--json", stdin="\n".join(map(json.dumps, lines)))
    records = shell.records(topic)
    assert [(r["topic"], r["partition"], r["offset"]) for r in records] == [(topic, 0, n) for n in range(4)]
    assert records[0]["timestamp"] == 1_700_000_000_000
    for line, record in zip(lines, records, strict=True):
        assert record["key"] == line.get("key")
        assert record["value"] == line["value"]
        assert record["headers"] == line.get("headers", {})

    copy = new_name()
    shell.ok("topics", "create", copy, "--partitions", "1")
    shell.ok("produce", copy, "--json", stdin=shell.ok("consume", topic, "--json"))
    assert shell.records(copy) == [record | {"topic": copy} for record in records]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_each_compression_can_be_read_again(shell: Shell, topic: str, compression: str) -> None:
    text = "".join(f"message number {n}\n" for n in range(2_000))
    shell.ok("produce", topic, "--compression", compression, stdin=text)
    assert shell.ok("consume", topic) == text


@pytest.mark.parametrize("options", [["--no-idempotent"], ["--acks", "1"], ["--acks", "all", "--idempotent"]])
def test_each_kind_of_acknowledgement(shell: Shell, topic: str, options: list[str]) -> None:
    shell.ok("produce", topic, *options, stdin="a\nb\n")
    assert shell.ok("consume", topic) == "a\nb\n"


def test_a_file_is_sent_as_standard_input_would_be(shell: Shell, topic: str, tmp_path: Any) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\n\xff\n")
    shell.ok("produce", topic, "--file", str(path))
    assert shell.run("consume", topic).stdout == b"a\n\xff\n"


def test_a_line_that_makes_no_sense_stops_and_says_where(shell: Shell, topic: str) -> None:
    complaint = shell.fails("produce", topic, "--key-separator", ":", stdin="a:1\nb:2\nc\nd:4\n")
    assert complaint.startswith("2 messages acknowledged")
    assert "line 3 was not sent, nor were those after it: there is no key separator ':' in it" in complaint
    assert shell.ok("consume", topic) == "1\n2\n"


def test_a_partition_that_does_not_exist_is_named(shell: Shell, topic: str) -> None:
    words = f"topic '{topic}' has 1 partition: there is no 1"
    assert words in shell.fails("produce", topic, "--partition", "1", code=2)
    assert words in shell.fails("consume", topic, "--partition", "1", code=2)
    line = '{"value": "v", "partition": 1}\n'
    assert "line 1 was not sent" in shell.fails("produce", topic, "--json", stdin=line)


def test_a_message_that_is_too_large_is_counted_and_the_rest_is_sent(shell: Shell, topic: str) -> None:
    complaint = shell.fails("produce", topic, stdin="small\n" + "x" * 1_100_000 + "\nsmall\n")
    assert complaint.startswith("2 messages acknowledged")
    assert "1 message not acknowledged: " in complaint
    assert "too large" in complaint
    assert shell.ok("consume", topic) == "small\nsmall\n"


def test_partitions_are_read_together_or_one_by_one(shell: Shell, new_name: Callable[[], str]) -> None:
    topic = new_name()
    shell.ok("topics", "create", topic, "--partitions", "3")
    for partition in range(3):
        text = "".join(f"{partition}-{n}\n" for n in range(100))
        shell.ok("produce", topic, "--partition", str(partition), stdin=text)
    assert len(shell.ok("consume", topic).splitlines()) == 300
    only = shell.ok("consume", topic, "--partition", "0", "--partition", "2", "--partition", "2")
    assert sorted(only.splitlines()) == sorted(f"{p}-{n}" for p in (0, 2) for n in range(100))
    assert len(shell.ok("consume", topic, "--max", "7").splitlines()) == 7


def test_where_to_start(shell: Shell, topic: str) -> None:
    lines = [{"value": str(n), "timestamp": 1_700_000_000_000 + n * 1000} for n in range(5)]
    shell.ok("produce", topic, "--json", stdin="\n".join(map(json.dumps, lines)))

    def values(*arguments: str) -> list[str]:
        return shell.ok("consume", topic, *arguments).split()

    assert values("--from", "beginning") == ["0", "1", "2", "3", "4"]
    assert values("--from", "end") == []
    assert values("--from", "3") == ["3", "4"]
    assert values("--from", "5") == []
    third = datetime.fromtimestamp(1_700_000_003, UTC)
    assert values("--from", third.isoformat()) == ["3", "4"]
    assert values("--from", "2001-01-01") == ["0", "1", "2", "3", "4"]
    assert values("--from", "2100-01-01T00:00:00Z") == []
    assert "there is no offset 6 yet" in shell.fails("consume", topic, "--from", "6")


def test_an_empty_topic_prints_nothing_and_ends(shell: Shell, topic: str) -> None:
    assert shell.ok("consume", topic) == ""


def test_following_goes_on_until_interrupted(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, stdin="before\n")
    with shell.running("consume", topic, "--follow") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"before\n"
        shell.ok("produce", topic, stdin="after\n")
        assert process.stdout.readline() == b"after\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_an_interrupted_produce_reports_what_was_acknowledged(shell: Shell, topic: str) -> None:
    with shell.running("produce", topic) as process:
        assert process.stdin is not None
        process.stdin.write(b"a\nb\n")
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while shell.ok("consume", topic) != "a\nb\n":
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.decode().startswith("2 messages acknowledged")


def test_a_closed_pipe_ends_consume_quietly(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, stdin="x" * 100 + "\n" + ("y" * 100 + "\n") * 20_000)
    with shell.running("consume", topic) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"x" * 100 + b"\n"
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == b""


def test_transactions_that_end_the_log_do_not_hold_up_the_end(broker: RunningBroker, shell: Shell, topic: str) -> None:
    """Behind the last record there are markers, which take an offset each and are never handed out."""
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "linger.ms": 0, "log_level": 0}
    )
    producer.init_transactions()
    for value, commit in (("committed", True), ("aborted", False)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush()
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    assert shell.ok("consume", topic) == "committed\n"
    assert shell.ok("consume", topic, "--isolation", "read_uncommitted") == "committed\naborted\n"

    producer.begin_transaction()
    producer.produce(topic, "open")
    producer.flush()
    assert shell.ok("consume", topic) == "committed\n"
    assert shell.ok("consume", topic, "--isolation", "read_uncommitted").endswith("open\n")
    producer.abort_transaction()
