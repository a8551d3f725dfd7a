"""The checks, each registered under an id by the decorator of what it looks at.

    @cluster_check("broker.unclean", "Unclean leader elections", why="...", needs=("settings",))
    def unclean(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
        if cluster.has("unclean.leader.election.enable", "true"):
            yield fault("...", "...")

A check is a pure function. What it yields is shown; if it yields nothing, all is well. `needs` names parts of
`ClusterFacts`: if one could not be gathered, the check is not run and its line says `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from onceflow.doctor.facts import Case
from onceflow.doctor.findings import Finding, Line, Verdict

__all__ = [
    "CHECKS",
    "Check",
    "client_check",
    "cluster_check",
    "consumer_check",
    "examine_case",
    "producer_check",
    "spark_check",
    "streams_check",
    "together_check",
]

Look = Callable[..., Iterable[Finding]]
F = TypeVar("F", bound=Callable[..., Iterable[Finding]])

TOGETHER: Final = "all together"


@dataclass(frozen=True, kw_only=True)
class Check:
    id: str
    about: str
    """`cluster`, `client`, `producer`, `consumer`, `streams`, `spark` or `together`."""
    title: str
    why: str
    needs: tuple[str, ...]
    look: Look


CHECKS: Final[dict[str, Check]] = {}


def _registering(about: str) -> Callable[..., Callable[[F], F]]:
    def register(id: str, title: str, *, why: str, needs: tuple[str, ...] = ()) -> Callable[[F], F]:
        def keep(look: F) -> F:
            if id in CHECKS:
                raise ValueError(f"there are two checks with the id {id}")
            CHECKS[id] = Check(id=id, about=about, title=title, why=why, needs=needs, look=look)
            return look

        return keep

    return register


cluster_check = _registering("cluster")
client_check = _registering("client")
producer_check = _registering("producer")
consumer_check = _registering("consumer")
streams_check = _registering("streams")
spark_check = _registering("spark")
together_check = _registering("together")


def examine_case(case: Case) -> Iterator[Line]:
    """All checks that this case has something for."""
    for about, subject, facts in _subjects(case):
        for check in CHECKS.values():
            if check.about in about:
                yield from _lines(check, subject, facts, case)


def _subjects(case: Case) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """What kinds of checks apply, what to call it, and what they are given."""
    if case.cluster is not None:
        yield ("cluster",), f"cluster {case.cluster.address}", case.cluster
    for client in case.clients:
        yield ("client", client.role), f"{client.name} ({client.role})", client
    for job in case.jobs:
        yield ("spark",), f"{job.name} (Spark)", job
    if len(case.clients) + len(case.jobs) > 1:
        yield ("together",), TOGETHER, case


def _lines(check: Check, subject: str, facts: Any, case: Case) -> Iterator[Line]:
    cluster = case.cluster
    missing = [cluster.unknown[part] for part in check.needs if part in cluster.unknown] if cluster is not None else []
    if missing:
        yield _line(check, subject, Finding(Verdict.UNKNOWN, f"could not be looked at: {missing[0]}"))
        return
    findings = check.look(case) if check.about == "together" else check.look(facts, case)
    for finding in dict.fromkeys(findings) or [Finding(Verdict.OK, "")]:
        yield _line(check, subject, finding)


def _line(check: Check, subject: str, finding: Finding) -> Line:
    return Line(
        verdict=finding.verdict,
        check=check.id,
        subject=subject,
        title=check.title,
        found=finding.found,
        why=check.why,
        fix=finding.fix,
    )
