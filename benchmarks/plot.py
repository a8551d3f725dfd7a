"""The picture: every ratio as a bar, and the cost per record over the size of the log."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.results import Case, Comparison, Results, cpu
from benchmarks.targets import Target

COLOURS = {True: "tab:green", False: "tab:red", None: "tab:blue"}


def save_plot(results: Results, path: Path) -> None:
    rows = [row for row in results.rows() if not _is_growth(row[0])]
    bars = [(case.title, rate) for case, rate, _ in rows if rate.ratio]
    bars += [
        (f"{case.title}: broker CPU", cpu_time) for case, _, cpu_time in rows if cpu_time.ratio and not _is_growth(case)
    ]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(15, 2 + 0.24 * max(len(bars), 12)), width_ratios=(3, 2), layout="constrained"
    )
    _draw_ratios(left, bars)
    _draw_growth(right, results)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _is_growth(case: Case) -> bool:
    """Drawn on the right, as curves."""
    return case.key.startswith("growth/")


def _draw_ratios(axes: Axes, bars: list[tuple[str, Comparison]]) -> None:
    """On a log scale, where half and double are equally far from one."""
    axes.set_title("Onceflow / Apache Kafka (green: target met, red: not, black tick: target)")
    axes.set_xscale("log", base=2)
    axes.axvline(1, color="grey", linewidth=1)
    for place, (_, comparison) in enumerate(bars):
        ratio = comparison.ratio or 1.0
        axes.barh(place, ratio - 1, left=1, color=COLOURS[comparison.met])
        axes.annotate(f" {ratio:.2f}x ", (ratio, place), va="center", ha="left" if ratio >= 1 else "right", fontsize=7)
        if isinstance(comparison.target, Target):
            axes.plot([comparison.target.ratio] * 2, [place - 0.4, place + 0.4], color="black", linewidth=2)
    axes.set_yticks(range(len(bars)), [title for title, _ in bars], fontsize=7)
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.margins(x=0.15, y=0.01)
    axes.invert_yaxis()


def _draw_growth(axes: Axes, results: Results) -> None:
    axes.set_title("Broker CPU per million records as the log grows")
    axes.set_xlabel("records in the log")
    axes.set_ylabel("seconds")
    for broker, title, colour in (
        ("kafka", "Apache Kafka", "tab:orange"),
        ("onceflow", "Onceflow", "tab:blue"),
    ):
        for what, style in (("produce", "o-"), ("fetch", "s--")):
            keys = [key for key in results.cases if key.startswith(f"growth/{what}/")]
            points = [(int(key.rsplit("/", 1)[1]), results.median(key, broker, cpu)) for key in keys]
            points = [point for point in points if point[1] is not None]
            if points:
                axes.plot(*zip(*points, strict=True), style, color=colour, label=f"{title}, {what}")
    if axes.lines:
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.legend()
