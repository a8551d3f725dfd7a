"""The broker as a process: how it starts, says so, refuses, stops, and goes with its parent."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import onceflow
from onceflow.config import BROKER_SETTINGS, DYNAMIC
from onceflow.errors import BrokerStartError, ConfigError
from onceflow.log.small_files import from_json, to_json
from onceflow.wire.messages.metadata import MetadataRequest
from tests.support.broker_process import BrokerProcess, run_broker_command
from tests.support.raw import batch
from tests.support.raw_client import RawClient
from tests.support.waiting import eventually

UUID = b"9e9e5a7d-0000-4000-8000-000000000000"


def files_under(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def port_in_use() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


# Starting and stopping


def test_prints_one_line_when_ready_and_nothing_else(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        stdout = broker.process.stdout
        assert stdout is not None
        with broker.client() as client:
            assert client.make_topic("orders") == 0
            assert client.produce("orders", batch(b"one")).error_code == 0
        process = broker.process
        process.send_signal(signal.SIGTERM)
        assert stdout.read() == ""
        assert broker.stop() == 0
    assert broker.reports == ""


def test_port_0_picks_a_free_port_and_tells_it_to_clients(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.port = 0
    with broker, broker.client() as client:
        assert broker.port > 0
        [node] = client.ask(MetadataRequest(topics=[])).brokers
        assert (node.host, node.port) == ("127.0.0.1", broker.port)


@pytest.mark.parametrize(("number", "durability"), [(signal.SIGTERM, "fsync"), (signal.SIGINT, "os")])
def test_a_signal_stops_it_cleanly_with_clients_connected(
    tmp_path: Path, number: signal.Signals, durability: str
) -> None:
    with BrokerProcess(tmp_path / "data", durability=durability) as broker:
        with broker.client() as client:
            assert client.make_topic("orders") == 0
            assert client.produce("orders", batch(b"one")).error_code == 0
            assert broker.stop(number) == 0
            assert client.waits_for_end()
        assert broker.reports == ""
        broker.start()
        with broker.client() as client:
            assert client.read("orders") == [b"one"]


def test_a_stop_leaves_a_checkpoint_so_that_the_next_start_reads_nothing(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        with broker.client() as client:
            assert client.make_topic("orders") == 0
            for _ in range(10):
                assert client.produce("orders", batch(b"value")).error_code == 0
        assert broker.stop() == 0
    snapshots = sorted(path.name for path in (tmp_path / "data" / "orders-0").glob("*.snapshot"))
    assert snapshots[-1] == f"{10:020d}.snapshot"


def test_tells_clients_the_advertised_address(tmp_path: Path) -> None:
    settings = {"advertised.listeners": "PLAINTEXT://broker.example:19092"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker, broker.client() as client:
        [node] = client.ask(MetadataRequest(topics=[])).brokers
        assert (node.host, node.port) == ("broker.example", 19092)


def test_keeps_cluster_id_and_topic_ids_over_restarts(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with broker.client() as client:
            assert client.make_topic("orders", partitions=3) == 0
            before = client.ask(MetadataRequest(topics=None))
        broker.restart()
        with broker.client() as client:
            after = client.ask(MetadataRequest(topics=None))
        assert after.cluster_id == before.cluster_id
        assert [topic.topic_id for topic in after.topics] == [topic.topic_id for topic in before.topics]


def test_a_data_directory_is_made_for_its_owner_only_and_one_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    with BrokerProcess(tmp_path / "new"), BrokerProcess(shared), onceflow.Broker(data_dir=tmp_path / "own"):
        assert mode_of(tmp_path / "new") == mode_of(tmp_path / "own") == 0o700
        assert mode_of(shared) == 0o755
    assert run_users_command("add", "alice", "--data", str(tmp_path / "users"), password="secret").returncode == 0
    assert mode_of(tmp_path / "users") == 0o700
    assert mode_of(tmp_path / "users" / "users.json") == 0o600


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def run_users_command(*arguments: str, password: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onceflow", "users", *arguments, "--password-stdin"]
    return subprocess.run(command, input=password, capture_output=True, text=True, timeout=30)


def test_list_settings_prints_every_setting_and_starts_nothing(tmp_path: Path) -> None:
    done = run_broker_command(tmp_path / "data", "--list-settings")
    assert done.returncode == 0
    assert done.stderr == ""
    printed = dict(line.split("=", 1) for line in done.stdout.splitlines() if not line.startswith(" "))
    assert printed == {name: setting.default for name, setting in BROKER_SETTINGS.items()}
    assert not (tmp_path / "data").exists()
    lines = done.stdout.splitlines()
    says = {line.split("=", 1)[0]: text for line, text in zip(lines[::2], lines[1::2], strict=True)}
    assert {name for name, text in says.items() if text.endswith(" Can be changed while the broker runs.")} == DYNAMIC


# Refusing to start: one sentence, an exit code, and nothing written


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence with which a start was refused."""
    assert done.returncode not in (0, -signal.SIGABRT)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert re.fullmatch(r"onceflow( broker)?: [^\n]+[.?)]\n", done.stderr), done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "log.retention.msec=5"], ["log.retention.msec", "Did you mean log.retention.ms?"]),
        (["--set", "log.segment.bytes=1"], ["1", "log.segment.bytes", "at least 14"]),
        (["--set", "auto.create.topics.enable=yes"], ["yes", "true or false"]),
        (["--set", "num.partitions"], ["num.partitions", "name=value"]),
        (["--set", "advertised.listeners=nonsense"], ["advertised.listeners", "PLAINTEXT://HOST:PORT"]),
        (["--listen", "9092"], ["--listen", "HOST:PORT", "9092"]),
        (["--listen", "127.0.0.1:65536"], ["--listen", "HOST:PORT"]),
        (["--listen", "no-such-host.invalid:0"], ["no-such-host.invalid"]),
        (["--listen", "SASL_PLAINTEXT://203.0.113.7:0"], ["203.0.113.7", "Cannot"]),
        (["--durability", "maybe"], ["maybe", "fsync", "os"]),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(tmp_path: Path, options: list[str], words: list[str]) -> None:
    done = run_broker_command(tmp_path / "data", "--listen", "127.0.0.1:0", *options)
    sentence = refused(done)
    for word in words:
        assert word in sentence
    assert not (tmp_path / "data").exists()


def test_a_port_in_use_is_one_sentence_and_leaves_no_directory(tmp_path: Path, port_in_use: int) -> None:
    done = run_broker_command(tmp_path / "data", "--listen", f"127.0.0.1:{port_in_use}")
    assert f"127.0.0.1:{port_in_use}" in refused(done)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("path", ["file", "file/below", "/proc/onceflow"])
def test_an_unusable_directory_is_one_sentence(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("precious")
    done = run_broker_command(tmp_path / path, "--listen", "127.0.0.1:0")
    assert "cannot be used" in refused(done)
    assert files_under(tmp_path) == {"file": b"precious"}


def test_a_directory_in_use_is_one_sentence_and_the_other_broker_goes_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        assert client.make_topic("orders") == 0
        before = files_under(tmp_path / "data")
        done = run_broker_command(tmp_path / "data", "--listen", "127.0.0.1:0")
        assert "in use by another broker" in refused(done)
        assert files_under(tmp_path / "data") == before
        assert client.produce("orders", batch(b"one")).error_code == 0


@pytest.fixture(scope="module")
def used_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a broker with a topic, a producer and a record left behind when it was stopped."""
    data = tmp_path_factory.mktemp("used") / "data"
    with BrokerProcess(data) as broker, broker.client() as client:
        assert client.make_topic("orders") == 0
        client.new_producer()
        assert client.produce("orders", batch(b"precious")).error_code == 0
        assert broker.stop() == 0
    return data


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("meta.json", b""),
        ("meta.json", b'{"version": 99, "cluster_id": "x"}'),
        ("producer-ids.json", b"not json"),
        ("producer-ids.json", b'{"next": "soon"}'),
        ("broker-settings.json", b"{"),
        ("broker-settings.json", to_json({"version": 1, "this broker": {"node.id": "7"}, "all brokers": {}})),
        ("meta.json", to_json({"version": 99, "cluster_id": "x"})),
        ("producer-ids.json", to_json({"next": "soon"})),
        ("topics/orders.json", b'{"id": "'),
        ("topics/orders.json", to_json({"id": UUID.decode(), "partitions": 1, "config": {"no.such.setting": "1"}})),
        ("topics/orders.json", b'{"id": "no id", "partitions": 1, "config": {}}'),
        ("topics/orders.json", b'{"id": "%s", "partitions": "x", "config": {}}' % UUID),
        ("topics/orders.json", b'{"id": "%s", "partitions": 1, "config": {"no.such.setting": "1"}}' % UUID),
    ],
)
def test_a_damaged_file_is_one_sentence_that_names_it_and_nothing_is_touched(
    used_data: Path, tmp_path: Path, file: str, content: bytes
) -> None:
    data = tmp_path / "data"
    shutil.copytree(used_data, data)
    (data / file).write_bytes(content)
    before = files_under(data)
    sentence = refused(run_broker_command(data, "--listen", "127.0.0.1:0"))
    assert file in sentence or "format 99" in sentence
    assert files_under(data) == before


# What an earlier process may have left


def test_starts_among_leftovers_and_clears_what_is_its_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = BrokerProcess(data)
    with broker:
        with broker.client() as client:
            for name in ("kept", "half-deleted"):
                assert client.make_topic(name, partitions=2) == 0
                assert client.produce(name, batch(b"one"), partition=1).error_code == 0
        broker.kill()
    # A crash in the middle of everything: replaced files half written, a topic half deleted, one half created.
    (data / "meta.json.tmp").write_bytes(b'{"vers')
    (data / "producer-ids.json.tmp").write_bytes(b"")
    (data / "topics" / "kept.json.tmp").write_bytes(b'{"id"')
    (data / "topics" / "half-deleted.json").write_bytes(to_json({"deleted": True, "partitions": 2}))
    (data / "half-created-0").mkdir()
    (data / "kept-0" / f"{7:020d}.snapshot.tmp").write_bytes(b"\0\1")
    with broker, broker.client() as client:
        assert set(client.topics()) == {"kept"}
        assert client.read("kept", partition=1) == [b"one"]
        left = files_under(data)
        assert not [name for name in left if "half-deleted" in name]
        assert not [name for name in left if "kept" in name and name.endswith(".tmp")]
        assert "half-created-0 belongs to no topic" in broker.reports
        # Names of the half-made topics are free, and nothing of the old ones shows through.
        for name in ("half-created", "half-deleted"):
            assert client.make_topic(name, partitions=2) == 0
            assert client.read(name, partition=1) == []
        client.new_producer()
        assert broker.stop() == 0


def test_a_new_partition_never_shows_what_a_folder_of_its_name_held(tmp_path: Path) -> None:
    from onceflow.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic

    data = tmp_path / "data"
    broker = BrokerProcess(data)
    with broker, broker.client() as client:
        assert client.make_topic("orders", partitions=3) == 0
        assert client.produce("orders", batch(b"of another life"), partition=2).error_code == 0
        broker.kill()
    described = from_json((data / "topics" / "orders.json").read_bytes())
    (data / "topics" / "orders.json").write_bytes(to_json({**described, "partitions": 1}))
    for index in (1, 2):
        (data / f"orders-{index}").rename(tmp_path / f"orders-{index}")
    with broker, broker.client() as client:
        (tmp_path / "orders-2").rename(data / "orders-2")
        grow = CreatePartitionsTopic(name="orders", count=3, assignments=None)
        [result] = client.ask(CreatePartitionsRequest(topics=[grow], timeout_ms=1000)).results
        assert result.error_code == 0
        assert client.read("orders", partition=2) == []


# onceflow.Broker


def test_the_embedded_broker_keeps_data_and_port_over_stop_and_kill(tmp_path: Path) -> None:
    broker = onceflow.Broker(data_dir=tmp_path / "data")
    with broker:
        bootstrap = broker.bootstrap
        with RawClient(bootstrap) as client:
            assert client.make_topic("orders") == 0
            assert client.produce("orders", batch(b"one")).error_code == 0
    for end in (broker.stop, broker.kill):
        broker.start()
        assert broker.bootstrap == bootstrap
        end()
    with broker, RawClient(broker.bootstrap) as client:
        assert client.read("orders") == [b"one"]
    assert (tmp_path / "data").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a bound socket keeps out the broker as well")
def test_nobody_gets_the_ports_of_an_embedded_broker_while_it_is_away(tmp_path: Path) -> None:
    listeners = ["127.0.0.1:0", "127.0.0.1:0"]
    with onceflow.Broker(tmp_path / "data", listeners=listeners, http="127.0.0.1:0") as broker:
        addresses = [*broker.bootstraps, broker.http_url]
        broker.kill()
        for address in addresses:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", int(str(address).rpartition(":")[2])))
        broker.start()
        assert [*broker.bootstraps, broker.http_url] == addresses


def test_the_embedded_broker_takes_its_temporary_data_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with onceflow.Broker() as broker:
        assert broker.data_dir.parent == tmp_path
        assert broker.data_dir.exists()
        broker.kill()
    assert list(tmp_path.iterdir()) == []
    broker = onceflow.Broker().start()
    broker.stop()
    assert broker.data_dir.exists()  # it could be started again
    del broker
    assert list(tmp_path.iterdir()) == []


def test_a_child_of_a_fork_that_ends_leaves_the_embedded_broker_and_its_temporary_data_alone() -> None:
    program = (
        "import os, sys, onceflow\n"
        "with onceflow.Broker() as broker:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        sys.exit()\n"  # the with statement is left, and what runs at the end of a program does
        "    os.waitpid(child, 0)\n"
        "    print(broker.data_dir.exists(), broker.log_file.exists(), broker._process.poll())\n"
        "print(broker.data_dir.exists())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "True True None\nFalse\n"


def test_an_embedded_broker_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port_in_use: int
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with (
        pytest.raises(BrokerStartError, match=rf"^Cannot listen on 127.0.0.1:{port_in_use}: .*\.$"),
        onceflow.Broker(port=port_in_use),
    ):
        pytest.fail("It started.")
    with pytest.raises(ConfigError, match=r"Did you mean num\.partitions\?"):
        onceflow.Broker(settings={"num.partition": 3})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(BrokerStartError, match="cannot be used"):
        onceflow.Broker(data_dir=tmp_path / "file").start()


def test_a_second_embedded_broker_on_the_same_data_is_refused_and_the_first_one_unharmed(tmp_path: Path) -> None:
    with onceflow.Broker(data_dir=tmp_path / "data") as first:
        with RawClient(first.bootstrap) as client:
            client.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
            assert client.waits_for_end()
        warned = eventually(first.log_file.read_text, "the first one reported something")
        with pytest.raises(BrokerStartError, match="in use by another broker"):
            onceflow.Broker(data_dir=tmp_path / "data").start()
        assert first.log_file.read_text().startswith(warned)
        with RawClient(first.bootstrap) as client:
            assert client.make_topic("orders") == 0


def test_settings_and_durability_reach_the_embedded_broker(tmp_path: Path) -> None:
    settings = {"num.partitions": 3, "auto.create.topics.enable": True, "log.retention.ms": -1}
    with (
        onceflow.Broker(durability="os", settings=settings) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        assert client.make_topic("orders", partitions=-1) == 0
        assert len(client.topics()["orders"].partitions) == 3
        command = psutil.Process(broker.pid).cmdline()
        assert command[command.index("--durability") + 1] == "os"


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_address_is_written_the_way_clients_read_it() -> None:
    with onceflow.Broker(host="::1") as broker:
        assert re.fullmatch(r"\[::1\]:\d+", broker.bootstrap)
        port = int(broker.bootstrap.rpartition(":")[2])
        with socket.create_connection(("::1", port), timeout=10):
            pass


def test_a_broker_that_does_not_run_says_so() -> None:
    broker = onceflow.Broker()
    for ask in (lambda: broker.bootstrap, lambda: broker.pid):
        with pytest.raises(BrokerStartError, match="not running"):
            ask()
    with broker, pytest.raises(BrokerStartError, match="running already"):
        broker.start()


def test_the_embedded_broker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = f"""
import onceflow, time
broker = onceflow.Broker(data_dir={str(tmp_path / "data")!r}).start()
print(broker.pid, broker.bootstrap, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, bootstrap = parent.stdout.readline().split()
        broker = psutil.Process(int(pid))
        with RawClient(bootstrap) as client:
            assert client.make_topic("orders") == 0
            assert client.produce("orders", batch(b"one")).error_code == 0
            parent.kill()
            assert client.waits_for_end()
        broker.wait(timeout=15)
    with onceflow.Broker(data_dir=tmp_path / "data") as again, RawClient(again.bootstrap) as client:
        assert client.read("orders") == [b"one"]


def test_ctrl_c_in_a_terminal_is_for_the_program_and_its_broker_is_still_there(tmp_path: Path) -> None:
    """A terminal sends SIGINT to all processes of the foreground's group."""
    program = f"""
import onceflow, time
from tests.support.raw_client import RawClient
with onceflow.Broker(data_dir={str(tmp_path / "data")!r}) as broker:
    try:
        print(broker.pid, flush=True)
        while True:
            time.sleep(0.1)  # a signal right before a sleep does not end it
    except KeyboardInterrupt:
        with RawClient(broker.bootstrap) as client:
            print(client.make_topic("goodbye"), flush=True)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        try:
            broker = psutil.Process(int(parent.stdout.readline()))
            os.killpg(parent.pid, signal.SIGINT)
            assert parent.stdout.read() == "0\n"
            assert parent.wait(30) == 0
            assert not broker.is_running()
        finally:
            parent.kill()


# The pytest plugin


def test_the_fixture_is_there_in_any_pytest_run_and_shared_by_its_tests(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "test_orders.py").write_text("""
from confluent_kafka import Producer

seen = []

def test_produce(onceflow_broker):
    problems = []
    producer = Producer({"bootstrap.servers": onceflow_broker.bootstrap, "enable.idempotence": True})
    producer.produce("orders", b"one", on_delivery=lambda error, message: problems.append(error))
    producer.flush(20)
    assert problems == [None]
    seen.append((onceflow_broker.pid, onceflow_broker.data_dir))

def test_again(onceflow_broker):
    assert seen == [(onceflow_broker.pid, onceflow_broker.data_dir)]
    print("DATA", onceflow_broker.data_dir)
""")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    data = re.search(r"DATA (\S+)", done.stdout)
    assert data is not None
    assert not Path(data[1]).exists()
