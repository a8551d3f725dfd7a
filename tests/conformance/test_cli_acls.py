"""`onceflow acls`, as a process, against both brokers as they are without an authorizer."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import RunningBroker
from tests.conformance.test_cli import Shell


@pytest.fixture
def shell(broker: RunningBroker) -> Shell:
    return Shell(broker.bootstrap)


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["add", "--principal", "User:alice", "--operation", "read", "--topic", "t"],
        ["delete", "--principal", "User:alice"],
    ],
    ids=lambda words: words[0],
)
def test_a_broker_without_acls_says_so(shell: Shell, words: list[str]) -> None:
    assert "this broker has no ACLs: everybody may do everything" in shell.fails("acls", *words)
