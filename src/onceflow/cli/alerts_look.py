"""One look at a cluster for `onceflow alerts`: from here, or as a page tells it."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, Final

from onceflow.digits import address_of
from onceflow.errors import ConfigError, OnceflowError
from onceflow.monitor.rules import RULES, Alert, Alerts
from onceflow.monitor.snapshot import Snapshot

__all__ = ["CannotLook", "Look", "ask_page"]

TIMEOUT_S: Final = 10
ANSWER_BYTES_MAX: Final = 16 << 20


class CannotLook(OnceflowError):
    """Nobody answers, or not as a page of ours does."""


@dataclass(frozen=True, kw_only=True)
class Look:
    at_ms: int
    alerts: tuple[Alert, ...]
    unknown: tuple[str, ...] = ()
    """Rules that need what is not known there."""
    undecided: tuple[tuple[str, int], ...] = ()
    """Rules that need a longer look, and how long in ms."""
    notes: tuple[str, ...] = ()
    looked_ms: int | None = None
    """For how long; None: a page does it all the time."""

    @property
    def firing(self) -> dict[tuple[str, str, str], Alert]:
        return {(each.rule, each.severity, each.subject): each for each in self.alerts if each.firing}

    @staticmethod
    def from_outside(snapshot: Snapshot, alerts: Alerts) -> Look:
        needs = {
            rule.name: max(getattr(alerts.thresholds, name) for name in (rule.for_ms, rule.needs_ms) if name)
            for rule in RULES
            if rule.condition is not None and (rule.for_ms or rule.needs_ms) and rule.name not in alerts.unknown
        }
        return Look(
            at_ms=snapshot.at_ms,
            alerts=alerts.current,
            unknown=alerts.unknown,
            undecided=tuple((name, ms) for name, ms in needs.items() if ms > alerts.looked_ms),
            notes=(*snapshot.notes, *snapshot.remarks),
            looked_ms=alerts.looked_ms,
        )


def ask_page(address: str) -> Look:
    """What the page at HOST:PORT says."""
    place = address.removeprefix("http://").rstrip("/")
    found = address_of(place)
    if found is None or not found[0]:
        raise ConfigError(f"--http {address!r} should look like HOST:PORT")
    return _look(_get(f"http://{place}/alerts.json", place), place)


def _get(url: str, place: str) -> Any:
    # Whatever proxy the environment names is for the world outside.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            said = answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as refusal:
        with refusal:
            code = f"{refusal.code} {refusal.reason}"
        raise CannotLook(f"{place} answers {code}: this is no page of onceflow's.") from None
    except (OSError, http.client.HTTPException, ValueError) as problem:  # the last: no host can have this name
        reason = getattr(problem, "reason", problem)
        reason = getattr(reason, "strerror", None) or reason
        raise CannotLook(
            f"cannot ask the page at {place}: {reason}. A broker has one if it was started with --http; for any other "
            "Kafka use --bootstrap."
        ) from None
    try:
        return json.loads(said)
    except (ValueError, RecursionError):
        raise CannotLook(f"{place} does not answer in JSON: this is no page of onceflow's.") from None


def _alert(said: Any) -> Alert:
    alert = Alert(**{each.name: said[each.name] for each in fields(Alert)})
    _text("".join((alert.rule, alert.severity, alert.subject, alert.summary, alert.meaning, alert.action)))
    if type(alert.since_ms) is not int:
        raise TypeError
    return alert


def _text(said: Any) -> str:
    if not isinstance(said, str):
        raise TypeError
    return said


def _look(said: Any, place: str) -> Look:
    try:
        problem, at_ms = said.get("problem"), said.get("now_ms", said.get("at_ms"))
        alerts = tuple(_alert(each) for each in said["alerts"])
        unknown = tuple(map(_text, said.get("unknown", ())))
        reason = _text(problem["text"]) if problem else "it has just been started"
        if type(at_ms) not in (int, NoneType):
            raise TypeError
    except (AttributeError, KeyError, TypeError):
        raise CannotLook(f"what {place} answers is not what onceflow's page does: another version?") from None
    if problem or at_ms is None:
        raise CannotLook(f"the page at {place} knows nothing at the moment: {reason}")
    return Look(at_ms=at_ms, alerts=alerts, unknown=unknown)
