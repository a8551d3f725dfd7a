"""The page about ACLs has the table that the code has."""

from __future__ import annotations

from tools.write_acl_needs import page, table, written


def test_the_table_of_permissions_is_the_one_of_the_code() -> None:
    """If not: python tools/write_acl_needs.py"""
    text = page().read_text()
    assert table() in text
    assert written(text) == text
