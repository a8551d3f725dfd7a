"""Checks of several clients and jobs at once: names that only one of them may have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from onceflow.doctor.facts import UNSEEN, Case
from onceflow.doctor.findings import Finding, fault, some
from onceflow.doctor.producer_checks import IDENTITY_WHY
from onceflow.doctor.registry import together_check

__all__: list[str] = []


def _shared(names: Iterable[tuple[str | None, str]]) -> dict[str, set[str]]:
    """The names that are in more than one file, and in which."""
    owners: dict[str, set[str]] = defaultdict(set)
    for name, owner in names:
        if name and name != UNSEEN:
            owners[name].add(owner)
    return {name: its for name, its in owners.items() if len(its) > 1}


@together_check("together.transactional-id", "Each has its own transactional id", why=IDENTITY_WHY)
def own_transactional_id(case: Case) -> Iterator[Finding]:
    producers = [(each.get("transactional.id"), each.name) for each in case.clients if each.role == "producer"]
    apps = [(sink.get("app_id"), job.name) for job in case.jobs for sink in job.our_sinks()]
    for name, owners in _shared([*producers, *apps]).items():
        yield fault(f"{name} is used by {some(owners)}: they fence each other", "give each its own")


@together_check(
    "together.group",
    "No consumer is in the group of a Spark job",
    why="KafkaSink keeps the offsets of its source in the group app_id; a consumer there would move them.",
)
def own_group(case: Case) -> Iterator[Finding]:
    apps = {sink.get("app_id"): job.name for job in case.jobs for sink in job.our_sinks()}
    for client in case.clients:
        name = client.get("group.id")
        if client.role == "consumer" and name and name in apps:
            yield fault(f"group.id={name} of {client.name} is the app_id of {apps[name]}", "another group.id")


@together_check(
    "together.instance",
    "Each member has its own group.instance.id",
    why="Of two members of a group with the same one, the older is put out.",
)
def own_instance(case: Case) -> Iterator[Finding]:
    consumers = [each for each in case.clients if each.role == "consumer" and each.get("group.instance.id")]
    named = [(f"{each.get('group.id')}/{each.get('group.instance.id')}", each.name) for each in consumers]
    for name, owners in _shared(named).items():
        yield fault(f"{name} is used by {some(owners)}", "another group.instance.id for each")


@together_check(
    "together.checkpoint",
    "Each query has its own checkpoint",
    why="Two queries on one checkpoint overwrite each other's offsets and state.",
)
def own_checkpoint(case: Case) -> Iterator[Finding]:
    places = [(query.get("checkpointlocation"), job.name) for job in case.jobs for query in job.queries]
    for place, owners in _shared(places).items():
        yield fault(f"{place} is used by {some(owners)}", "another checkpointLocation for each query")
