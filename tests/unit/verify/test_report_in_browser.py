"""The page of a report in a real browser: it draws, it moves, it tells, and it stays quick."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.verify import report
from onceflow.verify.history import History, Operation, Outcome
from onceflow.verify.verdict import Verdict
from tests.support.browser import Page, found_or_skip
from tests.unit.verify.sample_run import SampleRun

COLOURED = """(() => {
  const canvas = document.getElementById("lanes");
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const found = new Set();
  for (let i = 0; i < pixels.length; i += 4) found.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
  return [...found];
})()"""
PLACE = "(({x, y, width, height}) => ({x, y, width, height}))(document.getElementById('lanes').getBoundingClientRect())"
LABEL = "document.getElementById('chosen').textContent"
DRAWN = "document.getElementById('lanes').toDataURL()"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with Page(found_or_skip(), tmp_path_factory.mktemp("browser")) as page:
        yield page
        assert page.complaints == []


@pytest.fixture
def shown(page: Page, tmp_path: Path) -> Page:
    """A run with anomalies, on a usual screen."""
    run = SampleRun()
    page.look()
    page.open(report.write(tmp_path, run.verdict(anomalies=run.anomalies()), run.history()))
    return page


def colours(page: Page, *names: str) -> set[int]:
    style = "getComputedStyle(document.documentElement).getPropertyValue('--{}').trim()"
    return {int(page.run(style.format(name)).removeprefix("#"), 16) for name in names}


def lanes(page: Page) -> dict[str, float]:
    page.run("document.getElementById('timeline').scrollIntoView({behavior: 'instant'})")
    place: dict[str, float] = page.run(PLACE)
    return place


@pytest.mark.parametrize("is_dark", [False, True])
def test_every_outcome_has_its_colour_in_light_and_dark(shown: Page, is_dark: bool) -> None:
    shown.look(is_dark=is_dark)
    shown.press("Escape")  # and wait until it is drawn anew
    assert colours(shown, "ok", "failed", "unknown-fill", "committed", "fault", "life") <= set(shown.run(COLOURED))


def test_keys_wheel_and_drag_move_the_timeline(shown: Page) -> None:
    place = lanes(shown)
    middle = place["x"] + place["width"] / 2, place["y"] + 60
    shown.run("document.getElementById('lanes').focus()")
    drawn = [shown.run(DRAWN)]
    for key in ("+", "ArrowRight"):
        shown.press(key)
        drawn.append(shown.run(DRAWN))
    shown.mouse("mouseWheel", *middle, deltaX=0, deltaY=-120, modifiers=2)
    drawn.append(shown.run(DRAWN))
    shown.mouse("mousePressed", *middle, button="left", clickCount=1)
    shown.mouse("mouseMoved", middle[0] - 150, middle[1], button="left", buttons=1)
    shown.mouse("mouseReleased", middle[0] - 150, middle[1], button="left", clickCount=1)
    drawn.append(shown.run(DRAWN))
    assert len(set(drawn)) == len(drawn)
    shown.press("0")
    assert shown.run(DRAWN) == drawn[0]


def test_a_wheel_without_a_key_scrolls_the_page_and_not_the_timeline(shown: Page) -> None:
    place = lanes(shown)
    before = shown.run(DRAWN)
    shown.mouse("mouseWheel", place["x"] + 300, place["y"] + 60, deltaX=0, deltaY=120)
    assert shown.run(DRAWN) == before


def test_n_goes_to_the_next_operation_that_did_not_go_well(shown: Page) -> None:
    shown.run("document.getElementById('lanes').focus()")
    shown.press("n")
    first = shown.run(LABEL)
    shown.press("n")
    second = shown.run(LABEL)
    shown.press("p")
    assert " · failed · " in first or " · unknown · " in first
    assert second != first
    assert shown.run(LABEL) == first


def test_a_click_on_an_anomaly_shows_its_operations_in_the_timeline(shown: Page) -> None:
    before = shown.run(DRAWN)
    ids = shown.run("JSON.parse(document.querySelector('[data-operations]').dataset.operations)")
    shown.run("document.querySelector('[data-operations]').click()")
    shown.press("Shift")
    assert shown.run(DRAWN) != before
    assert all(each in shown.run(LABEL) for each in ids)
    assert colours(shown, "focus") <= set(shown.run(COLOURED))


def test_pointing_at_an_operation_tells_what_it_was(page: Page, tmp_path: Path) -> None:
    """One operation as long as the run: whatever the width, it is in the middle of its lane."""
    only = Operation(
        id="p-1.1:5", f="commit", began=0.0, ended=2.0, outcome=Outcome.OK, asked={"transaction": "<b>p-1.1/2</b>"}
    )
    verdict = Verdict(workload="copy", seed=1, brokers="onceflow", seconds=2.0)
    page.look()
    page.open(report.write(tmp_path, verdict, History([only])))
    place = lanes(page)
    at = place["x"] + place["width"] / 2, place["y"] + 46 + 4 + 12
    page.mouse("mouseMoved", *at)
    assert page.run("document.getElementById('tip').hidden") is False
    told = "commit · ok · p-1.1:5\nat 0.0 ms, took 2.000 s\n<b>p-1.1/2</b>"
    assert page.run("document.getElementById('tip').textContent") == told
    page.click(*at)
    assert page.run(LABEL) == told


def test_on_a_phone_nothing_is_wider_than_the_screen(shown: Page) -> None:
    shown.look(width=390, height=844, scale=2)
    assert shown.run("document.documentElement.scrollWidth") == 390


def test_hostile_text_runs_nothing(page: Page, tmp_path: Path) -> None:
    hostile: Any = "</script><img src=x onerror='document.title=1'><script>document.title=1</script>"
    operation = Operation(id=f"{hostile}.1:1", f=hostile, began=0.0, ended=1.0, asked={"group": hostile})
    verdict = Verdict(workload=hostile, seed=1, brokers=hostile, seconds=1.0, problems=[hostile])
    page.open(report.write(tmp_path, verdict, History([operation])))
    assert page.run("document.title").startswith("Not proven")
    assert page.run("document.images.length") == 0


def test_twenty_thousand_operations_are_drawn_without_waiting(page: Page, tmp_path: Path) -> None:
    run = SampleRun(rounds=700, transactors=12)
    history = run.history()
    assert len(history.operations) > 20_000
    page.look()
    page.open(report.write(tmp_path, run.verdict(), history))
    took_ms = page.run("""(async () => {
      const start = performance.now();
      for (let i = 0; i < 6; i++) {
        document.querySelector(i % 2 ? "[data-do=out]" : "[data-do=in]").click();
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      }
      return (performance.now() - start) / 6;
    })()""")
    assert took_ms < 2000  # about 50 without a graphics card; the machine may be busy with other things
