"""The picture of a part: rate, CPU and memory of each engine as bars; where the input grows, cost as curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.brokers import FLAVOURS
from benchmarks.plan import SIZES
from benchmarks.spark_jobs.job import AT_LEAST_ONCE, ENGINES, EXACTLY_ONCE, JOBS, SPARK
from benchmarks.spark_jobs.results import SCALE, Case, Row

COLOURS = {EXACTLY_ONCE: "tab:blue", AT_LEAST_ONCE: "tab:cyan", SPARK: "tab:orange"}
PANELS = {
    "rate": "records per second",
    "cpu_s_per_million": "CPU seconds per million records: job, and broker on top",
    "pss_peak_mb": "peak memory of the job, MB",
}


def save_plot(part: str, measured: Sequence[Row], path: Path) -> None:
    if part == SCALE:
        figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
        _draw_curves(axes, measured)
    else:
        cases = list(dict.fromkeys(row.case for row in measured))
        figure, panels = plt.subplots(1, len(PANELS), figsize=(16, 2 + 0.7 * len(cases)), layout="constrained")
        for axes, name in zip(panels, PANELS, strict=True):
            _draw_bars(axes, name, cases, measured)
        panels[0].set_yticks(range(len(cases)), [_title(case) for case in cases])
        panels[0].legend(loc="best", fontsize=8)
        for axes in panels[1:]:
            axes.set_yticks([])
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_bars(axes: Axes, name: str, cases: list[Case], measured: Sequence[Row]) -> None:
    axes.set_title(PANELS[name], fontsize=9)
    engines = [engine for engine in ENGINES if any(row.engine == engine for row in measured)]
    height = 0.8 / max(len(engines), 1)
    for number, engine in enumerate(engines):
        found = [(cases.index(row.case), row) for row in measured if row.engine == engine]
        places = [place - 0.4 + (number + 0.5) * height for place, _ in found]
        values = [row.values[name] or 0.0 for _, row in found]
        axes.barh(places, values, height, color=COLOURS[engine], label=ENGINES[engine])
        if name == "cpu_s_per_million":
            brokers = [row.values["broker_cpu_s_per_million"] or 0.0 for _, row in found]
            axes.barh(places, brokers, height, left=values, color=COLOURS[engine], alpha=0.4)
    axes.invert_yaxis()


def _draw_curves(axes: Axes, measured: Sequence[Row]) -> None:
    axes.set_title("CPU seconds per million records, all processes but the broker")
    axes.set_xlabel("records in the input")
    for broker, style in (("kafka", "s--"), ("onceflow", "o-")):
        for engine in ENGINES:
            points = [
                (row.case.records, row.values["cpu_s_per_million"])
                for row in measured
                if row.engine == engine and row.case.broker == broker
            ]
            if points:
                label = f"{ENGINES[engine]}, {FLAVOURS[broker].title}"
                axes.plot(*zip(*sorted(points), strict=True), style, color=COLOURS[engine], label=label)
    if axes.lines:
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)


def _title(case: Case) -> str:
    return f"{JOBS[case.job]}, {SIZES[case.size]}\n{FLAVOURS[case.broker].title}"
