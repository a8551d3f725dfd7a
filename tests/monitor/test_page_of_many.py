"""Five thousand partitions and a thousand transactional ids on the page: the interesting ones first, and no waiting."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from onceflow.monitor import http
from onceflow.monitor.snapshot import MicroBatch, Partition, Snapshot, Transaction
from onceflow.monitor.watcher import Watcher
from tests.support.browser import Page
from tests.support.raw import now_ms
from tests.support.waiting import eventually

STUCK = 3_777


def large() -> Snapshot:
    now = now_ms()
    partitions = tuple(
        Partition(
            topic=f"topic-{number // 10:03}",
            partition=number % 10,
            start=0,
            last_stable=900 if number == STUCK else 1000,
            end=1000,
        )
        for number in range(5_000)
    )
    transactions = tuple(
        Transaction(
            transactional_id=f"worker-{number}",
            producer_id=number,
            epoch=0,
            state="Ongoing" if number < 400 else "CompleteCommit",
            timeout_ms=60_000,
            started_ms=now - number if number < 400 else None,
            updated_ms=now,
        )
        for number in range(1_000)
    )
    return Snapshot(
        at_ms=now,
        cluster_id="large",
        software="onceflow",
        partitions=partitions,
        transactions=transactions,
        micro_batches=(
            MicroBatch(app_id="viewing", batch_id=7, recorded_ms=now - 9_000, started_ms=now - 10_000, rows=40),
            MicroBatch(app_id="pricing", batch_id=1, recorded_ms=now - 5_000),
            MicroBatch(app_id="pricing", batch_id=1, recorded_ms=now - 4_000),  # of another query, or begun anew
            MicroBatch(
                app_id="viewing",
                batch_id=8,
                recorded_ms=now - 1_100,
                started_ms=now - 3_000,
                committed_ms=now - 1_000,
                transaction_ms=500.0,
                rows=40,
            ),
        ),
        truncated=True,
    )


@contextmanager
def served() -> Iterator[str]:
    """The page of a cluster that there is only in memory."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with http.serving(listener, Watcher(large)):
            await over.wait()

    with ThreadPoolExecutor(1) as thread:
        work = thread.submit(loop.run_until_complete, serve())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            loop.call_soon_threadsafe(over.set)
            work.result()
            loop.close()


def test_of_many_things_the_interesting_ones_come_first_and_the_rest_can_be_found(browser: Page) -> None:
    with served() as url:
        browser.forget()
        browser.look()
        browser.visit(url)
        names = "[...document.querySelectorAll('#topic-table td:first-child')].map(each => each.textContent)"
        first = eventually(lambda: browser.run(names), "there are partitions")
        assert (first[0], len(first)) == ("topic-377-7", 12)
        assert browser.run("document.querySelector('#topic-table .more').textContent") == "and 4,988 more"
        browser.run("document.getElementById('topic-filter').value = 'topic-123'")
        browser.run("document.getElementById('topic-filter').dispatchEvent(new Event('input'))")
        assert browser.run(names) == [f"topic-123-{number}" for number in range(10)]
        # Not a thousand marks: as many as have room, and a number for the rest.
        assert browser.run("document.querySelectorAll('.dot').length") < 150
        assert browser.run("document.querySelector('.node.Ongoing').ariaLabel").startswith("Ongoing: 400;")
        assert "There is more" in browser.run("document.getElementById('banner').textContent")
        told = "each.children[0].textContent + ': ' + each.children[1].textContent"
        lanes = f"[...document.querySelectorAll('.lane')].map(each => {told})"
        assert browser.run(lanes) == [
            "pricing: batch 1 · 2 micro-batches shown",
            "viewing: batch 8 · took 2.0 s · 500 ms of it for the transaction · 40 rows · 2 micro-batches shown",
        ]
        assert browser.run("document.querySelectorAll('.lane:first-child g').length") == 2
        bars = "[...document.querySelectorAll('.lane:last-child g:last-child rect')]"
        widths = f"{bars}.map(each => each.width.baseVal.value)"
        work, transaction = browser.run(widths)
        assert work / transaction == pytest.approx(3, rel=0.05)  # 1.5 s and 0.5 s
        longest = browser.run("""new Promise((done) => {
          let last = performance.now(), longest = 0, frames = 0;
          const step = () => {
            const now = performance.now();
            longest = Math.max(longest, now - last);
            last = now;
            if (++frames < 120) requestAnimationFrame(step); else done(longest);
          };
          requestAnimationFrame(step);
        })""")
        assert longest < 1000  # about 30 ms; the machine may be busy with other things
        assert browser.complaints == []
