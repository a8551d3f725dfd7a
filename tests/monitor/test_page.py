"""The page of a real broker in a real browser: what happens in the broker is to be seen, and nothing else happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onceflow
from onceflow.errors import ErrorCode
from tests.support.browser import Page
from tests.support.raw import Wire, batch
from tests.support.raw_transactions import V2, TransactionalProducer
from tests.support.waiting import eventually

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
CALM = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 600_000}


@pytest.fixture(scope="module")
def watched() -> Iterator[onceflow.Broker]:
    with onceflow.Broker(http="127.0.0.1:0", durability="os", settings=CALM) as broker:
        yield broker


@pytest.fixture
def page(browser: Page, watched: onceflow.Broker) -> Iterator[Page]:
    """On a usual screen. Every test ends with the question whether something was amiss."""
    assert watched.http_url is not None
    browser.look()
    browser.forget()
    browser.visit(watched.http_url)
    sees(browser, "document.body.dataset.connection === 'live'", "the page is live")
    yield browser
    assert browser.complaints == []
    assert all(each.startswith(f"{watched.http_url}/") for each in browser.requests), browser.requests
    assert browser.run("document.title") != "owned"


@pytest.fixture
def wire(watched: onceflow.Broker) -> Iterator[Wire]:
    with Wire(watched.bootstrap) as wire:
        yield wire


@pytest.fixture(scope="module")
def busy(watched: onceflow.Broker) -> None:
    """Something to see in most places."""
    with Wire(watched.bootstrap) as wire:
        wire.create_topic("busy", partitions=3)
        for number, name in enumerate(("worker-with-a-name-that-is-long-enough-to-be-cut-somewhere", "b", "c")):
            producer = TransactionalProducer(wire, name, V2).init()
            producer.write("busy", "a", partition=number)
            producer.commit_offset(f"group-of-{name}", "busy", 0)
            producer.commit()
        producer.write("busy", "b")


def sees(page: Page, condition: str, what: str) -> Any:
    return eventually(lambda: page.run(condition), f"{what} on the page", timeout_s=20, every_s=0.1)


def quoted(name: str) -> str:
    return json.dumps(name)


def state_of(name: str) -> str:
    return f"[...document.querySelectorAll('.dot')].find(each => each.dataset.id === {quoted(name)})?.dataset.state"


def row(place: str, *words: str) -> str:
    """The text of the first row of a table that has all these words."""
    has = " && ".join(f"each.textContent.includes({quoted(word)})" for word in words)
    return f"[...document.querySelectorAll('#{place} tbody tr')].find(each => {has})?.textContent ?? ''"


def choose(page: Page, name: str) -> str:
    found = f"[...document.querySelectorAll('.dot')].find(each => each.dataset.id === {quoted(name)})"
    page.run(f"{found}.dispatchEvent(new Event('click'))")
    text: str = page.run("document.getElementById('chosen').innerText")
    return text


def test_a_transaction_goes_through_its_states(page: Page, wire: Wire) -> None:
    wire.create_topic("orders", partitions=1)
    producer = TransactionalProducer(wire, "orders-1", V2).init()
    sees(page, f"{state_of('orders-1')} === 'Empty'", "orders-1 is Empty")

    producer.write("orders", "a", "b", "c")
    sees(page, f"{state_of('orders-1')} === 'Ongoing'", "orders-1 is Ongoing")
    told = choose(page, "orders-1")
    assert "a transaction is open" in told
    assert f"Producer id\n{producer.id}" in told
    assert "left" in told
    assert "orders-0" in told
    assert page.run("document.querySelector('#topic-table tr.waiting [data-label=\"LSO lag\"]').textContent") == "3"
    assert page.run("document.querySelector('#topic-table tr.waiting .extent').ariaLabel") == "3 of 3 offsets undecided"
    assert "since offset 0" in page.run(row("producer-table", "orders-0"))
    assert page.run("document.querySelector('[data-figure=open] b').textContent") == "1"

    producer.commit()
    sees(page, f"{state_of('orders-1')} === 'CompleteCommit'", "orders-1 is CompleteCommit")
    assert "✓ committedby its producer" in sees(page, row("ended", "orders-1"), "the end of the transaction")
    assert "✓ committed, " in page.run("document.getElementById('chosen').innerText")
    assert page.run("document.querySelector('#topic-table tr.waiting')") is None


def test_a_mark_goes_the_whole_way_even_if_the_end_was_all_that_could_be_seen(page: Page) -> None:
    way = "import('/states.js').then(module => module.way({}))"
    assert page.run(way.format("'Ongoing', 'CompleteCommit', null")) == ["PrepareCommit", "CompleteCommit"]
    again = page.run(way.format("'CompleteCommit', 'CompleteCommit', {committed: true, reason: 'client'}"))
    assert again == ["Ongoing", "PrepareCommit", "CompleteCommit"]
    timeout = page.run(way.format("'Ongoing', 'CompleteAbort', {committed: false, reason: 'timeout'}"))
    assert timeout == ["PrepareEpochFence", "PrepareAbort", "CompleteAbort"]


@pytest.mark.parametrize("is_calm", [False, True])
def test_marks_move_unless_somebody_prefers_that_they_do_not(page: Page, wire: Wire, is_calm: bool) -> None:
    wire.create_topic(f"moves-{is_calm}", partitions=1)
    producer = TransactionalProducer(wire, f"mover-{is_calm}", V2).init()
    page.look(is_calm=is_calm)
    sees(page, f"{state_of(producer.transactional_id)} === 'Empty'", "it is Empty")
    page.run("""(() => {
      const plain = Element.prototype.animate;
      window.moves = 0;
      Element.prototype.animate = function (...given) { window.moves += 1; return plain.apply(this, given); };
    })()""")
    producer.write(f"moves-{is_calm}", "a")
    sees(page, f"{state_of(producer.transactional_id)} === 'Ongoing'", "it is Ongoing")
    assert (page.run("window.moves") > 0) is not is_calm
    producer.abort()
    sees(page, row("ended", producer.transactional_id, "✕ aborted"), "the abort")


def test_a_fenced_producer_is_told_of(page: Page, wire: Wire) -> None:
    wire.create_topic("fenced", partitions=1)
    old = TransactionalProducer(wire, "worker-7", V2).init()
    old.write("fenced", "a")
    old.commit()
    new = TransactionalProducer(wire, "worker-7", V2).init()
    assert old.end_once(True).error_code == ErrorCode.PRODUCER_FENCED
    told = sees(page, row("fencings", "worker-7"), "the fencing event")
    assert f"{old.epoch} < {new.epoch}" in told
    assert page.run("Number(document.querySelector('[data-figure=fencings] b').textContent)") >= 1


def test_a_lagging_group_comes_first_and_shows_its_partitions(page: Page, wire: Wire) -> None:
    wire.create_topic("events", partitions=1)
    wire.produce("events", batch(*(str(number) for number in range(500))))
    producer = TransactionalProducer(wire, "reader", V2).init()
    for group, offset in (("quick", 500), ("slow", 20)):
        producer.commit_offset(group, "events", offset)
    producer.commit()
    sees(page, "document.querySelector('#group-list details .lag.behind')?.textContent === 'lag 480'", "the lag")
    assert page.run("document.querySelector('#group-list summary .name').textContent") == "slow"
    page.run("document.querySelector('#group-list summary').click()")
    sees(page, row("group-list", "events-0", "480"), "the partition of the group")
    page.run("document.getElementById('group-filter').value = 'quick'")
    page.run("document.getElementById('group-filter').dispatchEvent(new Event('input'))")
    names = "[...document.querySelectorAll('#group-list summary .name')].map(each => each.textContent)"
    assert page.run(names) == ["quick"]


def test_a_firing_alert_says_what_it_means_and_what_to_do(page: Page, wire: Wire) -> None:
    wire.create_topic("stuck", partitions=1)
    producer = TransactionalProducer(wire, "sleeper", V2, timeout_ms=1_500).init()
    producer.write("stuck", "a")
    place = "[...document.querySelectorAll('.alert.firing')].find(each => each.textContent.includes('sleeper'))"
    told = sees(page, f"{place}?.innerText", "the alert")
    for words in ("sleeper", "What it means", "What to do"):
        assert words in told
    assert page.run("document.title").startswith("(")
    assert page.run(f"{state_of('sleeper')}") == "Ongoing"
    assert page.run("document.querySelector('.dot[data-id=sleeper] .mark').classList.contains('old')")
    producer.abort()
    sees(page, f"!{place}", "the alert is gone")


def test_names_from_the_cluster_do_nothing(page: Page, wire: Wire) -> None:
    wire.create_topic("hostile", partitions=1)
    producer = TransactionalProducer(wire, HOSTILE, V2).init()
    producer.write("hostile", "a")
    producer.commit_offset(HOSTILE, "hostile", 0)
    producer.commit()
    sees(page, row("ended", HOSTILE), "the name as it is written")
    names = "[...document.querySelectorAll('#group-list .name')].map(each => each.textContent)"
    sees(page, f"{names}.includes({quoted(HOSTILE)})", "the group's name")
    assert HOSTILE in choose(page, HOSTILE)
    assert page.run("[...document.images].map(each => each.getAttribute('src'))") == ["icon.svg"]
    assert page.run("document.scripts.length") == 1


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(("width", "is_dark"), [(360, False), (360, True), (800, False), (1280, True)])
def test_it_fits_every_screen_by_day_and_by_night(page: Page, width: int, is_dark: bool) -> None:
    page.look(width=width, height=800, is_dark=is_dark)
    sees(page, "document.querySelectorAll('.dot').length > 1", "some marks")
    sees(page, "document.querySelectorAll('#ended tbody tr').length > 1", "some ends")
    assert page.run("document.documentElement.scrollWidth") == width
    for text, ground in (("body", "body"), (".hint", "body"), ("td", ".card"), (".tile b", ".tile")):
        assert page.run(f"({CONTRAST})('{text}', '{ground}')") >= 4.5, text
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(","))) < 200) is is_dark


CONTRAST = """(text, ground) => {
  const light = (selector, name) => {
    const parts = getComputedStyle(document.querySelector(selector))[name].match(/[0-9.]+/g).slice(0, 3);
    const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = parts.map((c) => linear(Number(c) / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const pair = [light(text, "color"), light(ground, "backgroundColor")];
  return Math.max(...pair) / Math.min(...pair);
}"""


@pytest.mark.usefixtures("busy")
def test_everything_can_be_done_with_the_keyboard(page: Page) -> None:
    sees(page, "document.querySelectorAll('.dot').length > 1", "some marks")
    assert page.run("document.querySelectorAll('.dot[tabindex=\"0\"]').length") == 1
    page.run("document.querySelector('.dot[tabindex=\"0\"]').focus()")
    page.press("ArrowRight")
    chosen = page.run("document.activeElement.dataset.id")
    page.press("Enter")
    assert page.run("document.querySelector('#chosen h3').textContent") == chosen
    assert page.run("document.activeElement.getAttribute('aria-label')").startswith(f"{chosen}: ")
    unnamed = """[...document.querySelectorAll("a, button, input, summary, [tabindex], table, svg:not([aria-hidden])")]
      .filter((each) => each.checkVisibility() && !(each.ariaLabel || each.textContent.trim() || each.labels?.length))
      .map((each) => each.outerHTML)"""
    assert page.run(unnamed) == []


def test_paused_it_asks_for_nothing_and_goes_on_when_told_to(page: Page) -> None:
    page.run("document.getElementById('pause').click()")
    assert page.run("document.body.dataset.connection") == "paused"
    page.run("window.asked = 0; window.plain = fetch")
    page.run("window.fetch = (...given) => { asked += 1; return plain(...given); }")
    page.run("new Promise(done => setTimeout(done, 1300))")
    assert page.run("asked") == 0
    page.run("document.getElementById('pause').click()")
    sees(page, "asked > 0 && document.body.dataset.connection === 'live'", "it is live again")


def test_the_page_says_that_the_broker_is_gone_and_comes_back_by_itself(browser: Page, tmp_path: Path) -> None:
    first = onceflow.Broker(tmp_path, http="127.0.0.1:0", durability="os")
    with first:
        assert first.http_url is not None
        url = first.http_url
        browser.look()
        browser.visit(url)
        sees(browser, "document.body.dataset.connection === 'live'", "the page is live")
        first.kill()
        told = sees(browser, "document.getElementById('banner').textContent", "the banner")
        assert told.startswith("The broker does not answer since ")
        assert browser.run("document.getElementById('connection').textContent") == "No answer"
    with onceflow.Broker(tmp_path, http=url.removeprefix("http://"), durability="os"):
        sees(browser, "document.body.dataset.connection === 'live'", "the page is live again")
        assert browser.run("document.getElementById('banner').hidden")
    # The browser itself reports what it could not load; nobody can keep it from that.
    assert all("ERR_CONNECTION" in each or "ERR_EMPTY" in each for each in browser.complaints)
