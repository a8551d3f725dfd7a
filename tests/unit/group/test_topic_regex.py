from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.group.topic_regex import LENGTH_MAX, BadRegex, TopicRegex


@pytest.mark.parametrize(
    ("regex", "name"),
    [
        ("orders", "orders"),
        ("orders.*", "orders-eu"),
        ("", ""),
        ("a|b|", "b"),
        ("(a|b)+c?", "abab"),
        ("^orders$", "orders"),
        (r"\Aorders\z", "orders"),
        (r"orders\.eu", "orders.eu"),
        (r"\Qa.b*c\E-[0-9]+", "a.b*c-12"),
        (r"\Qab\E+", "abbb"),
        (r"\Qab", "ab"),
        ("[a-c]{2,3}", "abc"),
        ("[a-c]{2}", "ab"),
        ("[a-c]{2,}", "abcabc"),
        ("[^a-c]+", "xyz"),
        ("[]a]+", "]a"),
        ("[a-]+", "a-"),
        (r"[\d_]+", "1_2"),
        (r"[\-x]+", "-x"),
        ("[[:alpha:]]+[[:^alpha:]]", "ab1"),
        (r"\w+\W\d\D", "ab-1x"),
        (r"\x61\x{62}", "ab"),
        ("(?i)orders", "ORDERS"),
        ("(?i:o)rders", "Orders"),
        ("(?i)[a-c]+", "AbC"),
        ("(?is-mU)A", "a"),
        ("(?P<name>a)(?<other>b)(?:c)", "abc"),
        ("a+?b*?c??", "aab"),
        (r"\bfoo\b.*", "foo.bar"),
        (r"fo\Bo", "foo"),
        ("a{,2}", "a{,2}"),
        ("a{x}", "a{x}"),
    ],
)
def test_names_that_match(regex: str, name: str) -> None:
    assert TopicRegex(regex).matches(name)


@pytest.mark.parametrize(
    ("regex", "name"),
    [
        ("orders", "orders-eu"),
        ("orders", "my-orders"),
        ("a.c", "a\nc"),
        ("[a-c]{2,3}", "abca"),
        ("[a-c]{2,3}", "a"),
        ("(?i:o)rders", "oRDERS"),
        ("((?i)o)rders", "oRDERS"),
        (r"foo\b.*", "foobar"),
        ("a^b", "ab"),
        ("a$b", "ab"),
        ("", "a"),
        ("[^a]", ""),
    ],
)
def test_names_that_do_not(regex: str, name: str) -> None:
    assert not TopicRegex(regex).matches(name)


@pytest.mark.parametrize(
    "regex",
    [
        "(",
        ")",
        "(a",
        "[a",
        "[b-a]",
        "[[:nothing:]]",
        "a**",
        "a{2}{3}",
        "*",
        "a|*",
        "a{1001}",
        "a{3,2}",
        "\\",
        r"(a)\1",
        r"\y",
        r"\x6",
        "(?=a)",
        "(?!a)",
        "(?<=a)",
        "(?<!a)",
        "(?P<a-b>x)",
        "(?P=name)",
        "(?Px)",
        "(?z)",
        "(a{1000}){1000}",
        "((((){1000}){1000}){1000}){1000}b",
        "a" * (LENGTH_MAX + 1),
    ],
)
def test_what_is_no_expression(regex: str) -> None:
    with pytest.raises(BadRegex):
        TopicRegex(regex)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("regex", ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*){5}b", ".{0,999}b"])
def test_no_expression_takes_long(regex: str) -> None:
    """Each of the first four would keep a backtracking matcher busy for years."""
    assert not TopicRegex(regex).matches("a" * 249)


PIECES = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^a]", ".", "c"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0,2}", "{2}"])).map(lambda both: f"(?:{both[0]}){both[1]}"),
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: f"(?:{'|'.join(options)})"),
    ),
    max_leaves=6,
)


@given(regex=PIECES, names=st.lists(st.text("abc", max_size=6), max_size=8))
def test_it_agrees_with_re(regex: str, names: list[str]) -> None:
    compiled = TopicRegex(regex)
    assert [compiled.matches(name) for name in names] == [re.fullmatch(regex, name) is not None for name in names]
