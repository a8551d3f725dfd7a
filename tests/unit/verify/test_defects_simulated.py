"""A checker that never finds anything proves nothing: every defect that is switched on has to show in the verdict.

Each is found in some run of a short range of seeds, under its right name, and that same run is clean without it. The
range begins where the defect shows today; what moves the runs a little (another draw of chance, another sync in the
broker) moves the run that shows it, not whether one does.
"""

from __future__ import annotations

import pytest

from onceflow.verify.simulation import SimulationResult, simulate
from tests.support.defects.broker import DEFECTS

SEARCHED = 60
FIRST_SEEDS = {
    "epoch check off in the log": 4,
    "epoch check off in the coordinator": 45,
    "epoch not raised by the end": 369,
    "prepare not logged": 38,
    "partitions not logged": 6,
    "markers not written again": 3,
    "high watermark ignored": 116,
    "acknowledged before fsync": 78,
    "torn tail kept": 76,
    "failed fsync ignored": 51,
    "offsets applied before the commit": 1,
    "offsets dropped by the commit": 2,
}
"""Where it is not the first of all."""


def first_with(name: str) -> SimulationResult:
    """The first run in which the defect shows as what it is."""
    defect = DEFECTS[name]
    begin = FIRST_SEEDS.get(name, 0)
    for seed in range(begin, begin + SEARCHED):
        with pytest.MonkeyPatch.context() as patch:
            defect.switch_on(patch)
            result = simulate(seed)
        if defect.anomaly in {each.name for each in result.anomalies}:
            return result
    raise AssertionError(f"{SEARCHED} runs do not show: {name}")


@pytest.fixture(scope="module", autouse=True)
def _a_sound_beginning() -> None:
    """What all runs begin with is made once, and not by a broker with a defect."""
    simulate(0)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_and_named_and_without_it_the_run_is_clean(name: str) -> None:
    found = first_with(name)
    sound = simulate(found.seed)
    assert sound.anomalies == []
    assert sound.problems == []


def test_there_are_at_least_ten() -> None:
    assert len(DEFECTS) >= 10
