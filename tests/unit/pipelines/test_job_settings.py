"""Settings of sessions for pipelines."""

from __future__ import annotations

import tempfile

import pytest

from onceflow.pipelines.job import on_one_machine

SOCKETS = "spark.python.unix.domain.socket.enabled"


@pytest.mark.parametrize(("folder", "uses_sockets"), [("/tmp", True), ("/tmp/" + "long/" * 12, False)])
def test_unix_sockets_are_used_where_their_paths_fit(
    folder: str, uses_sockets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: folder)
    found = on_one_machine()
    assert (SOCKETS in found) is uses_sockets
    assert found["spark.shuffle.compress"] == "false"
