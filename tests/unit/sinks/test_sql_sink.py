"""Settings of SqlSink that are refused before there is a query, and what a sink cannot do."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from onceflow.errors import ConfigError
from onceflow.sinks import SqlSink, Table

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no app id": ({"app_id": " ", "table": "t"}, "app_id must be a name.*the database"),
    "no table": ({}, "which table"),
    "both": ({"table": "t", "tables": [Table("u")]}, "which table"),
    "a table twice": ({"tables": [Table("t"), Table("t")]}, "'t' twice"),
    "an unknown mode": ({"table": "t", "mode": "merge"}, "mode='merge' does not exist"),
    "an unknown policy": ({"table": "t", "new_checkpoint": "perhaps"}, "new_checkpoint='perhaps' does not exist"),
    "an unknown database": ({"table": "t", "url": "mysql://host/db"}, "no address of a database that is known"),
    "jdbc": ({"table": "t", "url": "jdbc:postgresql://host/db"}, "leave the jdbc: away"),
}


@pytest.mark.parametrize("what", WRONG)
def test_setting_that_cannot_be_meant_is_refused(what: str, tmp_path: Path) -> None:
    settings, words = WRONG[what]
    with pytest.raises(ConfigError, match=words):
        SqlSink(**{"url": f"sqlite:///{tmp_path}/landed.db", "app_id": "app", **settings})


def test_sink_connects_to_nothing_before_the_first_micro_batch(tmp_path: Path) -> None:
    SqlSink(url=f"sqlite:///{tmp_path}/landed.db", app_id="app", table="t").close()
    SqlSink(url="postgresql://nobody@no-such-host.invalid/db", app_id="app", table="t").close()
    assert list(tmp_path.iterdir()) == []


def test_sink_cannot_be_sent_elsewhere(tmp_path: Path) -> None:
    sink = SqlSink(url=f"sqlite:///{tmp_path}/landed.db", app_id="app", table="t")
    with pytest.raises(ConfigError, match="works on the driver and cannot be sent elsewhere"):
        pickle.dumps(sink)
