"""Java's properties files."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceflow.errors import ConfigError
from onceflow.properties import parse_properties, read_properties


def test_everything_that_such_a_file_may_have() -> None:
    text = r"""
# a comment
! another
plain=value
  spaced = x
colon: y
blank z
empty=
url=a=b:c
escaped\=name=v\\w\tx
unicode=\u00e9
long=one,\
     two,\
     three
"""
    assert parse_properties(text, "f") == {
        "plain": "value",
        "spaced": "x",
        "colon": "y",
        "blank": "z",
        "empty": "",
        "url": "a=b:c",
        "escaped=name": "v\\w\tx",
        "unicode": "\u00e9",
        "long": "one,two,three",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [("a=1\nsecret", "f, line 2: this is not NAME=VALUE"), ("a=1\n\na=2", "f, line 3: a is set twice")],
)
def test_a_mistake_is_told_with_its_line_and_without_what_it_says(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        parse_properties(text, "f")
    assert "secret" not in str(error.value)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read .*No such file"):
        read_properties(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_properties(tmp_path / "binary")
