"""A scrape, read with Prometheus' own parsers."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from onceflow.broker.watching import Snapshots
from onceflow.monitor.metrics import exposition
from onceflow.monitor.rates import Rates
from onceflow.monitor.snapshot import Snapshot
from tests.support.memory_broker import MemoryBroker

__all__ = ["OPENMETRICS", "Scrape", "Watched", "scrape_of"]

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scrape:
    def __init__(self, body: bytes, content_type: str) -> None:
        self.body = body
        self.content_type = content_type
        is_openmetrics = content_type.startswith("application/openmetrics-text")
        families: Iterable[Metric] = (read_openmetrics if is_openmetrics else read_text)(body.decode())
        self.families = {family.name: family for family in families}
        self._samples = [sample for family in self.families.values() for sample in family.samples]

    def value(self, name: str, **labels: str) -> float | None:
        """The one sample of that name with these labels; None if there is none."""
        found = self.all(name, **labels)
        assert len(found) <= 1, found
        return next(iter(found), None)

    def all(self, name: str, **labels: str) -> list[float]:
        return [
            each.value for each in self._samples if each.name == name and labels.items() <= dict(each.labels).items()
        ]


def scrape_of(url: str, accept: str = "") -> Scrape:
    request = urllib.request.Request(f"{url}/metrics", headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return Scrape(answer.read(), answer.headers["Content-Type"])


class Watched:
    """A broker in memory, and who watches it."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self._snapshots = Snapshots(broker.node, ())
        self._rates = Rates()
        self.look()

    def look(self) -> Snapshot:
        snapshot = self._snapshots.take()
        self._rates.see(snapshot)
        return snapshot

    def scrape(self, accept: str = "") -> Scrape:
        self.broker.clock.advance(1000)
        return Scrape(*exposition(self.look(), (), accept, self._rates.minute))
