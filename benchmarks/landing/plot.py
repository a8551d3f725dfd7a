"""The picture: rows per second of each way as bars, and the time of a micro-batch by its parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.landing.results import OURS, STREAMED, Row, StreamRow

STEPS = {"fence, stage": ("fence", "stage"), "write": ("write",), "merge": ("verify", "merge"), "commit": ("commit",)}
SHADES = ("tab:gray", "tab:blue", "tab:cyan", "tab:purple")


def save_plot(measured: Sequence[Row], streamed: Sequence[StreamRow], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 1.5 + 0.4 * max(len(measured), 6)), layout="constrained")
    _draw_rates(left, measured)
    _draw_batches(right, streamed)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_rates(axes: Axes, measured: Sequence[Row]) -> None:
    axes.set_title("thousand rows per second", fontsize=9)
    rates = [row.rate / 1000 for row in measured]
    axes.barh([row.title for row in measured], rates, color=[_colour(row.way) for row in measured])
    axes.invert_yaxis()


def _colour(way: str) -> str:
    if "sink" in way:
        return "tab:blue"
    return "tab:orange" if "jdbc" in way else "tab:gray"


def _draw_batches(axes: Axes, streamed: Sequence[StreamRow]) -> None:
    axes.set_title("microseconds per row of a micro-batch, by step", fontsize=9)
    titles = [f"{row.rows:,}, {STREAMED[row.engine]}" for row in streamed]
    left = [0.0] * len(streamed)
    for (title, names), colour in zip(STEPS.items(), SHADES, strict=True):
        widths = [sum(row.parts.get(name, 0.0) for name in names) * 1000 / row.rows for row in streamed]
        axes.barh(titles, widths, left=left, color=colour, label=title)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    others = [row for row in streamed if row.engine != OURS]
    axes.barh(
        [f"{row.rows:,}, {STREAMED[row.engine]}" for row in others],
        [row.ms * 1000 / row.rows for row in others],
        color="tab:orange",
    )
    axes.invert_yaxis()
    if streamed:
        axes.legend(fontsize=8)
