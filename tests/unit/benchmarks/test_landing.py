"""The parts of the benchmark of landing that need neither Spark nor a server: what is compared with what, what is a
verdict, and what is shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from benchmarks.landing.bench import Plan, in_turn
from benchmarks.landing.plot import save_plot
from benchmarks.landing.processes import Clock, Usage, tree_cpu_s
from benchmarks.landing.report import (
    HEADINGS,
    STREAM_HEADINGS,
    as_json,
    as_markdown,
    cautions,
    cells,
    conclusions,
    stream_cells,
)
from benchmarks.landing.results import JDBC, OURS, WAYS, Batch, Measurement, rows, stream_rows
from benchmarks.landing.steps import Steps

from onceflow.spark.listening import BatchResult, Step

command: Any = import_module("benchmarks.landing.__main__")


def taken(
    way: str,
    seconds: float,
    *,
    number: int = 0,
    other_cores: float = 0.0,
    parts: dict[str, float] | None = None,
) -> Measurement:
    usage = Usage(seconds=seconds, job_cpu_s=3.0, server_cpu_s=4.0, other_cores=other_cores)
    return Measurement(way=way, round=number, rows=2_000_000, usage=usage, parts=parts or {})


def row_of(way: str, *measurements: Measurement) -> Any:
    [found] = [row for row in rows(measurements) if row.way == way]
    return found


# --- comparisons and verdicts


def test_sink_is_compared_with_the_better_setting_of_sparks_writer_in_each_round() -> None:
    sink = row_of(
        "sink",
        *(taken("jdbc", 10.0), taken("jdbc-tuned", 6.0), taken("sink", 2.0)),
        *(taken("jdbc", 8.0, number=1), taken("jdbc-tuned", 20.0, number=1), taken("sink", 4.0, number=1)),
    )

    assert sink.to_jdbc.by_round == pytest.approx((2.0, 3.0))
    assert sink.to_jdbc.median == pytest.approx(2.5)


@pytest.mark.parametrize(("jdbc_s", "met"), [(5.9, False), (6.0, True)])
def test_twice_the_rate_of_sparks_writer_is_the_target(jdbc_s: float, met: bool) -> None:
    assert row_of("sink", taken("jdbc", jdbc_s), taken("sink", 3.0)).to_jdbc.met is met


@pytest.mark.parametrize(("copy_s", "met"), [(1.4, False), (1.5, True)])
def test_half_the_rate_of_a_bare_copy_is_the_target(copy_s: float, met: bool) -> None:
    assert row_of("sink", taken("copy", copy_s), taken("sink", 3.0)).to_copy.met is met


def test_a_round_without_the_peer_is_no_comparison() -> None:
    sink = row_of("sink", taken("copy", 1.0), taken("sink", 3.0, number=1))

    assert sink.to_copy is None
    assert sink.to_jdbc is None


def test_only_append_without_a_key_has_targets() -> None:
    judged = {name for name, way in WAYS.items() if way.jdbc_target or way.copy_target}

    assert judged == {"sink"}
    assert row_of("sink-key", taken("copy-key", 1.0), taken("sink-key", 9.0)).to_copy.met is None


def test_every_peer_is_a_way_that_is_measured() -> None:
    named = {peer for way in WAYS.values() for peer in (*way.jdbc, way.copy) if peer is not None}

    assert named <= set(WAYS)


def test_values_are_medians_and_cpu_is_per_million_rows() -> None:
    row = row_of("sink", *(taken("sink", seconds, number=number) for number, seconds in enumerate((2.0, 1.0, 9.0))))

    assert row.rate == pytest.approx(1_000_000)
    assert (row.job_cpu_s, row.server_cpu_s) == (1.5, 2.0)


def test_parts_that_a_round_lacks_are_left_out_instead_of_counted_as_nothing() -> None:
    complete, lacking = {"write": 100.0, "merge": 50.0}, {"write": 300.0}
    row = row_of("sink", taken("sink", 1.0, parts=complete), taken("sink", 1.0, number=1, parts=lacking))

    assert row.parts == {"write": 200.0}


# --- what is run


def test_each_round_begins_with_another_way_and_runs_all() -> None:
    ways = tuple(WAYS)
    orders = [in_turn(ways, number) for number in range(3)]

    assert len({order[0] for order in orders}) == 3
    assert all(sorted(order) == sorted(ways) for order in orders)


def test_quick_plan_runs_all_ways_on_fewer_rows() -> None:
    plan = command.plan_of(command.parse(["--quick"]))

    assert (plan.rows, plan.rounds) == (100_000, 1)
    assert tuple(plan.ways) == tuple(WAYS)
    assert command.plan_of(command.parse([])) == Plan()


def test_what_was_asked_for_goes_before_the_plan() -> None:
    plan = command.plan_of(command.parse(["--quick", "--rounds", "4", "--ways", "copy", "sink", "--no-streams"]))

    assert (plan.rounds, list(plan.ways), tuple(plan.streams)) == (4, ["copy", "sink"], ())


def test_steps_of_each_micro_batch_are_kept_apart() -> None:
    steps = Steps()
    for number, of_the_batch in enumerate(([Step.FENCE, Step.WRITE], [Step.WRITE])):
        for step in of_the_batch:
            steps.before(step, number)
            steps.after(step, number)
        steps.on_batch(BatchResult(app_id="a", batch_id=number, query_id="q", write_ms=7.0 + number))

    first, second = steps.batches
    assert {"fence", "write"} < set(first)
    assert "fence" not in second
    assert steps.last() is second
    assert second["write_ms"] == 8.0


# --- CPU


def test_cpu_of_a_tree_has_that_of_children_that_live_and_that_have_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass\n"
    before = tree_cpu_s(os.getpid())
    subprocess.run([sys.executable, "-c", burn], check=True)
    ended = tree_cpu_s(os.getpid()) - before
    script = burn + "print(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        both = tree_cpu_s(os.getpid()) - before
        child.communicate(b"\n")

    assert ended > 0.15, "of 0.2 s, which the kernel counts in ticks"
    assert both - ended > 0.15


def test_clock_tells_the_server_from_the_rest() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    start = "input()\n" + burn
    with subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        clock = Clock(server.pid)
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(b"\n")
        server.stdin.flush()
        server.stdout.readline()
        usage = clock.stop()
        server.communicate(b"\n")

    assert usage.server_cpu_s >= 0.25
    assert usage.job_cpu_s < usage.server_cpu_s
    assert usage.seconds >= 0.25


# --- what is shown


def everything() -> tuple[list[Measurement], list[Batch]]:
    parts = {"fence": 5.0, "stage": 10.0, "write": 900.0, "verify": 1.0, "merge": 400.0, "commit": 20.0}
    measurements = [
        taken(way, seconds, number=number, parts=parts if way == "sink" else {})
        for number in range(2)
        for way, seconds in (("jdbc", 10.0), ("jdbc-tuned", 8.0), ("copy", 2.0), ("sink", 3.0 + number))
    ]
    batches = [Batch(engine=OURS, rows=10_000, ms=ms, parts=parts) for ms in (90.0, 100.0, 500.0)]
    return measurements, [*batches, Batch(engine=JDBC, rows=10_000, ms=80.0)]


def test_tables_have_a_text_under_each_heading() -> None:
    measurements, batches = everything()
    lines, stream_lines = list(cells(rows(measurements))), list(stream_cells(stream_rows(batches)))

    assert {len(line) for line in lines} == {len(HEADINGS)}
    assert {len(line) for line in stream_lines} == {len(STREAM_HEADINGS)}
    sink = dict(zip(HEADINGS, lines[-1], strict=True))
    assert sink["of JDBC"] == "2.33x (2.00-2.67)"
    assert sink["of bare load"] == "0.58x (0.50-0.67)"
    ours = dict(zip(STREAM_HEADINGS, stream_lines[0], strict=True))
    assert (ours["ms"], ours["slowest"], ours["k rows/s"]) == ("100", "500", "100")
    assert (ours["fence, stage"], ours["verify, merge"]) == ("15", "401")


def test_a_micro_batch_without_a_fence_shows_what_it_has() -> None:
    [row] = stream_rows([Batch(engine=OURS, rows=10, ms=1.0, parts={"stage": 4.0})])

    [line] = stream_cells([row])

    assert dict(zip(STREAM_HEADINGS, line, strict=True))["fence, stage"] == "4"


def test_every_target_is_told_with_its_verdict() -> None:
    measured = rows([taken("jdbc", 10.0), taken("copy", 1.0), taken("sink", 3.0)])

    assert list(conclusions(measured)) == [
        "SqlSink, append: 3.33x of Spark's JDBC writer, target ≥ 2x: met.",
        "SqlSink, append: 0.33x of a bare COPY, target ≥ 0.5x: not met.",
    ]


def test_documents_carry_the_figures_and_what_failed(tmp_path: Path) -> None:
    measurements, batches = everything()

    document = json.loads(as_json(measurements, batches, {"a": "b"}, {"rows": 1}, ["this one"]))
    text = as_markdown(measurements, batches, {"a": "b"}, ["this\none"])
    save_plot(rows(measurements), stream_rows(batches), tmp_path / "results.png")

    assert [row["way"] for row in document["rows"]] == ["jdbc", "jdbc-tuned", "copy", "sink"]
    assert document["rows"][-1]["to_jdbc"]["target"] == "≥ 2x"
    assert len(document["measurements"]) == 8
    assert document["failures"] == ["this one"]
    assert "- a: b" in text
    assert "- this one" in text
    assert (tmp_path / "results.png").stat().st_size > 0


def test_other_load_is_a_caution_and_a_quiet_full_run_has_none() -> None:
    quiet, busy = taken("copy", 1.0, other_cores=0.05), taken("copy", 1.0, other_cores=0.9)

    assert cautions([quiet], quick=False) == []
    assert "0.90 at most" in cautions([quiet, busy, quiet], quick=False)[0]
    assert len(cautions([], quick=True)) == 1
