"""`onceflow acls` without a broker: mistakes, and which rules and filters the words mean."""

from __future__ import annotations

import argparse

import pytest

from onceflow.cli import acls as command
from onceflow.cli import main
from onceflow.cli.acls import _filters, _rules
from onceflow.wire.acls import CLUSTER_NAME, Acl, AclFilter, Operation, Pattern, Permission, Resource

WHO = ["--principal", "User:alice"]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["acls", *words])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: ACTION"),
        (["add"], "--principal User:alice"),
        (["add", "--principal", "alice"], "should look like User:alice"),
        (["add", "--principal", "User:"], "should look like User:alice"),
        (["add", *WHO, "--topic", "t"], "say what"),
        (["add", *WHO, "--operation", "read"], "say with what"),
        (["add", *WHO, "--operation", "fly", "--topic", "t"], "invalid choice: 'fly'"),
        (["add", *WHO, "--operation", "read", "--cluster"], "with a cluster one cannot read; there are: all, create"),
        (["add", *WHO, "--operation", "read", "--transactional-id", "x"], "there are: all, write, describe"),
        (["add", *WHO, "--consumer", "--topic", "t"], "--consumer needs --group as well"),
        (["add", *WHO, "--producer", "--topic", "t", "--group", "g"], "--producer has no use for --group"),
        (["add", *WHO, "--exactly-once", "--topic", "t", "--group", "g"], "needs --transactional-id as well"),
        (["add", *WHO, "--producer", "--topic", "t", "--deny"], "takes no --operation and no --deny"),
        (["add", *WHO, "--producer", "--consumer", "--topic", "t"], "not allowed with"),
        (["delete"], "say which rules to delete"),
        (["delete", "--producer", "--topic", "t"], "say who"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["acls", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def test_every_combination_of_the_words_is_a_rule() -> None:
    words = [*WHO, "--principal", "User:bob", "--operation", "read", "--operation", "describe-configs"]
    rules = _rules(parsed("add", *words, "--topic", "t", "--topic", "u", "--host", "10.0.0.1", "--deny", "--prefixed"))
    assert len(rules) == len(set(rules)) == 8
    assert (
        Acl(
            Resource.TOPIC,
            "u",
            Pattern.PREFIXED,
            "User:bob",
            "10.0.0.1",
            Operation.DESCRIBE_CONFIGS,
            Permission.DENY,
        )
        in rules
    )


def test_the_cluster_has_one_name_whatever_else_is_prefixed() -> None:
    rules = _rules(parsed("add", *WHO, "--operation", "all", "--cluster", "--topic", "t", "--prefixed"))
    assert {(rule.name, rule.pattern) for rule in rules} == {
        (CLUSTER_NAME, Pattern.LITERAL),
        ("t", Pattern.PREFIXED),
    }


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["list"], AclFilter()),
        (["list", "--topic", "t"], AclFilter(Resource.TOPIC, "t", Pattern.MATCH)),
        (["list", "--topic", "t", "--prefixed"], AclFilter(Resource.TOPIC, "t", Pattern.PREFIXED)),
        (["list", "--prefixed"], AclFilter(pattern=Pattern.PREFIXED)),
        (["list", *WHO, "--deny"], AclFilter(principal="User:alice", permission=Permission.DENY)),
        (["delete", "--topic", "t"], AclFilter(Resource.TOPIC, "t", Pattern.LITERAL)),
        (["delete", "--topic", "t", "--prefixed"], AclFilter(Resource.TOPIC, "t", Pattern.PREFIXED)),
        (["delete", "--operation", "read"], AclFilter(operation=Operation.READ)),
        (["delete", "--host", "h"], AclFilter(host="h")),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_words_are_a_filter(words: list[str], meant: AclFilter) -> None:
    assert _filters(parsed(*words)) == [meant]


def test_a_shorthand_deletes_exactly_what_it_adds() -> None:
    words = [*WHO, "--exactly-once", "--topic", "t", "--group", "g", "--transactional-id", "x"]
    rules, filters = _rules(parsed("add", *words)), _filters(parsed("delete", *words))
    assert [sum(wanted.matches(rule) for rule in rules) for wanted in filters] == [1] * len(rules)
