"""Clients that are tried by a program of their own, in whatever language they are written.

A program is started as `PROGRAM BOOTSTRAP PREFIX SCENARIO...`. It plays each scenario on the topic `PREFIX-SCENARIO`,
which is there and has two partitions, and prints a line of JSON for each: `{"scenario": "commit", "error": null}`, or
the text of what went wrong. What a client has not (transactions, a codec) it is not asked for.

A program that says that all went well may be wrong about it: `Played.check` looks at what is in the logs, too, with our
own reader of the protocol.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from onceflow.wire.batch import NO_PRODUCER_ID, BatchHeader, batches
from onceflow.wire.records import read_records
from tests.support.clients import CODECS
from tests.support.raw import Wire

__all__ = ["SCENARIOS", "TRANSACTIONS", "Played", "Program"]

TIMEOUT_S = 100
"""A scenario takes a second; each program gives up its waiting after 30 s."""
TRANSACTIONS: Final = ("commit", "abort", "offsets", "fencing")
SCENARIOS: Final = (
    "records",
    *CODECS,
    "idempotence",
    *TRANSACTIONS,
    "group",
    "rebalance",
    "consumer protocol",
    "admin",
)
"""In the order of the docs' table. "consumer protocol" is group and rebalance in the protocol of KIP-848."""


SILENT: Final = ""


@dataclass(frozen=True)
class Program:
    """How it is started. `variables` come on top of those of the environment."""

    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


class Played:
    """The scenarios of a program that has played them on a broker."""

    def __init__(self, program: Program, bootstrap: str, prefix: str, scenarios: Sequence[str]) -> None:
        self._prefix = prefix
        with Wire(bootstrap) as wire:
            for scenario in scenarios:
                wire.create_topic(self._topic(scenario), partitions=2)
        self._said = _run(program, (bootstrap, prefix, *scenarios))

    def check(self, scenario: str, wire: Wire) -> None:
        """Raises `AssertionError` unless the program says that all went well, and its topic holds what it should."""
        error = self._said.get(scenario, self._said[SILENT])
        assert error is None, error
        if (look := _LOOKS.get(scenario)) is not None:
            look(wire, self._topic(scenario))

    def _topic(self, scenario: str) -> str:
        return f"{self._prefix}-{scenario.replace(' ', '-')}"


def _run(program: Program, arguments: Sequence[str]) -> dict[str, str | None]:
    """What the program says of each scenario, and what to say of one that it says nothing of."""
    command, variables = [*program.command, *arguments], {**os.environ, **program.variables}
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False, env=variables)
        output, errors, end = done.stdout, done.stderr, f"ended with {done.returncode}"
    except subprocess.TimeoutExpired as late:
        output, errors, end = late.stdout or b"", late.stderr or b"", f"was not done within {TIMEOUT_S} s"
    silence = f"nothing was said; the program {end}:\n{errors.decode(errors='replace')[-4000:]}"
    return {SILENT: silence, **dict(map(_line, output.decode().splitlines()))}


def _line(text: str) -> tuple[str, str | None]:
    said = json.loads(text)
    return said["scenario"], said["error"]


def _codec(wire: Wire, topic: str) -> None:
    codec = next(number for number, name in enumerate(CODECS) if topic.endswith(f"-{name}"))
    assert {header.compression for header, _ in _batches(wire, topic)} == {codec}
    assert _numbers(wire, topic) == list(range(100))


def _idempotence(wire: Wire, topic: str) -> None:
    """Each batch follows the one before it, by its sequence."""
    headers, expected = [header for header, _ in _batches(wire, topic)], 0
    assert len(headers) > 1, "one batch shows no sequence"
    for header in headers:
        assert header.producer_id != NO_PRODUCER_ID
        assert header.base_sequence == expected
        expected = header.last_sequence + 1
    assert _numbers(wire, topic) == list(range(300))


def _transactions(*outcomes: Marker) -> Callable[[Wire, str], None]:
    """Nothing but transactions, which ended like this, one after the other."""

    def look(wire: Wire, topic: str) -> None:
        found = _batches(wire, topic)
        assert all(header.is_transactional for header, _ in found)
        ends = [record.key for header, data in found if header.is_control for record in read_records(data)]
        assert [Marker(struct.unpack(">hh", key or b"")[1]) for key in ends] == list(outcomes)
        assert wire.stable_end(topic) == wire.end(topic)

    return look


class Marker(IntEnum):
    ABORT = 0
    COMMIT = 1


def _batches(wire: Wire, topic: str) -> list[tuple[BatchHeader, bytes]]:
    return [(header, bytes(data)) for header, data in batches(wire.fetch(topic, 0, max_wait_ms=0).records or b"")]


def _numbers(wire: Wire, topic: str) -> list[int]:
    return [int(record.value or b"") for record in wire.records(topic)]


_LOOKS: Final[Mapping[str, Callable[[Wire, str], None]]] = {
    **dict.fromkeys(CODECS, _codec),
    "idempotence": _idempotence,
    "commit": _transactions(Marker.COMMIT, Marker.COMMIT, Marker.COMMIT),
    "abort": _transactions(Marker.ABORT, Marker.COMMIT),
    "offsets": _transactions(Marker.COMMIT, Marker.ABORT, Marker.COMMIT),
    "fencing": _transactions(Marker.ABORT, Marker.COMMIT),
}
