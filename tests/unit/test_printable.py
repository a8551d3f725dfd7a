"""Text that others have chosen: shown, and never obeyed."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.broker.log_lines import FORMAT, LogFormatter
from onceflow.printable import json_text, printable

ANY_TEXT = st.text(st.characters(codec=None, categories=None))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("Größe 5 € 日本", "Größe 5 € 日本"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("a\x9b31m\x7f", "a\\x9b31m\\x7f"),
        ("user\u202etxt.exe", "user\\u202etxt.exe"),
        ("half \ud800", "half \\ud800"),
        ("[red]not markup[/red]", "[red]not markup[/red]"),
    ],
)
def test_what_is_not_printable_is_its_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(ANY_TEXT)
def test_nothing_unprintable_is_left_and_the_result_can_be_written(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()


@given(ANY_TEXT)
def test_json_means_the_same_and_steers_nothing(text: str) -> None:
    told = json_text({text: [text]}, indent=2)
    assert json.loads(told) == {text: [text]}
    assert told.replace("\n", "").isprintable()
    told.encode()


def test_a_number_that_is_none_is_no_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text(float("nan"))


def entry(message: str, *args: object, with_traceback: bool = False) -> str:
    info = None
    if with_traceback:
        try:
            raise ValueError(*args)
        except ValueError as error:
            info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("onceflow.broker", logging.ERROR, "f.py", 1, message, args, info)
    return LogFormatter(FORMAT).format(record)


FORGED = "t1\n2026-11-19 06:00:00,000 INFO onceflow.broker: all is well\x1b[2K"


def test_an_entry_of_the_log_is_one_line_whatever_is_in_it() -> None:
    line = entry("The transaction of '%s' could not be aborted", FORGED)
    assert line.count("\n") == 0
    assert "ERROR onceflow.broker: The transaction of 't1\\n2026-11-19 06:00:00,000 INFO" in line
    assert line.isprintable()


def test_no_line_of_a_traceback_can_pass_for_an_entry() -> None:
    first, *rest = entry("It failed for %s", FORGED, with_traceback=True).split("\n")
    assert "ERROR onceflow.broker: It failed for t1\\n" in first
    assert rest[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
