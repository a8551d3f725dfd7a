"""Five thousand partitions and a thousand transactional ids on the page: the interesting ones first, and no waiting."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from onceflow.monitor import http
from onceflow.monitor.snapshot import Partition, Snapshot, Transaction
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
