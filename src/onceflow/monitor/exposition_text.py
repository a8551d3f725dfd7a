"""Metric families as text, in Prometheus' own format and in OpenMetrics.

prometheus_client writes both, and its parser is what the tests read this with; but ten thousand series, as there are
with a thousand partitions, take it a tenth of a second, in which a broker does nothing else. This takes a fifth of
that: label values are escaped once for all families that have them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from onceflow.monitor.samples import Sample
from onceflow.monitor.snapshot import Timing

__all__ = ["COUNTER", "GAUGE", "HISTOGRAM", "Text"]

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
_TOTAL: Final = "_total"


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Text:
    def __init__(self, *, is_openmetrics: bool) -> None:
        self._is_openmetrics = is_openmetrics
        self._lines: list[str] = []
        self._labels: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}

    def add(self, name: str, kind: str, help: str, names: tuple[str, ...], samples: Iterable[Sample]) -> None:
        """A family and its samples; one that has none is left out."""
        lines: list[str] = []
        for values, value in samples:
            labels = self._labels_for(names, values)
            if isinstance(value, Timing):
                _add_histogram(lines, name, labels, value)
            else:
                lines.append(f"{name}{{{labels}}} {value}" if labels else f"{name} {value}")
        if lines:
            family = name.removesuffix(_TOTAL) if self._is_openmetrics and kind == COUNTER else name
            self._lines += (f"# HELP {family} {escaped(help)}", f"# TYPE {family} {kind}", *lines)

    def encode(self) -> bytes:
        return "".join(f"{line}\n" for line in self._lines).encode()

    def _labels_for(self, names: tuple[str, ...], values: tuple[str, ...]) -> str:
        if not names:
            return ""
        found = self._labels.get((names, values))
        if found is None:
            pairs = zip(names, values, strict=True)
            found = self._labels[names, values] = ",".join(f'{name}="{escaped(value)}"' for name, value in pairs)
        return found


def _add_histogram(lines: list[str], name: str, labels: str, timing: Timing) -> None:
    """Prometheus' buckets hold everything up to their bound."""
    before = f"{labels}," if labels else ""
    so_far = 0
    for bound, count in zip((*map(str, timing.bounds), "+Inf"), timing.counts, strict=True):
        so_far += count
        lines.append(f'{name}_bucket{{{before}le="{bound}"}} {so_far}')
    braces = f"{{{labels}}}" if labels else ""
    lines += (f"{name}_count{braces} {so_far}", f"{name}_sum{braces} {timing.total_s}")
