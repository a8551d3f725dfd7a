"""`onceflow dashboard`: the page of any Kafka, and its metrics, on a port of this machine.

The cluster is asked in a thread of its own, one question after the other, so the page answers however long Kafka takes.
When Kafka is away the page says so, shows what was seen last, and it is asked again and again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from onceflow.cli.broker import parse_listen
from onceflow.cli.common import add_connection, connection
from onceflow.cli.durations import duration_ms
from onceflow.cli.output import say
from onceflow.errors import ConfigError, OnceflowError

if TYPE_CHECKING:
    from onceflow.monitor.snapshot import Snapshot
    from onceflow.monitor.watcher import Watcher

__all__ = ["add_parser", "run"]

HTTP_DEFAULT: Final = "127.0.0.1:9645"
EVERY_MS_MIN: Final = 200

EXAMPLES = """\
examples:
  onceflow dashboard --bootstrap kafka:9092              the page on http://127.0.0.1:9645
  onceflow dashboard --bootstrap kafka:9092 --open       and in your browser
  onceflow dashboard --http 127.0.0.1:0 --every 10s      a free port, which is printed; a look every ten seconds

An Onceflow broker has the same page built in, and knows more than can be asked for: onceflow broker --http
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "dashboard",
        help="a page that shows a cluster, and its metrics",
        description="Serve a page that shows a cluster as it is: transactions in their state diagram, topics, groups, "
        "producers, micro-batches, alerts; and metrics for Prometheus at /metrics. It only asks, and changes nothing.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        default=HTTP_DEFAULT,
        help="where to serve it; port 0 picks a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--every", metavar="TIME", type=duration_ms, default=2000, help="how often to look (default: 2s)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="allow an address that others can reach: the page has no login and shows all names",
    )
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    host, port = parse_listen(args.http, "--http")
    if args.every < EVERY_MS_MIN:
        raise ConfigError(f"--every takes at least {EVERY_MS_MIN}ms: a look is a dozen requests.")
    settings = connection(args)
    from onceflow.broker.listeners import bind, check_page_exposure
    from onceflow.client.watching import ClusterWatch  # only now: a mistake on the command line need not wait for it

    for danger in check_page_exposure(host, args.insecure):
        say(f"onceflow: --insecure: {danger}.", err=True)
    with bind(host, port) as listener:
        url = _url(listener)

        def announce() -> None:
            say(f"onceflow dashboard of {settings.bootstrap} on {url}", flush=True)
            if args.open:
                webbrowser.open(url)

        return asyncio.run(_serve(listener, host, ClusterWatch(settings), args.every / 1000, announce))


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def _serve(listener: socket.socket, host: str, watch: Any, every_s: float, announce: Callable[[], None]) -> int:
    """Until Ctrl-C or SIGTERM. `announce` is called once these end it cleanly."""
    from onceflow.monitor import http
    from onceflow.monitor.watcher import Watcher

    watcher = Watcher(watch.take, is_quick=False)
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _end, ended, 128 + number if number == signal.SIGINT else 0)
    announce()
    async with http.serving(listener, watcher, names=[host]):
        stop = threading.Event()
        _Looking(watch, watcher, loop, stop, every_s).start()
        try:
            return await ended
        finally:
            stop.set()


def _end(ended: asyncio.Future[int], code: int) -> None:
    if not ended.done():
        ended.set_result(code)


class _Looking(threading.Thread):
    """Asks the cluster, and hands what it sees to the loop. A daemon: a Kafka that does not answer holds nobody up."""

    def __init__(
        self, watch: Any, watcher: Watcher, loop: asyncio.AbstractEventLoop, stop: threading.Event, every_s: float
    ) -> None:
        super().__init__(name="onceflow-looking", daemon=True)
        self._watch, self._watcher, self._loop, self._every_s = watch, watcher, loop, every_s
        self._is_over = stop

    def run(self) -> None:
        while not self._is_over.is_set():
            self._look()
            self._is_over.wait(self._every_s)
        self._watch.close()

    def _look(self) -> None:
        try:
            snapshot: Snapshot = self._watch.take()
        except OnceflowError as problem:
            self._hand(self._watcher.lost, str(problem))
        except Exception as defect:  # it is ours; the page goes on with what there is, and says so
            self._hand(self._watcher.lost, f"The cluster could not be looked at ({type(defect).__name__}: {defect}).")
        else:
            self._hand(self._watcher.see, snapshot)

    def _hand(self, call: Callable[[Any], None], value: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile, and nobody looks any more
            self._loop.call_soon_threadsafe(call, value)
