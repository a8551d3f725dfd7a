"""The parts of the Spark benchmark that need no Spark: what counts as right, what is compared with what, and how the
figures of processes are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from benchmarks import spark
from benchmarks.brokers import RunningBroker
from benchmarks.spark_jobs import processes
from benchmarks.spark_jobs.bench import Plan, Reading, Usage, Visit
from benchmarks.spark_jobs.job import AT_LEAST_ONCE, COUNT, EXACTLY_ONCE, JOBS, MAP, SPARK, Job, Query
from benchmarks.spark_jobs.processes import JobCpu, Memory, ProcessUsage, cpu_of_job, in_session, parse_stat
from benchmarks.spark_jobs.records import expected_output
from benchmarks.spark_jobs.report import HEADINGS, as_json, as_markdown, cautions, cells, conclusions
from benchmarks.spark_jobs.results import (
    SCALE,
    SIDE_BY_SIDE,
    TRIGGERS,
    Case,
    Growth,
    Measurement,
    MicroBatch,
    growth,
    rows,
    within,
)


def case(part: str = SIDE_BY_SIDE, records: int = 1_000_000, broker: str = "kafka") -> Case:
    return Case(part=part, job=MAP, size=100, records=records, broker=broker)


def taken(
    engine: str,
    *,
    of: Case | None = None,
    number: int = 0,
    seconds: float = 10.0,
    cpu_s: float = 8.0,
    pss_mb: float = 900.0,
    other_cores: float = 0.0,
    batches: tuple[MicroBatch, ...] = (),
    commits_ms: tuple[float, ...] = (),
) -> Measurement:
    of = of or case()
    return Measurement(
        case=of,
        engine=engine,
        round=number,
        records=of.records,
        seconds=seconds,
        job_cpu=JobCpu(jvm=cpu_s),
        broker_cpu_s=1.0,
        rss_mb=1000.0,
        pss_mb=pss_mb,
        other_cores=other_cores,
        batches=batches,
        commits_ms=commits_ms,
    )


# --- is the output right?


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([b"A", b"B"], None),
        ([b"A"], "has 1 visible records, and the input 2"),
        ([b"A", b"B", b"B"], "has 3 visible records, and the input 2"),
        ([b"A", b"b"], "1 values are not in upper case"),
    ],
)
def test_copies_are_right_when_each_record_is_there_once_and_changed(values: list[bytes], problem: str | None) -> None:
    output = expected_output(MAP, 2)
    for value in values:
        output.add(b"k", value)

    assert (problem or "") in (output.problem() or "")
    assert (output.problem() is None) == (problem is None)
    assert output.is_complete() == (len(values) >= 2)


def test_counts_are_right_when_the_last_ones_of_all_keys_sum_up_to_the_input() -> None:
    output = expected_output(COUNT, 7)
    for key, value in ((b"a", b"1"), (b"b", b"3"), (b"a", b"4")):
        output.add(key, value)

    assert output.is_complete()
    assert output.problem() is None


def test_counts_that_lack_a_record_or_have_one_twice_are_wrong() -> None:
    output = expected_output(COUNT, 7)
    output.add(b"a", b"6")

    assert not output.is_complete()
    assert output.problem() == "the last counts of 1 keys sum up to 6, and the input has 7"
    output.add(b"a", b"8")
    assert "sum up to 8" in (output.problem() or "")


# --- what processes use


def test_stat_of_a_process_is_read_behind_its_name_whatever_that_holds() -> None:
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    line = f"77 (a ) Z (b) S 1 77 55 0 -1 0 0 0 0 0 {ticks} {2 * ticks} {3 * ticks} {4 * ticks} 20 0 9 0 1 999 42 0 0"

    usage = parse_stat(line)

    assert (usage.pid, usage.name, usage.session, usage.is_zombie) == (77, "a ) Z (b", 55, False)
    assert (usage.own_cpu_s, usage.waited_cpu_s) == (3.0, 7.0)
    assert usage.rss_bytes == 42 * page


def test_session_holds_a_process_and_its_children_and_nobody_else() -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        found = {each.pid for each in in_session(leader.pid)}
        leader.communicate(b"\n")

    assert leader.pid in found
    assert len(found) == 2
    assert in_session(leader.pid) == []


def test_cpu_of_a_job_is_told_apart_by_who_used_it_and_nothing_is_lost() -> None:
    found = [
        ProcessUsage(1, "python", 1, False, 2.0, 0.5, 0),
        ProcessUsage(2, "java", 1, False, 10.0, 3.0, 0),
        ProcessUsage(3, "python", 1, True, 1.5, 0.0, 0),
    ]

    assert cpu_of_job(found, driver=1) == JobCpu(driver=2.0, jvm=10.0, workers=5.0)


def test_pages_shared_by_processes_are_counted_by_share() -> None:
    own = parse_stat(Path("/proc/self/stat").read_text())

    assert 0 < processes._pss_bytes(os.getpid()) <= own.rss_bytes * 1.1
    assert processes._pss_bytes(2**22 + 1) == 0, "no process has such an id"


def test_others_are_what_the_machine_did_beside_job_broker_and_benchmark() -> None:
    before = Reading(at=100.0, job_cpu=JobCpu(1.0, 3.0, 1.0), broker_cpu_s=1.0, own_cpu_s=0.5, machine_cpu_s=1000.0)
    after = Reading(at=110.0, job_cpu=JobCpu(2.0, 9.0, 4.0), broker_cpu_s=3.0, own_cpu_s=1.0, machine_cpu_s=1017.5)

    usage = Usage(before, after, Memory())

    assert (usage.seconds, usage.job_cpu, usage.broker_cpu_s) == (10.0, JobCpu(1.0, 6.0, 3.0), 2.0)
    assert usage.other_cores == pytest.approx(0.5)


def test_job_arrives_at_the_driver_as_it_was_sent() -> None:
    query = Query(source="in", target="out", per_trigger=5, checkpoint="/c")
    job = Job(engine=SPARK, kind=MAP, bootstrap="h:1", jars="a,b", warm_up=query, measured=query, trigger_seconds=1.0)

    assert Job.from_argument(job.to_argument()) == job


def test_driver_program_knows_every_job() -> None:
    from benchmarks.spark_jobs import driver

    assert set(driver.TRANSFORMED) == set(JOBS)


# --- comparisons and verdicts


def test_ratios_are_taken_within_a_round_and_their_median_is_judged() -> None:
    measured = rows(
        [
            taken(engine, number=number, seconds=seconds)
            for number, ours, theirs in ((0, 10.0, 13.0), (1, 100.0, 140.0), (2, 10.0, 11.0))
            for engine, seconds in ((EXACTLY_ONCE, ours), (SPARK, theirs))
        ]
    )

    [ours, theirs] = measured
    assert ours.ratios["rate"].by_round == pytest.approx((1.1, 1.3, 1.4))
    assert ours.ratios["rate"].median == pytest.approx(1.3)
    assert ours.ratios["rate"].met
    assert theirs.ratios == {}


@pytest.mark.parametrize(
    ("worse", "name"),
    [({"seconds": 11.9}, "rate"), ({"cpu_s": 8.1}, "cpu_s_per_million"), ({"pss_mb": 901.0}, "pss_peak_mb")],
)
def test_each_target_against_sparks_own_can_be_missed_alone(worse: dict[str, float], name: str) -> None:
    theirs = {"seconds": 14.0}
    [ours, _] = rows([taken(EXACTLY_ONCE, **worse), taken(SPARK, **theirs)])

    missed = [each for each, ratio in ours.ratios.items() if ratio.met is False]

    assert missed == [name]


def test_only_exactly_once_has_targets() -> None:
    [ours, _] = rows([taken(AT_LEAST_ONCE, seconds=100.0), taken(SPARK)])

    assert ours.ratios["rate"].median == pytest.approx(0.1)
    assert ours.ratios["rate"].met is None


def test_another_broker_or_round_is_no_reference() -> None:
    [ours, *_] = rows(
        [taken(EXACTLY_ONCE), taken(SPARK, of=case(broker="onceflow")), taken(SPARK, number=1, seconds=1.0)]
    )

    assert ours.ratios == {}


def test_cost_of_the_transaction_is_judged_against_ours_at_least_once() -> None:
    of = case(TRIGGERS)
    [ours, *_] = rows(
        [taken(EXACTLY_ONCE, of=of, cpu_s=8.4), taken(AT_LEAST_ONCE, of=of), taken(SPARK, of=of, cpu_s=20.0)]
    )

    assert ours.ratios["cpu_s_per_million"].median == pytest.approx(1.05)
    assert ours.ratios["cpu_s_per_million"].met is False


def test_rate_in_batches_leaves_out_the_start_of_the_query() -> None:
    [row] = rows([taken(SPARK, batches=(MicroBatch(0.0, 400_000, 3000.0), MicroBatch(3.0, 600_000, 5000.0)))])

    assert row.values["rate"] == pytest.approx(100_000)
    assert row.values["rate_in_batches"] == pytest.approx(125_000)
    assert row.values["batch_ms"] == 4000.0
    assert row.values["commit_ms"] is None


def test_cost_of_more_records_leaves_out_what_every_query_costs() -> None:
    fixed_s, per_million_s = 3.0, 7.0
    measured = rows(
        [
            taken(EXACTLY_ONCE, of=case(SCALE, records), cpu_s=fixed_s + per_million_s * records / 1e6)
            for records in (1_000_000, 100_000, 10_000_000)
        ]
    )

    assert growth(measured) == [
        Growth("kafka", EXACTLY_ONCE, (100_000, 1_000_000), pytest.approx(per_million_s)),
        Growth("kafka", EXACTLY_ONCE, (1_000_000, 10_000_000), pytest.approx(per_million_s)),
    ]


def test_steady_input_counts_what_began_in_the_window() -> None:
    batches = tuple(MicroBatch(float(at), 20, 100.0 + at) for at in range(10))
    whole = taken(EXACTLY_ONCE, batches=batches)

    part = within(whole, [(float(at), 1.0 + at) for at in range(10)], 3.0, 6.0, per_second=15)

    assert [batch.at for batch in part.batches] == [3.0, 4.0, 5.0]
    assert (part.records, part.seconds) == (45, 3.0), "what came in, not what the batches happened to hold"
    assert part.commits_ms == [4.0, 5.0, 6.0]
    assert part.job_cpu == whole.job_cpu


def test_engines_take_turns_in_being_first() -> None:
    plan = Plan(engines=(EXACTLY_ONCE, AT_LEAST_ONCE, SPARK))

    orders = [
        Visit(plan, SIDE_BY_SIDE, number, "kafka", cast(RunningBroker, None)).engines_in_turn() for number in range(4)
    ]

    assert [order[0] for order in orders] == [EXACTLY_ONCE, AT_LEAST_ONCE, SPARK, EXACTLY_ONCE]
    assert all(sorted(order) == sorted(plan.engines) for order in orders)


# --- what is shown


def test_table_has_a_text_under_each_heading_and_the_range_over_the_rounds() -> None:
    measured = rows(
        [
            taken(engine, number=number, seconds=seconds, commits_ms=(4.0, 5.0, 9.0) if engine == EXACTLY_ONCE else ())
            for number, ours in ((0, 8.0), (1, 5.0))
            for engine, seconds in ((EXACTLY_ONCE, ours), (SPARK, 10.0))
        ]
    )

    ours, theirs = (dict(zip(HEADINGS[:4], texts, strict=False)) | {"all": texts} for texts in cells(measured))

    assert ours["job"] == "map, 1,000,000 of 100 B"
    assert (ours["broker"], ours["engine"]) == ("Apache Kafka", "ours, exactly once")
    assert "1.62x (1.25-2.00)" in ours["all"]
    assert ours["all"][-1] == "5"
    assert theirs["k rec/s"] == "100"
    assert all(len(texts) == len(HEADINGS) for texts in cells(measured))


def test_every_target_is_told_with_its_verdict() -> None:
    measured = rows([taken(EXACTLY_ONCE, seconds=10.0, cpu_s=9.0, commits_ms=(12.0,)), taken(SPARK, seconds=13.0)])

    told = list(conclusions(SIDE_BY_SIDE, measured))

    assert [line.rsplit(": ", 1)[1] for line in told] == ["met.", "not met.", "met.", "not met."]
    assert "records per second 1.30x of Spark's own, target ≥ 1.2x: met." in told[0]
    assert "the transaction adds 12.0 ms" in told[3]


def test_documents_carry_the_figures_and_what_failed() -> None:
    measurements = [taken(EXACTLY_ONCE, commits_ms=(4.0,)), taken(SPARK)]

    document = json.loads(as_json(SIDE_BY_SIDE, measurements, {"a": "b"}, {"records": 1}, ["this one"]))
    text = as_markdown(SIDE_BY_SIDE, measurements, {"a": "b"}, ["this\none"])

    assert [row["engine"] for row in document["rows"]] == [EXACTLY_ONCE, SPARK]
    assert document["rows"][0]["ratios"]["rate"] == {"median": 1.0, "by_round": [1.0], "target": "≥ 1.2x", "met": False}
    assert document["failures"] == ["this one"]
    assert "- a: b" in text
    assert "- this one" in text


def test_other_load_is_a_caution_and_a_quiet_full_run_has_none() -> None:
    quiet, busy = taken(SPARK, other_cores=0.05), taken(SPARK, other_cores=0.9)

    assert cautions([quiet], quick=False) == []
    assert "0.90 at most" in cautions([quiet, busy, quiet], quick=False)[0]
    assert len(cautions([], quick=True)) == 1


def test_micro_batches_longer_than_the_trigger_are_a_caution_and_no_verdict() -> None:
    of = case(TRIGGERS)
    slow = taken(EXACTLY_ONCE, of=of, batches=(MicroBatch(0.0, 10, 1400.0),))
    [ours, _] = rows([slow, taken(AT_LEAST_ONCE, of=of)])

    assert ours.ratios["cpu_s_per_million"].met is None
    assert "did not keep up" in cautions([slow], quick=False)[0]
    assert cautions([taken(EXACTLY_ONCE, batches=slow.batches)], quick=False) == []


# --- what is asked for


def test_without_a_part_jobs_run_side_by_side() -> None:
    assert spark.parts_of(spark.parse([])) == [SIDE_BY_SIDE]
    assert spark.parts_of(spark.parse(["--scale", "--triggers"])) == [TRIGGERS, SCALE]


def test_quick_plan_is_the_map_job_with_small_records_on_all_engines_and_brokers() -> None:
    plan = spark.plan_of(spark.parse(["--quick"]), SIDE_BY_SIDE)

    assert (plan.records, plan.sizes, plan.jobs, plan.rounds) == (100_000, (100,), ("map",), 1)
    assert len(plan.engines) == 3
    assert len(plan.brokers) == 2
    assert plan.records > plan.per_trigger


def test_what_was_asked_for_goes_before_what_the_part_would_choose() -> None:
    asked = spark.parse(["--triggers", "--engines", "exactly_once", "spark", "--rounds", "5", "--seconds", "9"])
    plan = spark.plan_of(asked, TRIGGERS)

    assert plan.engines == ("exactly_once", "spark")
    assert (plan.rounds, plan.steady_seconds) == (5, 9.0)
    assert spark.plan_of(spark.parse(["--triggers"]), TRIGGERS).engines == (EXACTLY_ONCE, AT_LEAST_ONCE)


def test_micro_batches_are_as_large_as_the_first_mark_where_the_input_grows() -> None:
    plan = spark.plan_of(spark.parse(["--scale"]), SCALE)

    assert all(mark % plan.per_trigger == 0 for mark in plan.marks)


def test_hundred_million_records_only_on_request() -> None:
    assert max(spark.plan_of(spark.parse(["--scale"]), SCALE).marks) == 10_000_000
    assert max(spark.plan_of(spark.parse(["--scale", "--huge"]), SCALE).marks) == 100_000_000
