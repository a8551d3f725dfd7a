"""The report of a run: a page for people, JSON for scripts, and the whole history.

    report.html     one page that loads nothing: verdict, timeline, anomalies, faults, counts
    report.json     the verdict (`Verdict.to_json`)
    history.jsonl   every operation, one line each

The page is safe to open whatever was in the topics: text is escaped, the data of the timeline cannot leave its script
element, and a content security policy lets no script run but ours.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from importlib.resources import files
from pathlib import Path
from string import Template

from onceflow.verify.anomalies import ANOMALIES
from onceflow.verify.history import History
from onceflow.verify.report_page import sections
from onceflow.verify.report_page.markup import script_json, text
from onceflow.verify.report_page.timeline import Timeline
from onceflow.verify.verdict import Verdict, operation_to_json

__all__ = ["command_again", "definitions", "write"]


def write(folder: Path, verdict: Verdict, history: History, *, command: str | None = None) -> Path:
    """Returns the path of the page. `command` is what is to be typed to run it again."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(verdict.to_json(), indent=2) + "\n")
    with open(folder / "history.jsonl", "w") as lines:
        for operation in history.operations:
            lines.write(json.dumps(operation_to_json(operation), separators=(",", ":")) + "\n")
    path = folder / "report.html"
    # Strings in JSON may hold half of a surrogate pair, which no encoding can write.
    path.write_bytes(page(verdict, history, command or command_again(verdict)).encode(errors="backslashreplace"))
    return path


def command_again(verdict: Verdict) -> str:
    words = ["onceflow", "verify", verdict.workload, "--seed", str(verdict.seed), "--faults", str(len(verdict.faults))]
    return shlex.join(words)


def definitions() -> dict[str, str]:
    """What each anomaly is: the first paragraph of its function's docstring, on one line."""
    return {
        name: " ".join((function.__doc__ or "").strip().split("\n\n")[0].split())
        for name, function in ANOMALIES.items()
    }


def page(verdict: Verdict, history: History, command: str) -> str:
    named = {each.id for anomaly in verdict.anomalies for each in anomaly.operations}
    timeline = Timeline(history, verdict.faults, shown=named)
    data = timeline.to_json()
    script = _piece("timeline.js")
    return Template(_piece("template.html")).substitute(
        title=text(f"{sections.headline(verdict)}: {verdict.workload}, seed {verdict.seed}"),
        style=_piece("page.css"),
        verdict=sections.verdict_card(verdict, history, command),
        problems=sections.problems(verdict),
        left_out=sections.left_out(timeline.left_out),
        anomalies=sections.anomalies(verdict, definitions()),
        faults=sections.faults(timeline.faults, history, timeline.lanes),
        counts=sections.counts(verdict, history),
        data=script_json(data),
        script=script,
        script_hash=_hash(script),
    )


def _piece(name: str) -> str:
    return (files("onceflow.verify.report_page") / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """By which the page's policy knows its own script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
