"""What commands print: names steer no terminal, whoever has chosen them."""

from __future__ import annotations

import argparse
import json
import sys

import pytest

from onceflow.cli import consume
from onceflow.cli.output import new_table, overwrite, print_json, print_table, say, say_lines
from onceflow.doctor.display import print_report
from onceflow.doctor.findings import Line, Report, Verdict

HOSTILE = "[red]g\x1b]0;owned\x07\r\n\u202e\x9b2J"
SHOWN = "[red]g\\x1b]0;owned\\x07\\r\\n\\u202e\\x9b2J"


def test_a_sentence_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"There was no group {HOSTILE}.")
    say(f"onceflow: {HOSTILE}", err=True)
    assert capsys.readouterr() == (f"There was no group {SHOWN}.\n", f"onceflow: {SHOWN}\n")


def test_line_breaks_of_ours_stay(capsys: pytest.CaptureFixture[str]) -> None:
    say_lines("one\ntwo\x1b")
    assert capsys.readouterr().out == "one\ntwo\\x1b\n"


def test_a_line_in_place_is_cleared_by_us_only(capsys: pytest.CaptureFixture[str]) -> None:
    overwrite(HOSTILE)
    assert capsys.readouterr().out == f"\r\x1b[2K{SHOWN}"


def test_a_cell_of_a_table_is_text_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    table = new_table("group", lag="right")
    table.add_row(HOSTILE, "[bold]5[/bold]")
    print_table(table)
    out = capsys.readouterr().out
    assert SHOWN in out
    assert "[bold]5[/bold]" in out
    assert out.replace("\n", "").isprintable()


def test_json_has_the_name_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"group": HOSTILE})
    out = capsys.readouterr().out
    assert json.loads(out) == {"group": HOSTILE}
    assert out.replace("\n", "").isprintable()


def test_the_doctors_report_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    line = Line(check="c", subject=HOSTILE, verdict=Verdict.FAULT, title="t", found=HOSTILE, why="w", fix=HOSTILE)
    print_report(Report(lines=(line,)))
    out = capsys.readouterr().out
    assert out.count(SHOWN) == 3
    assert out.replace("\n", "").isprintable()


class Message:
    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 1

    def headers(self) -> list[tuple[str, bytes]]:
        return [("h\x1b[0m", b"\x9b")]

    def key(self) -> bytes:
        return b"k\x1b[1m"

    def value(self) -> bytes:
        return b"first\n\tsecond \x1b[2J \xff"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_records_are_their_bytes_in_a_pipe_and_text_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    args = argparse.Namespace(null_value="null", offsets=False, headers=True, keys=True)
    line = consume._text_line(args)(Message())
    if is_terminal:
        assert line == b"h\\x1b[0m=\\x9b\tk\\x1b[1m\tfirst\n\tsecond \\x1b[2J \\xff\n"
    else:
        assert line == b"h\x1b[0m=\x9b\tk\x1b[1m\tfirst\n\tsecond \x1b[2J \xff\n"
