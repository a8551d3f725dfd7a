"""Makes the pictures of the page in `docs/images`: a real broker, a made-up load, a real Chromium.

`python tools/screenshots.py [SECONDS]` runs the load for so long (default 75) before it looks; the charts have a point
each five seconds.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import onceflow

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.browser import HOW_TO_GET_ONE, Page, found

IMAGES = Path(__file__).parents[1] / "docs" / "images"
LOOKS = {
    "page-light": {"width": 1280, "height": 1330, "is_dark": False},
    "page-dark": {"width": 1280, "height": 1330, "is_dark": True},
    "page-phone": {"width": 390, "height": 1900, "is_dark": True},
}
chance = random.Random(7)


class Load:
    """A shop: orders come in, payments go out, somebody is slow, somebody hangs, somebody is fenced."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []
        names = {"orders": 3, "payments": 3, "clicks": 2, "_onceflow_progress": 1}
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for each in admin.create_topics([NewTopic(name, count, 1) for name, count in names.items()]).values():
            each.result()

    def start(self) -> None:
        for number in range(1, 5):
            self._begin(lambda name=f"payments-{number}": self.pay(name))
        for app, pause_s in (("viewing", 2.0), ("pricing", 3.5)):
            self._begin(lambda app=app, pause_s=pause_s: self.micro_batches(app, pause_s))
        for group, records, is_committed in (("billing", 400, True), ("search-index", 25, False)):
            self._begin(lambda each=(group, records, is_committed): self.read(*each))
        self._begin(self.click)

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def producer(self, name: str | None = None, **more: object) -> Producer:
        settings = {"bootstrap.servers": self.bootstrap, "linger.ms": 5, "log_level": 0, **more}
        if name is None:
            return Producer(settings)
        producer = Producer({**settings, "transactional.id": name})
        producer.init_transactions()
        return producer

    def pay(self, name: str) -> None:
        producer = self.producer(name)
        while not self.over.wait(chance.uniform(0.1, 0.9)):
            producer.begin_transaction()
            for number in range(chance.randint(20, 120)):
                producer.produce(chance.choice(["orders", "payments"]), f"{name} {number}")
            producer.flush()
            self.over.wait(chance.uniform(0.1, 1.2))
            producer.abort_transaction() if chance.random() < 0.04 else producer.commit_transaction()

    def micro_batches(self, app: str, pause_s: float) -> None:
        """What a Spark job leaves behind."""
        producer, number, previous = self.producer(f"onceflow-{app}"), 0, None
        while not self.over.wait(pause_s - chance.uniform(0.6, 1.6)):
            started = time.time()
            producer.begin_transaction()
            value = {"query": app, "batch": number, "offsets": {}, "at_ms": _ms(), "started_ms": round(started * 1000)}
            told = json.dumps(value | ({"previous": previous} if previous else {}))
            producer.produce("_onceflow_progress", told, key=app, partition=0)
            rows = chance.randint(200, 900)
            for each in range(rows):
                producer.produce("payments", f"{app} {each}")
            producer.flush()
            self.over.wait(chance.uniform(0.5, 1.4))
            producer.commit_transaction()
            previous = {"batch": number, "started_ms": value["started_ms"], "committed_ms": _ms(), "rows": rows}
            previous["transaction_ms"] = round((time.time() - started) * 1000 * chance.uniform(0.12, 0.3))
            number += 1

    def click(self) -> None:
        producer = self.producer(**{"enable.idempotence": True})
        while not self.over.wait(0.05):
            for number in range(chance.randint(5, 60)):
                producer.produce("clicks", f"click {number}")
            producer.flush()

    def read(self, group: str, records: int, is_committed: bool) -> None:
        level = "read_committed" if is_committed else "read_uncommitted"
        settings = {"bootstrap.servers": self.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        consumer = Consumer({**settings, "enable.auto.commit": False, "isolation.level": level})
        consumer.subscribe(["orders"])
        while not self.over.wait(0.2):
            if consumer.consume(records, 0.3):
                consumer.commit(asynchronous=False)
        consumer.close()

    def hang(self) -> Producer:
        """Its transaction stays open for most of its timeout."""
        hanging = self.producer("nightly-export", **{"transaction.timeout.ms": 20_000})
        hanging.begin_transaction()
        for number in range(40):
            hanging.produce("orders", f"export {number}", partition=1)
        hanging.flush()
        return hanging

    def fence(self) -> None:
        """Two instances with one transactional id, as after a deployment that went wrong."""
        old = self.producer("checkout-1")
        self.producer("checkout-1")
        try:
            old.begin_transaction()
            old.produce("orders", "too late")
            old.commit_transaction()
        except KafkaException:
            old.purge()

    def _begin(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        self.threads.append(thread)


def _ms() -> int:
    return time.time_ns() // 1_000_000


def look(url: str, folder: Path) -> None:
    program = found()
    if program is None:
        raise SystemExit(HOW_TO_GET_ONE)
    with Page(program, folder) as page:
        for name, settings in LOOKS.items():
            page.look(**settings)  # type: ignore[arg-type]
            page.visit(url)
            page.run("new Promise(done => setTimeout(done, 2600))")
            page.run("document.querySelector('.dot')?.dispatchEvent(new Event('click'))")
            page.run("new Promise(done => setTimeout(done, 1200))")
            page.picture(IMAGES / f"{name}.png")
            print(IMAGES / f"{name}.png", (IMAGES / f"{name}.png").stat().st_size)


def main(seconds: float) -> None:
    # Nobody ends the transaction that hangs, so that it is on all pictures.
    patient = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 600_000}
    shop = onceflow.Broker(http="127.0.0.1:0", durability="os", settings=patient)
    with shop as broker, tempfile.TemporaryDirectory() as folder:
        load = Load(broker.bootstrap)
        load.start()
        try:
            time.sleep(max(0.0, seconds - 18))
            load.fence()
            hanging = load.hang()
            time.sleep(17)  # four fifths of its timeout: the alert fires
            assert broker.http_url is not None
            look(broker.http_url, Path(folder))
            del hanging
        finally:
            load.stop()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 75)
