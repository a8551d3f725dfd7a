"""docs/clients.md says all that was tried, and how we differ. That it has the tables of the record: test_tables.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.client_tables import COLUMNS, differences, marks, recorded, tried_clients

from tests.support.clients.catalogue import CATALOGUE
from tests.support.clients.programs import SCENARIOS

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "conformance"
AGAIN = "run: make clients"


def test_every_client_of_the_catalogue_is_recorded_with_all_its_scenarios_and_nothing_else_is() -> None:
    found = {(each["client"], each["version"]): tuple(each["results"]) for each in recorded()["clients"]}
    assert found == {(each.client, each.version): each.scenarios for each in CATALOGUE}, AGAIN


def test_every_scenario_stands_in_one_column() -> None:
    assert sorted(SCENARIOS) == sorted(scenario for column in COLUMNS.values() for scenario in column)


def test_every_test_that_tries_a_tool_is_recorded_and_nothing_else_is() -> None:
    found = {(each["tool"], what) for each in recorded()["tools"] for what in each["tried"]}
    assert found == {arguments for _, arguments in marks("tried")}, AGAIN


def test_what_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {"records": None, "none": None, "gzip": "the broker closed the connection"}
    record = {"clients": [{"client": "some", "version": "1.0", "results": results}]}
    monkeypatch.setattr("tools.client_tables.recorded", lambda: record)
    assert "| some | 1.0 | yes | **fails**: gzip | - |" in tried_clients()


def test_every_difference_of_the_suite_is_on_the_page_with_its_reason() -> None:
    """Whoever marks a test in another way than with a sentence, in place, would leave the table without it."""
    marked = [len(re.findall(r"mark\.onceflow_differs\b", path.read_text())) for path in TESTS.rglob("*.py")]
    found = [reason for _, (reason,) in marks("onceflow_differs")]
    assert sum(marked) == len(found)
    assert all(reason in differences() for reason in found)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_page_is_linked(page: str) -> None:
    assert "docs/clients.md" in (ROOT / page).read_text()
