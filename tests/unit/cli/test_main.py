"""What the command line says about mistakes, without a broker."""

from __future__ import annotations

import os
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from onceflow.cli import main
from onceflow.cli.common import bytes_from_json, bytes_to_json
from onceflow.cli.produce import BadLineError, LineFormat, Message
from onceflow.client.addresses import Address, parse_bootstrap
from onceflow.errors import ConfigError


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port where nobody listens, kept from others by being bound."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that was printed to stderr; nothing went to stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err.rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tpics"], "invalid choice: 'tpics'"),
        (["--verbose"], "unrecognized arguments: --verbose"),
        (["topics"], "required: ACTION"),
        (["topics", "create"], "required: TOPIC"),
        (["topics", "create", "t", "--partitions", "0"], "'0' is not a whole number from 1 to 100000"),
        (["topics", "create", "t", "--partitions", "many"], "'many' is not a whole number"),
        (["topics", "create", "t", "--config", "retention.ms"], "should look like NAME=VALUE"),
        (["topics", "delete"], "required: TOPIC"),
        (["topics", "list", "--bootstrap", "localhost:kafka"], "'kafka' is not a port"),
        (["topics", "list", "--bootstrap", "local host"], "is not an address"),
        (["topics", "list", "--client-config", "no.such=1"], 'no such configuration property: "no.such"'),
        (["produce"], "required: TOPIC"),
        (["produce", "t", "--acks", "2"], "invalid choice: '2'"),
        (["produce", "t", "--acks", "1", "--idempotent"], "does not go with --acks 1"),
        (["produce", "t", "--compression", "rar"], "invalid choice: 'rar'"),
        (["produce", "t", "--header", "=x"], "should look like NAME=VALUE"),
        (["produce", "t", "--json", "--key-separator", ":"], "leave out --key-separator"),
        (["produce", "t", "--key-separator", ""], "no end of the key"),
        (["produce", "t", "--file", "/no/such/file"], "cannot read '/no/such/file': no such file"),
        (["consume"], "required: TOPIC"),
        (["consume", "t", "--from", "tuesday"], "neither beginning, end, an offset, nor a time"),
        (["consume", "t", "--from", "-5"], "'-5' is neither beginning, end, an offset"),
        (["consume", "t", "--max", "0"], "'0' is not a whole number from 1 up"),
        (["consume", "t", "--isolation", "serializable"], "invalid choice: 'serializable'"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in complaint(capsys)


@pytest.mark.parametrize(
    "arguments", [["topics", "list"], ["topics", "create", "t"], ["produce", "t"], ["consume", "t"]]
)
def test_an_unreachable_address_is_one_sentence_at_once(
    arguments: list[str], closed_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = time.monotonic()
    assert main([*arguments, "--bootstrap", f"127.0.0.1:{closed_port}"]) == 1
    assert f"cannot reach a broker at 127.0.0.1:{closed_port}: nobody listens there" in complaint(capsys)
    assert time.monotonic() - before < 5


def test_the_address_may_come_from_the_environment(
    closed_port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEFLOW_BOOTSTRAP", f"127.0.0.1:{closed_port}")
    assert main(["topics", "list"]) == 1
    assert f"127.0.0.1:{closed_port}" in complaint(capsys)


def test_an_unknown_host_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "list", "--bootstrap", "no-such-host.invalid:9092"]) == 1
    assert "no-such-host.invalid:9092: there is no host of this name" in complaint(capsys)


def test_somebody_who_does_not_speak_kafka_is_found_out(capsys: pytest.CaptureFixture[str]) -> None:
    class HangUp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), HangUp) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            code = main(["topics", "list", "--bootstrap", f"127.0.0.1:{server.server_address[1]}"])
        finally:
            server.shutdown()
            thread.join()
    assert code == 1
    assert "but not a Kafka broker" in complaint(capsys)


def test_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["topics", "--help"], ["produce", "--help"], ["consume", "--help"]):
        assert main(arguments) == 0
        assert "examples:" in capsys.readouterr().out


def test_without_a_command_the_help_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "onceflow topics create orders" in err


def test_version_names_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"onceflow \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize("command", ["", "topics", "produce", "consume", "broker"])
def test_help_is_quick_because_nothing_heavy_is_imported(command: str) -> None:
    program = (
        "import sys; from onceflow.cli import main; main(sys.argv[1:]); "
        "print([m for m in ('confluent_kafka', 'rich') if m in sys.modules], file=sys.stderr)"
    )
    arguments = [command, "--help"] if command else ["--help"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_as_a_module_it_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "onceflow", "nope"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "invalid choice: 'nope'" in done.stderr


def test_a_reader_who_leaves_is_not_an_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from onceflow import cli; cli.COMMANDS['x'] = ('leave', '')\n"
         "class leave:\n add_parser = staticmethod(lambda s: s.add_parser('x'))\n"
         " run = staticmethod(lambda a: print('y' * 100, flush=True))\n"
         "sys.modules['leave'] = leave; sys.exit(cli.main(['x']))"],
        stdout=write_end, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost", [Address("localhost", 9092)]),
        ("a:1,b:2", [Address("a", 1), Address("b", 2)]),
        ("a:1, b", [Address("a", 1), Address("b", 9092)]),
        ("[::1]:9093", [Address("::1", 9093)]),
        ("[::1]", [Address("::1", 9092)]),
        ("SASL_SSL://kafka.example:9094", [Address("kafka.example", 9094)]),
    ],
)
def test_addresses_as_librdkafka_takes_them(text: str, addresses: list[Address]) -> None:
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize("text", ["", ",", "a:", ":9092", "a:0", "a:65536", "a:-1", "a:9092/x", "[::1", "a b"])
def test_what_is_not_an_address(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        parse_bootstrap(text)


@pytest.mark.parametrize("data", [None, b"", b"text", "ü€".encode(), b"\xff\x00", bytes(range(256))])
def test_bytes_survive_json(data: bytes | None) -> None:
    assert bytes_from_json(bytes_to_json(data)) == data


def test_a_line_is_a_value() -> None:
    assert LineFormat().parse(b"a:b") == Message(value=b"a:b")


def test_a_key_ends_at_the_first_separator() -> None:
    assert LineFormat(key_separator=b":").parse(b"a:b:c") == Message(key=b"a", value=b"b:c")


def test_a_marker_stands_for_null() -> None:
    line_format = LineFormat(key_separator=b":", null_value=b"-")
    assert line_format.parse(b"k:-") == Message(key=b"k", value=None)
    assert line_format.parse(b"k:--") == Message(key=b"k", value=b"--")


def test_a_json_line_has_it_all() -> None:
    line = (
        b'{"key": "k", "value": {"base64": "/w=="}, "headers": {"a": "1", "b": ["2", null]}, "partition": 3, '
        b'"timestamp": 17, "topic": "from consume", "offset": 9}'
    )
    assert LineFormat(json=True).parse(line) == Message(
        key=b"k",
        value=b"\xff",
        headers=(("a", b"1"), ("b", b"2"), ("b", None)),
        partition=3,
        timestamp_ms=17,
    )


def test_other_json_values_are_sent_as_their_text() -> None:
    assert LineFormat(json=True).parse(b'{"value": {"n": [1, "\xc3\xbc"]}}').value == '{"n":[1,"ü"]}'.encode()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[1]", "it is not a JSON object"),
        (b'{"key": "k"}', 'it has no "value"'),
        (b'{"value": "v", "vlaue": 1}', "unknown field 'vlaue'"),
        (b'{"value": {"base64": "?"}}', "is not base64"),
        (b'{"value": "v", "headers": [1]}', '"headers" are not an object'),
        (b'{"value": "v", "partition": -1}', '"partition" is not a whole number'),
        (b'{"value": "v", "partition": true}', '"partition" is not a whole number'),
        (b'{"value": "v", "timestamp": 9223372036854775808}', '"timestamp" is not a whole number'),
        (b'{"value": "v", "headers": {"\\ud800": "x"}}', "surrogates not allowed"),
        (b"[" * 100_000, "it is not JSON"),
    ],
)
def test_a_json_line_that_makes_no_sense_says_why(line: bytes, words: str) -> None:
    with pytest.raises(BadLineError, match=re.escape(words)):
        LineFormat(json=True).parse(line)
