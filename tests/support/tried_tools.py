"""A plugin of pytest: what became of the tests that are marked with the tool that they try.

    pytest -m tried -p tests.support.tried_tools --record FILE

It imports nothing of ours, since pytest rewrites the assertions of what it imports first.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka_jars import KAFKA_VERSION

_TOOLS: dict[str, dict[str, Any]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, help="where to write what became of the tests with the mark `tried`")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if (mark := item.get_closest_marker("tried")) is not None:
        tool, what = mark.args
        version = mark.kwargs.get("version", KAFKA_VERSION)
        row = _TOOLS.setdefault(tool, {"tool": tool, "version": version, "tried": {}})
        row["tried"][what] = row["tried"].get(what, True) and report.passed
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.getoption("record").write_text(json.dumps([_TOOLS[tool] for tool in sorted(_TOOLS)]))
