"""Apache Kafka, watched by asking it: the page of `onceflow dashboard` in a real browser, and `onceflow alerts`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from onceflow.cli import main
from tests.monitor.test_dashboard import dashboard
from tests.monitor.test_page import choose, row, sees, state_of
from tests.support.apache_kafka import QUICK_JVM_OPTIONS, ApacheKafka
from tests.support.brokers import started
from tests.support.browser import Page
from tests.support.raw import Wire
from tests.support.raw_transactions import V2, TransactionalProducer

pytestmark = pytest.mark.faults
LOWERED = ("--set", "open_ms=1s", "--set", "lso_stuck_ms=1s")


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with started(lambda: ApacheKafka(jvm_options=QUICK_JVM_OPTIONS)) as running:
        yield running


@pytest.fixture
def wire(kafka: ApacheKafka) -> Iterator[Wire]:
    with Wire(kafka.bootstrap) as connection:
        yield connection


def test_the_page_shows_what_kafka_tells_and_says_what_it_does_not(
    kafka: ApacheKafka, wire: Wire, browser: Page
) -> None:
    wire.create_topic("orders", 2)
    first = TransactionalProducer(wire, "orders-1", V2).init()
    first.write("orders", "a", "b")
    first.commit_offset("readers", "orders", 1)
    first.commit()
    with dashboard("--bootstrap", kafka.bootstrap) as shown:
        browser.look()
        browser.forget()
        browser.visit(shown.url)
        sees(browser, f"{state_of('orders-1')} === 'CompleteCommit'", "what was before")
        second = TransactionalProducer(wire, "orders-2", V2).init()
        second.write("orders", "c", "d", "e")

        sees(browser, f"{state_of('orders-2')} === 'Ongoing'", "the open transaction in the diagram")
        assert "orders-0" in choose(browser, "orders-2")
        assert "since offset 3" in sees(browser, row("producer-table", "since offset"), "who holds it open")
        lag = "[...document.querySelectorAll('#groups *')].some(each => each.textContent.trim() === 'lag 2')"
        sees(browser, lag, "the lag of the group, up to the last stable offset")
        unwatched = browser.run("document.getElementById('unwatched').innerText")
        assert "ZombieProducer" in unwatched
        assert browser.run("document.getElementById('calm').innerText") == (
            "✓ Nothing is wrong with what can be seen from here."
        )
        assert "Not known here" in browser.run("document.getElementById('fencings').innerText")
        assert browser.run("document.querySelector('[data-figure=records_in] em').textContent") == "not known"

        second.commit()
        sees(browser, f"{state_of('orders-2')} === 'CompleteCommit'", "its end in the diagram")
        assert "✓ committed" in sees(browser, row("ended", "orders-2"), "its end in the list")
        assert browser.complaints == []


def test_a_transaction_left_open_fires_and_its_end_clears(
    kafka: ApacheKafka, wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    def look(for_: str) -> tuple[int, dict[str, str]]:
        options = ("--bootstrap", kafka.bootstrap, "--for", for_, "--every", "300ms", "--json", *LOWERED)
        code = main(["alerts", *options])
        found = json.loads(capsys.readouterr().out)["alerts"]
        return code, {each["rule"]: each["subject"] for each in found if each["firing"]}

    wire.create_topic("left")
    producer = TransactionalProducer(wire, "left-open", V2).init()
    producer.write("left", "a")
    assert look("2s") == (1, {"LongTransaction": "left-open", "LsoStuck": "left-0"})
    producer.abort()
    assert look("2s") == (0, {})
