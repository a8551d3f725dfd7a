"""The verdicts of the benchmarks: what is compared with what, and when a target counts as met."""

from __future__ import annotations

import pytest
from benchmarks.report import cells
from benchmarks.results import Case, Results, Sample
from benchmarks.targets import COMMIT_P99, COMMIT_RATE, SHARE_IN_TRANSACTIONS, OwnTarget, Target


def results_of(case: Case, *samples: tuple[str, int, float]) -> Results:
    """`samples` are broker, round and value."""
    results = Results()
    for broker, number, value in samples:
        results.add(case, Sample(case=case.key, broker=broker, round=number, value=value))
    return results


def verdict(case: Case, *samples: tuple[str, int, float]) -> bool | None:
    [(_, value, _)] = results_of(case, *samples).rows()
    return value.met


def case(target: Target | OwnTarget | None = None, unit: str = "/s") -> Case:
    return Case(key="k", title="title", unit=unit, target=target)


@pytest.mark.parametrize(("ours", "met"), [(199, False), (200, True), (201, True)])
def test_commit_rate_must_be_twice_that_of_kafka(ours: float, met: bool) -> None:
    assert verdict(case(COMMIT_RATE), ("kafka", 0, 100), ("onceflow", 0, ours)) is met


@pytest.mark.parametrize(("ours", "met"), [(4.9, True), (5.0, True), (5.1, False)])
def test_p99_of_a_commit_must_be_half_that_of_kafka(ours: float, met: bool) -> None:
    assert verdict(case(COMMIT_P99, "ms"), ("kafka", 0, 10), ("onceflow", 0, ours)) is met


@pytest.mark.parametrize("kafka", [50.0, 100.0])
@pytest.mark.parametrize(("ours", "met"), [(96.9, False), (97.0, True)])
def test_target_of_a_share_is_about_ours_alone(kafka: float, ours: float, met: bool) -> None:
    share = case(SHARE_IN_TRANSACTIONS, "%")

    assert verdict(share, ("kafka", 0, kafka), ("onceflow", 0, ours)) is met
    assert verdict(share, ("onceflow", 0, ours)) is met


@pytest.mark.parametrize(("ours", "met"), [(100.0, True), (103.0, True), (103.1, None), (144.0, None)])
def test_share_that_cannot_be_has_no_verdict(ours: float, met: bool | None) -> None:
    share = case(SHARE_IN_TRANSACTIONS, "%")

    assert verdict(share, ("kafka", 0, 99), ("onceflow", 0, ours)) is met
    [row] = cells(results_of(share, ("onceflow", 0, ours)))
    assert row[4] == f"ours ≥ 97 %{' met' if met else ' no verdict: noise'}"


def test_target_of_a_share_stands_beside_the_range_of_ours() -> None:
    samples = [("onceflow", 0, 95.0), ("onceflow", 1, 99.0), ("onceflow", 2, 98.0), ("kafka", 0, 50.0)]
    [row] = cells(results_of(case(SHARE_IN_TRANSACTIONS, "%"), *samples))

    assert row[4] == "ours ≥ 97 % (95.0-99.0) met"


def test_share_that_was_not_measured_for_ours_has_no_verdict() -> None:
    assert verdict(case(SHARE_IN_TRANSACTIONS, "%"), ("kafka", 0, 100)) is None


def test_table_shows_a_share_beside_its_target() -> None:
    [row] = cells(results_of(case(SHARE_IN_TRANSACTIONS, "%"), ("kafka", 0, 80), ("onceflow", 0, 98.5)))

    assert row[:5] == ("title", "80 %", "98.5 %", "1.23x", "ours ≥ 97 % met")


def test_ratios_are_taken_round_by_round() -> None:
    samples = [("kafka", 0, 10.0), ("onceflow", 0, 20.0), ("kafka", 1, 100.0), ("onceflow", 1, 300.0)]
    [(_, value, _)] = results_of(case(), *samples).rows()

    assert value.ratios == (2.0, 3.0)
    assert (value.kafka, value.ours) == (55.0, 160.0)


def test_fsync_is_compared_with_what_kafka_did_in_the_case_beside_it() -> None:
    results = results_of(case(), ("kafka", 0, 10.0), ("onceflow", 0, 40.0))
    fsync = Case(key="k/fsync", title="fsync", unit="/s", kafka_key="k")
    results.add(fsync, Sample(case=fsync.key, broker="onceflow-fsync", round=0, value=5.0))
    [(_, plain, _), (_, synced, _)] = results.rows()

    assert (plain.ours, plain.ratio) == (40.0, 4.0)
    assert (synced.kafka, synced.ours, synced.ratio) == (10.0, 5.0, 0.5)
