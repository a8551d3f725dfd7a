"""`onceflow alerts` without a broker: mistakes, exit codes, what is printed, and what it says when it cannot look."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import yaml

from onceflow.cli import main
from onceflow.client.addresses import BOOTSTRAP_VARIABLE
from onceflow.errors import OnceflowError
from onceflow.monitor.rules import Alert
from onceflow.monitor.snapshot import Snapshot
from tests.support.alert_scenarios import START_MS, orders, transaction, wrote
from tests.support.stepping_time import SteppingTime

ALERT = Alert(
    rule="LongTransaction",
    severity="warning",
    subject="app\x1b[31m",
    summary="app is Ongoing for 11 min",
    meaning="Readers wait.",
    action="onceflow txns abort ID",
    since_ms=START_MS - 60_000,
    firing=True,
)


TOLD = asdict(ALERT)


class Page:
    """Something that answers HTTP on loopback, with one answer after the other; the last one again and again."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, body = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(code if self.path == "/alerts.json" else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


Served = Callable[..., str]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Serve these answers (JSON, or a code and bytes); the address."""
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    pages: list[Page] = []

    def serve(*answers: Any) -> str:
        pages.append(Page(*(it if isinstance(it, tuple) else (200, json.dumps(it).encode()) for it in answers)))
        return pages[-1].address

    yield serve
    for page in pages:
        page.close()


def said(*found: Alert, **more: Any) -> dict[str, Any]:
    return {"now_ms": START_MS, "problem": None, "alerts": [asdict(each) for each in found], **more}


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that was printed to stderr; nothing went to stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err.rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--http", "nowhere"], "--http 'nowhere' should look like HOST:PORT"),
        (["--http", "h:1", "--bootstrap", "h:2"], "not allowed with argument"),
        (["--http", "h:1", "--set", "lag_min=5"], "a page has its own thresholds"),
        (["--http", "h:1", "--for", "5s"], "--for and --client-config go with --bootstrap"),
        (["--bootstrap", "h:1", "--every", "0s"], "--every has to be more than nothing"),
        (["--rules", "--set", "patience=5"], "there is no threshold 'patience'"),
        (["--rules", "--set", "lag_min=many"], "'many' is not a number"),
        (["--rules", "--set", "idle_ms=long"], "'long' is not a duration"),
        (["--rules", "--set", "idle_ms"], "should look like NAME=VALUE"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["alerts", *arguments]) == 2
    assert words in complaint(capsys)


def test_nothing_fires_is_exit_code_0(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "--http", served(said())]) == 0
    assert capsys.readouterr() == ("Nothing fires.\n", "")


def test_an_alert_is_exit_code_1_and_a_paragraph_for_people(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "--http", f"http://{served(said(ALERT))}/"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == r"WARNING  LongTransaction  app\x1b[31m", "what a terminal would act on is made visible"
    assert lines[1] == "  seen   app is Ongoing for 11 min"
    assert lines[2].startswith("  since  ")
    assert lines[2].endswith(" (1 min)")
    assert lines[3:] == ["  means  Readers wait.", "  do     onceflow txns abort ID", "", "1 alert fires."]


def test_what_is_only_pending_is_shown_and_is_exit_code_0(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    pending = Alert(**{**asdict(ALERT), "firing": False})
    assert main(["alerts", "--http", served(said(pending))]) == 0
    out = capsys.readouterr().out
    assert out.startswith("pending  LongTransaction")
    assert out.endswith("Nothing fires.\n")


def test_json_has_everything_and_the_same_exit_code(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "--json", "--http", served(said(ALERT, unknown=["DiskSlow"]))]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["alerts"] == [asdict(ALERT)]
    assert (found["at_ms"], found["unknown"]) == (START_MS, ["DiskSlow"])


def test_rules_that_the_page_could_not_check_are_named(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    main(["alerts", "--http", served(said(unknown=["DiskSlow", "LagGrowing"]))])
    assert capsys.readouterr().err == "Not checked, since it cannot be seen from there: DiskSlow, LagGrowing.\n"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((404, b"no"), "answers 404 Not Found: this is no page of onceflow's"),
        ((200, b"<html>"), "does not answer in JSON: this is no page of onceflow's"),
        ([], "is not what onceflow's page does"),
        ({"alerts": [{"rule": "x"}]}, "is not what onceflow's page does"),
        ({"alerts": [{**TOLD, "since_ms": "today"}], "now_ms": 1}, "is not what onceflow's page does"),
        ({"alerts": [{**TOLD, "subject": ["x"]}], "now_ms": 1}, "is not what onceflow's page does"),
        ({"alerts": [TOLD], "now_ms": 1.5}, "is not what onceflow's page does"),
        ({"alerts": [TOLD], "now_ms": 1, "unknown": [7]}, "is not what onceflow's page does"),
        ({"alerts": [], "now_ms": None}, "knows nothing at the moment: it has just been started"),
        (said(problem={"text": "Kafka is away"}), "knows nothing at the moment: Kafka is away"),
    ],
)
def test_who_cannot_look_says_why_and_is_exit_code_3(
    served: Served, answer: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["alerts", "--http", served(answer)]) == 3
    assert words in complaint(capsys)


@pytest.mark.parametrize(
    ("option", "words"), [("--http", "cannot ask the page"), ("--bootstrap", "cannot reach a broker")]
)
def test_an_address_where_nobody_is_is_exit_code_3(option: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        assert main(["alerts", option, f"127.0.0.1:{holder.getsockname()[1]}"]) == 3
    assert words in complaint(capsys)


class Watch:
    """Instead of `ClusterWatch`: one snapshot after the other, the last again and again. One may be an exception."""

    script: list[Snapshot | BaseException]

    def __init__(self, settings: object) -> None:
        self._left = list(self.script)

    def take(self) -> Snapshot:
        it = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        if isinstance(it, BaseException):
            raise it
        return it

    def close(self) -> None:
        pass


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def play(*snapshots: Snapshot | BaseException) -> None:
        Watch.script = list(snapshots)
        monkeypatch.setattr("onceflow.client.watching.ClusterWatch", Watch)

    return play


def kafka(second: int, **known: Any) -> Snapshot:
    return Snapshot(at_ms=START_MS + 1000 * second, cluster_id="c", software="Apache Kafka", **known)


def test_a_look_from_outside_says_what_it_could_not_see_or_not_decide(
    script: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    notes = ("ListGroups is not allowed\x07",)
    script(kafka(0, partitions=(orders(5, 5),), notes=notes, transactions=(transaction(0),)))
    assert main(["alerts", "--bootstrap", "h:1", "--for", "0s"]) == 0
    out, err = capsys.readouterr()
    assert out == "Nothing fires.\n"
    assert err.splitlines() == [
        "Looked for 0 ms. Not long enough to be sure: LsoStuck (1 min), HighAbortRate (1 min). See --for and --watch.",
        "Not checked, since it cannot be seen from there: CoordinatorUnavailable, ZombieProducer, LagGrowing, "
        "CommitLatencyHigh, DiskSlow, AuthenticationFailures.",
        r"Note: ListGroups is not allowed\x07",
    ]


def test_a_look_from_outside_goes_on_for_as_long_as_it_is_told(
    script: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceflow.cli.alerts.time", time := SteppingTime())
    stuck = {"partitions": (orders(5, 9),)}
    script(*(kafka(second, **stuck) for second in (0, 31, 62)))
    limits = ["--for", "50s", "--every", "31s"]
    assert main(["alerts", "--bootstrap", "h:1", "--json", *limits]) == 1
    assert time.now == 50
    found = json.loads(capsys.readouterr().out)
    assert [each["rule"] for each in found["alerts"]] == ["LsoStuck"]
    assert found["looked_ms"] == 62_000


def test_thresholds_can_be_set_for_a_look_from_outside(
    script: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "h:1")
    script(kafka(10, transactions=(transaction(0),), producers=(wrote(0),)))
    assert main(["alerts", "--for", "0s"]) == 0
    assert main(["alerts", "--for", "0s", "--set", "idle_ms=9s"]) == 1
    assert "StaleProducerEpoch  app" in capsys.readouterr().out


def test_watch_prints_what_fires_and_what_clears_and_survives_an_outage(
    script: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    late = {"transactions": (transaction(-700),)}
    away = OnceflowError("Kafka is away.")
    script(kafka(0), kafka(2, **late), away, away, kafka(4, **late), kafka(6), KeyboardInterrupt())
    assert main(["alerts", "--bootstrap", "h:1", "--watch", "--json", "--every", "1ms"]) == 130
    out, err = capsys.readouterr()
    events = [(each["event"], each["rule"]) for each in map(json.loads, out.splitlines())]
    assert sorted(events[:2]) == [("fires", "LongTransaction"), ("fires", "StaleProducerEpoch")]
    assert sorted(events[2:]) == [("clears", "LongTransaction"), ("clears", "StaleProducerEpoch")]
    assert err == "onceflow: Kafka is away. Trying again.\n", "said once"


def test_the_rules_and_their_thresholds_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "--rules", "--set", "idle_ms=90s"]) == 0
    out = capsys.readouterr().out
    assert "HighAbortRate  warning\n  In the last 5m more than 5 % as many" in out
    assert "1 min 30 s" in out
    assert main(["alerts", "--rules", "--json", "--set", "idle_ms=90s"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["thresholds"]["idle_ms"] == 90_000
    stale = next(each for each in found["rules"] if each["name"] == "StaleProducerEpoch")
    assert "> 90 and" in stale["expression"]


def test_the_rule_file_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "--prometheus"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["groups"][0]["name"] == "onceflow"
