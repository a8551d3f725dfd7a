"""`onceflow txns` without a real broker: mistakes, words, and what it says when something is missing or silent."""

from __future__ import annotations

import argparse
import io
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from onceflow.cli import main
from onceflow.cli.durations import duration_ms, in_words, moment_ms
from onceflow.cli.txn_words import WORDS, left_ms, timeout, what_next, word
from onceflow.client.addresses import Address
from onceflow.client.cluster import Node
from onceflow.client.transactions import STATES, Transaction
from onceflow.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.unit.client.fake_broker import FakeBroker, HangUp

NOW_MS = 1_700_000_000_000


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """One with an open transaction of `app`, which ends when the producer is fenced."""
    with FakeBroker() as broker:
        states = iter(["Ongoing", "CompleteAbort"])
        codes = iter([51, 0])

        def describe(_: Any) -> DescribeTransactionsResponse:
            state = TransactionState(
                transactional_id="app", transaction_state=next(states), transaction_start_time_ms=1
            )
            return DescribeTransactionsResponse(transaction_states=[state])

        broker.on(DescribeTransactionsRequest, describe)
        broker.on(InitProducerIdRequest, lambda _: InitProducerIdResponse(error_code=next(codes)))
        yield broker


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that was printed to stderr; nothing went to stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err.rstrip("\n")


def at(broker: FakeBroker, *arguments: str) -> list[str]:
    return ["txns", *arguments, "--bootstrap", str(broker.address)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: ACTION"),
        (["list", "--state", "Sleeping"], "'Sleeping' is not a state; there are Empty, Ongoing"),
        (["list", "--older-than", "long"], "'long' is not a duration such as 90s"),
        (["list", "--id-pattern", "("], "'(' is not a regular expression"),
        (["describe"], "required: ID"),
        (["find-hanging", "--partition", "0"], "--partition needs a --topic"),
        (["abort"], "what to abort?"),
        (["abort", "--topic", "t", "--partition", "0"], "what to abort?"),
        (["abort", "app", "--topic", "t"], "not both"),
        (["abort", "--topic", "t", "--partition", "0", "--start-offset", "-1"], "--start-offset"),
        (["list", "--client-config", "security.protocol=TLS"], "security.protocol=TLS is not supported"),
        (["list", "--client-config", "ssl.ca.location=ca.pem"], "ssl.ca.location has no effect"),
        (["list", "--client-config", "linger.ms=1"], "cannot take its setting 'linger.ms'"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["txns", *arguments]) == 2
    assert words in complaint(capsys)


@pytest.mark.parametrize("arguments", [["list"], ["describe", "app"], ["find-hanging"], ["abort", "app"]])
def test_an_unreachable_address_is_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        assert main(["txns", *arguments, "--bootstrap", f"127.0.0.1:{port}"]) == 1
    assert f"cannot reach a broker at 127.0.0.1:{port}: nobody listens there" in complaint(capsys)


@pytest.mark.parametrize(
    ("arguments", "api_key", "name"),
    [(["list"], 66, "ListTransactions"), (["describe", "app"], 65, "DescribeTransactions")],
)
def test_a_broker_that_is_too_old_is_one_sentence(
    broker: FakeBroker, arguments: list[str], api_key: int, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    del broker.versions[api_key]
    assert main(at(broker, *arguments)) == 1
    assert f"does not know {name}: it is too old" in complaint(capsys)


def test_an_abort_without_an_answer_says_that_it_may_have_happened(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    def hang_up(_: Any) -> InitProducerIdResponse:
        raise HangUp

    broker.on(InitProducerIdRequest, hang_up)
    assert main(at(broker, "abort", "app", "--yes")) == 1
    assert "may have been aborted or not: see onceflow txns describe app" in complaint(capsys)
    assert len(broker.requests(InitProducerIdRequest)) == 1


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_somebody_at_a_terminal_is_asked_first(
    broker: FakeBroker, answer: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert main(at(broker, "abort", "app")) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "Its producer will be fenced and fail at its next request. [y/N] Nothing was done.\n" in err
    assert broker.requests(InitProducerIdRequest) == []


@pytest.mark.parametrize(("answer", "options"), [("y\n", []), ("Yes\n", []), ("", ["--yes"])])
def test_with_a_yes_it_is_done(
    broker: FakeBroker,
    answer: str,
    options: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert main(at(broker, "abort", "app", "--json", *options)) == 0
    assert json.loads(capsys.readouterr().out) == {"transactional_id": "app", "aborted": True, "producer_fenced": True}
    assert len(broker.requests(InitProducerIdRequest)) == 2


def test_a_transaction_that_was_quicker_is_not_called_aborted(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.on(InitProducerIdRequest, lambda _: InitProducerIdResponse())
    assert main(at(broker, "abort", "app", "--yes", "--json")) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["aborted"] is None
    assert err == "onceflow: the transaction of 'app' has ended, and how was not seen; its producer is fenced now\n"


def test_help_teaches_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from onceflow.cli import main; main(sys.argv[1:]); "
        "print([m for m in ('confluent_kafka', 'rich') if m in sys.modules], file=sys.stderr)"
    )
    for command in ("txns", "groups"):
        arguments = [sys.executable, "-c", program, command, "--help"]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        assert "examples:" in done.stdout
        assert done.stderr == "[]\n"


def transaction(state: str, *, age_ms: int = 12_000, timeout_ms: int = 60_000) -> Transaction:
    return Transaction(
        transactional_id="app",
        state=state,
        producer_id=1,
        producer_epoch=0,
        timeout_ms=timeout_ms,
        started_ms=NOW_MS - age_ms,
        partitions=(("t", 0),),
        coordinator=Node(1, Address("h", 1)),
    )


def test_every_state_has_a_word_and_a_sentence() -> None:
    assert set(WORDS) == set(STATES)
    assert len(set(WORDS.values())) == len(STATES)
    for state in STATES:
        assert "does not know" not in what_next(transaction(state), NOW_MS)
    assert word("Odd") == "Odd"
    assert "does not know: Odd" in what_next(transaction("Odd"), NOW_MS)


def test_an_open_transaction_says_when_its_time_is_up() -> None:
    assert what_next(transaction("Ongoing"), NOW_MS) == "will be aborted by the coordinator in 48 s unless it commits"
    late = transaction("Ongoing", age_ms=60_000)
    assert left_ms(late, NOW_MS) == 0
    assert what_next(late, NOW_MS).startswith("is past its timeout")


def test_without_a_timeout_it_stays_open() -> None:
    endless = transaction("Ongoing", timeout_ms=2**31 - 1)
    assert timeout(endless) == "none"
    assert what_next(endless, NOW_MS) == "stays open until its producer commits or aborts it"


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (48_999, "48 s"),
        (60_000, "1 min"),
        (252_000, "4 min 12 s"),
        (7_500_000, "2 h 5 min"),
        (3 * 86_400_000, "3 d"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_durations_in_words(ms: int, words: str) -> None:
    assert in_words(ms) == words


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("0s", 0),
        ("1.5s", 1500),
        ("250ms", 250),
        ("2d", 172_800_000),
        ("PT5M", 300_000),
        ("P1DT12H", 129_600_000),
        ("pt0.5s", 500),
        ("P2D", 172_800_000),
    ],
)
def test_durations_as_people_write_them(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "-5m", "5m1h", "P", "PT", "P1DT", "P1Y", "999999999d", "५m"])
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a duration"):
        duration_ms(text)


def test_times_with_a_zone() -> None:
    assert moment_ms("2023-11-14T22:13:20Z") == moment_ms("2023-11-14T23:13:20+01:00") == NOW_MS
    with pytest.raises(argparse.ArgumentTypeError, match="is not a time"):
        moment_ms("tomorrow")
