"""Numbers in what people write. Every reader of them refuses the same things, with a sentence."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.connection_limits import ConnectionLimits
from onceflow.broker.listeners import Listener
from onceflow.cli import main
from onceflow.cli.alerts import _figure
from onceflow.cli.alerts_look import ask_page
from onceflow.cli.broker import parse_listen
from onceflow.cli.common import whole_number
from onceflow.cli.consume import _start
from onceflow.cli.durations import duration_ms, trigger
from onceflow.cli.groups import _topic
from onceflow.cli.log_dump import _positive
from onceflow.client.addresses import parse_bootstrap
from onceflow.config import BrokerConfig
from onceflow.digits import INT64_MAX, address_of, whole_number_of
from onceflow.doctor.facts import ClusterFacts, TopicFacts
from onceflow.errors import ConfigError
from onceflow.log.files import RealFileSystem
from onceflow.log.recovery import offsets_of
from onceflow.monitor.rules_thresholds import Thresholds
from onceflow.sinks.databases.postgresql import _parameters
from onceflow.spark.metrics import MetricsServer, parse_address
from onceflow.spark.options import SourceOptions

BAD = ("\u00b2", "\u0661", "\uff11", "1_0", "", "-1", "1e3", "0x1", "1.0", "9" * 5000)
"""Digits that `int` does not read and `isdigit` accepts, that both read and nobody else does, and so on."""


def source(name: str, value: str) -> Any:
    return SourceOptions.of({"kafka.bootstrap.servers": "a:1", "subscribe": "t", name: value})


PARSERS: dict[str, Callable[[str], Any]] = {
    "parse_listen": lambda bad: parse_listen(f"127.0.0.1:{bad}"),
    "parse_listen, without a host": lambda bad: parse_listen(f":{bad}"),
    "Listener.parse": lambda bad: Listener.parse(f"127.0.0.1:{bad}"),
    "ask_page": lambda bad: ask_page(f"127.0.0.1:{bad}"),
    "parse_address": lambda bad: parse_address(f"127.0.0.1:{bad}"),
    "parse_bootstrap": lambda bad: parse_bootstrap(f"127.0.0.1:{bad}"),
    "parse_bootstrap, IPv6": lambda bad: parse_bootstrap(f"[::1]:{bad}"),
    "ConnectionLimits": lambda bad: ConnectionLimits.of(
        BrokerConfig(given={"max.connections.per.ip.overrides": f"127.0.0.1:{bad}"})
    ),
    "a setting of the broker": lambda bad: BrokerConfig(given={"num.partitions": bad}),
    "whole_number": whole_number(0),
    "groups --topic": lambda bad: _topic(f"orders:{bad}"),
    "log dump --max": _positive,
    "consume --from": _start,
    "duration_ms": lambda bad: duration_ms(f"{bad}m"),
    "trigger": lambda bad: trigger(f"{bad} seconds"),
    "maxOffsetsPerTrigger": lambda bad: source("maxOffsetsPerTrigger", bad),
    "maxTriggerDelay": lambda bad: source("maxTriggerDelay", f"{bad}m"),
    "startingOffsets, a partition": lambda bad: source("startingOffsets", f'{{"t":{{"{bad}":0}}}}'),
    "startingOffsets, an offset": lambda bad: source("startingOffsets", f'{{"t":{{"0":"{bad.replace("-1", "-3")}"}}}}'),
    "the port of a database": lambda bad: _parameters(f"postgresql://localhost:{bad or 0x10000}/x"),
}


@pytest.mark.parametrize("bad", BAD, ids=[ascii(each)[:12] for each in BAD])
@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
def test_what_is_no_number_is_refused_with_a_sentence(parse: Callable[[str], Any], bad: str) -> None:
    with pytest.raises((ConfigError, argparse.ArgumentTypeError), match=r"\w+ \w+"):
        parse(bad)


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("007", 7), ("0" * 5000 + "7", 7), (str(INT64_MAX), INT64_MAX), ("9" * 19, None)]
)
def test_what_is_a_number_is_read(text: str, number: int | None) -> None:
    assert whole_number_of(text) == number


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:80", ("localhost", 80)),
        ("[::1]:80", ("::1", 80)),
        (":0", ("", 0)),
        ("80", None),
        ("a:65536", None),
        ("a b:80", None),
        ("http://a:80", None),
        ("me@a:80", None),
        ("[::1", None),
        ("[::1:80", None),
        ("::1]:80", None),
    ],
)
def test_an_address(text: str, address: tuple[str, int] | None) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("bad", BAD, ids=[ascii(each)[:12] for each in BAD])
def test_the_doctor_passes_over_what_is_no_number(bad: str) -> None:
    cluster = ClusterFacts(address="a:1", now_ms=0, settings={0: {"x": bad}})
    assert cluster.number("x") == (-1 if bad == "-1" else None)
    topic = TopicFacts(name="t", partitions=(), settings={"min.insync.replicas": bad})
    assert topic.min_insync is None


def test_a_file_whose_name_is_no_number_is_not_a_segment(tmp_path: Path) -> None:
    for name in ("\u00b2.log", "00000000000000000007.log", "x.log"):
        (tmp_path / name).touch()
    assert offsets_of(RealFileSystem(), tmp_path, ".log") == [7]


@pytest.mark.parametrize("figure", ["nan", "inf", "-inf"])
def test_a_threshold_is_a_finite_number(figure: str) -> None:
    with pytest.raises(ConfigError, match="has to be a number, not"):
        Thresholds().changed(dict([_figure(f"batch_failures_min={figure}")]))


@pytest.mark.parametrize(
    "arguments",
    [
        ["alerts", "--http", "localhost:\u00b2"],
        ["dashboard", "--http", ":\u00b2"],
        ["broker", "--http", ":\u00b2"],
        ["broker", "--listen", ":\u00b2"],
        ["topics", "create", "x", "--partitions", "99999999999"],
        ["topics", "create", "x", "--replication-factor", "99999999999"],
        ["consume", "x", "--from", "0001-01-01T00:00:00"],
        ["consume", "x", "--partition", "\u00b2"],
        ["run", "orders", "--per-batch", "\u00b2"],
        ["users", "list", "--bootstrap", "localhost:\u00b2"],
        ["alerts", "--http", "[::1"],
        ["dashboard", "--http", "[::1:80"],
    ],
    ids=" ".join,
)
def test_a_command_ends_with_one_sentence_and_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert arguments[-1] in said


@pytest.mark.parametrize("host", ["a..b", ".", "a" * 64])
@pytest.mark.parametrize(
    "arguments",
    [
        ["broker", "--listen", "{}:9", "--data", "{folder}"],
        ["broker", "--listen", "127.0.0.1:0", "--http", "{}:9", "--data", "{folder}"],
        ["dashboard", "--http", "{}:9"],
        ["alerts", "--http", "{}:9"],
    ],
    ids=" ".join,
)
def test_a_host_that_cannot_be_one_is_a_sentence(
    arguments: list[str], host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert main([each.format(host, folder=tmp_path) for each in arguments]) == (3 if arguments[0] == "alerts" else 1)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert f"{host}:9" in said


def test_metrics_at_a_host_that_cannot_be_one() -> None:
    with pytest.raises(ConfigError, match=r"cannot serve metrics at a\.\.b:9"):
        MetricsServer("a..b:9")


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "create", "\udc80"],
        ["topics", "create", "x", "--config", "\udc80=1"],
        ["produce", "x", "--header", "\udc80=1"],
        ["produce", "x", "--key-separator", "\udc80"],
        ["consume", "x", "--null-value", "\udc80"],
        ["groups", "describe", "\udc80"],
        ["alerts", "--http", "\udc80:9"],
    ],
    ids=ascii,
)
def test_an_argument_that_is_not_utf_8_is_a_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "is not text in UTF-8" in capsys.readouterr().err
