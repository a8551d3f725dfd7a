"""The parts of the page that are plain HTML: the verdict, problems, anomalies, faults and counts."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from onceflow.verify.history import NEVER, History, Operation, Outcome, Seen
from onceflow.verify.report_page.lanes import Fault, Lanes, last_moment
from onceflow.verify.report_page.markup import Raw, clipped, counted, duration, moment, table, text, ticks
from onceflow.verify.report_page.mini import picture
from onceflow.verify.verdict import Anomaly, Verdict

__all__ = ["anomalies", "counts", "faults", "headline", "left_out", "problems", "verdict_card"]

ITEMS_MAX: Final = 6
"""Of a list inside an operation; the rest is in the JSON beside."""
ANOMALIES_MAX: Final = 200
OPEN_MAX: Final = 5
"""Of one kind; the others are folded away."""
FAULTS_MAX: Final = 2000
VALUE_MAX: Final = 400
AFTER_S: Final = 1.0
"""How long after a fault what goes wrong is put down to it."""
ICONS: Final = {
    "good": '<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M4 13l5 5L20 6"/></svg>',
    "bad": '<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M5 5l14 14M19 5L5 19"/></svg>',
    "warn": '<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M12 4v10M12 19.5v.5"/></svg>',
}


def headline(verdict: Verdict) -> str:
    if verdict.anomalies:
        return f"{len(verdict.anomalies):,} {'anomaly' if len(verdict.anomalies) == 1 else 'anomalies'} found"
    return "Not proven" if verdict.problems else "Clean"


def verdict_card(verdict: Verdict, history: History, command: str) -> Raw:
    look = "bad" if verdict.anomalies else "warn" if verdict.problems else "good"
    names = Counter(each.name for each in verdict.anomalies)
    found = "".join(
        f'<li><a href="#{_anchor(name)}">{text(name)} &times; {number:,}</a></li>' for name, number in names.items()
    )
    facts = [
        ("Workload", verdict.workload),
        ("Brokers", verdict.brokers),
        ("Seed", verdict.seed),
        ("Duration", duration(verdict.seconds)),
        ("Faults", f"{len(verdict.faults):,}"),
        ("Operations", f"{sum(each.f != 'fault' for each in history.operations):,}"),
    ]
    listed = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts)
    return Raw(
        f'<header class="verdict {look}"><h1>{ICONS[look]}{text(headline(verdict))}</h1>'
        f'<p class="lead">{text(_lead(verdict))}</p>'
        + (f'<ul class="found">{found}</ul>' if found else "")
        + f'<dl class="facts">{listed}<div class="again"><dt>Run it again</dt>'
        f"<dd><code>{text(command)}</code></dd></div></dl></header>"
    )


def _lead(verdict: Verdict) -> str:
    under = f"under {counted(len(verdict.faults), 'fault')}"
    if verdict.anomalies:
        return f"Exactly-once was broken {under}. Each anomaly is below, with the operations that show it."
    if verdict.problems:
        return f"No anomaly was found {under}, but the run did not get as far as it should: it proves less."
    return f"Nothing that exactly-once forbids was found {under}."


def problems(verdict: Verdict) -> Raw:
    if not verdict.problems:
        return Raw("")
    each = "".join(f'<div class="problem">{text(clipped(problem, 4000))}</div>' for problem in verdict.problems)
    return Raw(f'<section id="problems"><h2>Problems</h2>{each}</section>')


def left_out(sentences: Iterable[str]) -> Raw:
    return Raw("".join(f'<p class="hint">{text(each)}</p>' for each in sentences))


# Anomalies


def anomalies(verdict: Verdict, definitions: Mapping[str, str]) -> Raw:
    if not verdict.anomalies:
        return Raw("")
    kinds: dict[str, list[Anomaly]] = {}
    for each in verdict.anomalies[:ANOMALIES_MAX]:
        kinds.setdefault(each.name, []).append(each)
    shown = "".join(_kind(name, found, definitions.get(name, "")) for name, found in kinds.items())
    more = len(verdict.anomalies) - ANOMALIES_MAX
    rest = f'<p class="hint">{more:,} more are in report.json.</p>' if more > 0 else ""
    return Raw(f'<section id="anomalies"><h2>Anomalies</h2>{shown}{rest}</section>')


def _anchor(name: str) -> str:
    return "anomaly-" + "".join(each if each.isascii() and each.isalnum() else "-" for each in name)


def _kind(name: str, found: Sequence[Anomaly], definition: str) -> str:
    first, more = found[:OPEN_MAX], found[OPEN_MAX:]
    each = "".join(map(_anomaly, first))
    if more:
        each += f"<details><summary>{len(more):,} more of this kind</summary>{''.join(map(_anomaly, more))}</details>"
    heading = f'<h3 id="{_anchor(name)}">{text(name[:1].upper() + name[1:])}</h3>'
    return f'{heading}<p class="definition">{text(definition)}</p>{each}'


def _anomaly(anomaly: Anomaly) -> str:
    named = {each.record.id for each in anomaly.records if isinstance(each.record.id, str)}
    parts = [f"<article><p>{text(anomaly.sentence)}</p>"]
    if anomaly.operations:
        parts.append(picture(anomaly.operations))
        parts.append(_jump(anomaly.operations, "Show in the timeline"))
        parts.append(_operations(anomaly.operations, named))
    if anomaly.records:
        parts.append(_records(anomaly.records))
    return "".join(parts) + "</article>"


def _jump(operations: Sequence[Operation], label: str) -> Raw:
    ids = text(json.dumps([each.id for each in operations]))
    return _show(label, min(each.began for each in operations), last_moment(operations), f'data-operations="{ids}"')


def _show(label: str, began: float, ended: float, more: str) -> Raw:
    """A button that takes the timeline to what it is about."""
    return Raw(
        f'<button type="button" data-from="{ticks(began)}" data-to="{ticks(ended)}" {more}>{text(label)}</button>'
    )


def _operations(operations: Sequence[Operation], named: Iterable[str]) -> Raw:
    rows = [
        (
            each.id,
            each.f,
            Raw(f'<span class="outcome {each.outcome}">{each.outcome}</span>'),
            moment(each.began),
            "no answer" if each.ended == NEVER else moment(each.ended),
            _shown({**each.asked, **each.told}, named),
        )
        for each in operations
    ]
    return table(["operation!", "what!", "outcome!", "asked#", "answered#", "with"], rows, name="wide")


def _records(records: Sequence[Seen]) -> Raw:
    rows = [
        (each.topic, each.partition, each.offset, _shown(each.record.to_json(), ())) for each in records[:ITEMS_MAX]
    ]
    return table(["topic", "partition#", "offset#", "record"], rows)


def _shown(values: Mapping[str, Any], named: Iterable[str]) -> str:
    wanted = set(named)
    return "; ".join(
        f"{name}: {_value(value, wanted)}" for name, value in values.items() if value not in (None, [], "")
    )


def _value(value: Any, named: set[str]) -> str:
    """Of a long list, those that the anomaly is about come first."""
    if not isinstance(value, list):
        return clipped(value, VALUE_MAX)
    items = [clipped(json.dumps(each), VALUE_MAX) for each in value]
    if len(items) > ITEMS_MAX:
        quoted = [json.dumps(each) for each in named]
        items.sort(key=lambda item: not any(each in item for each in quoted))
        items[ITEMS_MAX:] = [f"… {len(items) - ITEMS_MAX:,} more"]
    return ", ".join(items)


# Faults


def faults(struck: Sequence[Fault], history: History, lanes: Lanes) -> Raw:
    if not struck:
        return Raw("")
    victims = _Victims(history, lanes)
    rows = [
        (
            _show("Show", each.began, each.ended, 'class="go"'),
            moment(each.began),
            clipped(each.kind, 60),
            clipped(each.target, 80),
            "at once" if each.ended - each.began < 0.001 else duration(each.ended - each.began),
            victims.hit_by(each),
        )
        for each in struck[:FAULTS_MAX]
    ]
    more = len(struck) - len(rows)
    return Raw(
        '<section id="faults"><h2>Faults</h2><p class="hint">What was done to whom, and what it was seen to hit: '
        "operations of those it struck that were under way meanwhile, or were asked within the second after, and did "
        "not end well.</p>"
        + table(["", "at#", "what!", "whom!", "how long#", "what it hit"], rows, name="wide")
        + (f'<p class="hint">{more:,} more are in report.json.</p>' if more else "")
        + "</section>"
    )


class _Victims:
    """Operations that did not end well, to be found by time and lane."""

    def __init__(self, history: History, lanes: Lanes) -> None:
        self._lanes = lanes
        self._met: list[tuple[float, float, int, str]] = []
        for each in history.operations:
            if each.f != "fault" and not each.is_ok:
                life = lanes.lives[lanes.life_at[each.process]]
                # What never got an answer was under way as long as its process lived.
                self._met.append((each.began, min(each.ended, life.ended), life.lane, f"{each.f} {each.outcome}"))
        self._longest = max((ended - began for began, ended, *_ in self._met), default=0.0)

    def hit_by(self, fault: Fault) -> str:
        touched = self._lanes.touched_by(fault)
        start = bisect_left(self._met, (fault.began - self._longest,))
        stop = bisect_left(self._met, (fault.ended + AFTER_S,))
        met = Counter(
            what for _, ended, lane, what in self._met[start:stop] if ended >= fault.began and lane in touched
        )
        parts = [f"{number:,} {what}" for what, number in met.most_common(4)]
        detail = clipped(fault.detail, 200)
        return "; ".join(each for each in (detail, ", ".join(parts)) if each) or "nothing that was noticed"


# Counts


def counts(verdict: Verdict, history: History) -> Raw:
    operations = [each for each in history.operations if each.f != "fault"]
    by_kind = Counter((each.f, each.outcome) for each in operations)
    outcomes = list(Outcome)
    rows = [
        (kind, *(by_kind[kind, outcome] for outcome in outcomes)) for kind in sorted({each.f for each in operations})
    ]
    by_fault = Counter(
        (str(each.asked.get("kind", "fault")), _role(str(each.asked.get("target", "")))) for each in verdict.faults
    )
    struck = [(kind, target, number) for (kind, target), number in sorted(by_fault.items())]
    tables = [
        table(["operation!", *(f"{each.value}#" for each in outcomes)], rows),
        table(["records!", "#"], _record_counts(history).items()),
    ]
    if struck:
        tables.append(table(["fault!", "whom!", "times#"], struck))
    return Raw(f'<section id="counts"><h2>Counts</h2><div class="tables">{"".join(tables)}</div></section>')


def _record_counts(history: History) -> dict[str, int]:
    asked = acknowledged = aborted = 0
    for each in history.of("write"):
        number = len(each.asked.get("records", ()))
        asked += number
        acknowledged += len(each.told.get("written", ()))
        name = each.asked.get("transaction")
        aborted += number if name is not None and history.transactions[name].aborts else 0
    return {
        "handed to producers": asked,
        "acknowledged one by one": acknowledged,
        "in transactions that were aborted": aborted,
        "visible at the end": len(history.final),
        "shown to readers": sum(len(each.told.get("records", ())) for each in history.reads),
    }


def _role(target: str) -> str:
    """ "copier" of "copier-2.3"."""
    return target.rstrip("0123456789.").rstrip("-") or target
