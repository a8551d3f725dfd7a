"""No false alarms: whatever happens to the processes of a correct system, its history has no anomalies.

And none of that by accident: with a defect in the broker, the same histories have the anomaly that it is known for.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.verify.anomalies import ANOMALIES, check
from onceflow.verify.history import History
from tests.support.effort import examples
from tests.unit.verify.legal_system import System
from tests.unit.verify.story import names_in

DEFECTS = {
    "acknowledged before it is written": "lost write",
    "deduplication off": "duplicate",
    "aborted list empty": "aborted read",
    "last stable offset ignored": "read before commit",
    "marker lost": "torn transaction",
    "epoch check off": "fenced write",
    "offsets not committed": "offsets moved back",
    "last record of a poll skipped": "skipped offsets",
    "half of it outside of the transaction": "state mismatch",
}
SEEDS = range(8)


def run(seed: int, defect: str | None = None, choices: int = 2500) -> History:
    return System(randbytes(seed, choices), defect).history()


def randbytes(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


@examples(20, soak=600)
@given(st.one_of(st.binary(max_size=600), st.builds(randbytes, st.integers(0, 2**32), st.integers(0, 3000))))
def test_correct_system_has_no_anomalies(choices: bytes) -> None:
    assert check(System(choices).history()) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_correct_system_has_no_anomalies_in_the_histories_that_defects_show_in(seed: int) -> None:
    assert check(run(seed)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_anomalies_other_than_missing_records_do_not_depend_on_the_end_of_the_run(seed: int) -> None:
    """A run that did not come to its end: the final read stopped anywhere."""
    whole = run(seed)
    some = whole.final[: len(whole.final) // 2]
    for final in ([], some):
        assert check(History(whole.operations, final, derivations=whole.derivations, is_drained=False)) == []


def test_legal_histories_have_everything_that_can_happen() -> None:
    found: Counter[str] = Counter()
    for seed in SEEDS:
        found.update(f"{each.f} {each.outcome}" for each in run(seed).operations)
    kinds = {f"{f} {outcome}" for f in ("take", "write", "commit", "abort", "read") for outcome in ("ok", "unknown")}
    assert kinds | {"commit failed", "abort failed"} <= found.keys()


@pytest.mark.parametrize("defect", DEFECTS)
def test_defect_is_called_by_its_name(defect: str) -> None:
    assert DEFECTS[defect] in ANOMALIES
    assert any(DEFECTS[defect] in names_in(run(seed, defect)) for seed in SEEDS)
