"""A real browser for the pages we write: Chromium without a window, spoken to in its DevTools protocol over a pipe.

`found` looks for one: CHROME, the PATH, where Chrome and Edge are installed, Playwright's cache, and our own, which
`python -m tests.support.browser` fills if there is no other (`chromium.py`). One that is on the PATH may not work: what
Ubuntu calls `chromium-browser` asks for a snap, and a snap does not see the files of tests. So it has to show that it
does.
"""

from __future__ import annotations

import base64
import fcntl
import functools
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pytest

from tests.support import chromium
from tests.support.registry import JarsMissing

__all__ = ["HOW_TO_GET_ONE", "Page", "found", "found_or_skip"]

NAMES: Final = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
    "microsoft-edge-stable",
)
PLACES: Final = (
    "/opt/google/chrome/chrome",
    "/opt/microsoft/msedge/msedge",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
)
PLAYWRIGHT: Final = ("~/.cache/ms-playwright", "~/Library/Caches/ms-playwright")
IN_PLAYWRIGHT: Final = (
    "chromium-*/chrome-linux*/chrome",
    "chromium_headless_shell-*/chrome-*/*headless*shell",
    "chromium-*/chrome-mac*/*.app/Contents/MacOS/*",
)
HOW_TO_GET_ONE: Final = (
    "no browser for pages and reports: install Chromium or Chrome (on Debian `apt-get install chromium`), "
    "or name one in CHROME, or run `make setup` where npm or pip reach a registry (Linux on x86-64)"
)
ANSWER_S: Final = 60.0
FLAGS: Final = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    # It works neither for root nor in many containers, and the pages are our own.
    "--no-sandbox",
)


@functools.cache
def found() -> str | None:
    """The browser to use; None if there is none. What CHROME names is not tried: tests say what is wrong with it."""
    return os.environ.get("CHROME") or next(filter(_works, _candidates()), None)


def found_or_skip() -> str:
    """For fixtures: tests without a browser are skipped, all for the one reason that says how to get one."""
    program = found()
    if program is None:
        pytest.skip(HOW_TO_GET_ONE)
    return program


def _candidates() -> Iterator[str]:
    yield from filter(None, map(shutil.which, NAMES))
    yield from (place for place in PLACES if os.access(place, os.X_OK))
    for folder in filter(None, (os.environ.get("PLAYWRIGHT_BROWSERS_PATH"), *PLAYWRIGHT)):
        for pattern in IN_PLAYWRIGHT:  # the newest first
            yield from map(str, sorted(Path(folder).expanduser().glob(pattern), reverse=True))
    if own := chromium.cached_program():
        yield str(own)


def _works(program: str) -> bool:
    """It reads a file where tests have theirs, and runs what is in it."""
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as folder:
        page = Path(folder, "page.html")
        page.write_text("<body><script>document.body.append('it ' + 'works')</script></body>")
        try:
            with Page(program, Path(folder, "profile")) as browser:
                browser.open(page)
                return bool(browser.run("document.body.innerText") == "it works")
        except (AssertionError, OSError):
            return False


class Page:
    """One page in one browser. What its scripts complain about is in `complaints`."""

    def __init__(self, program: str, folder: Path) -> None:
        """`folder` is for the browser's own files."""
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # The browser expects them as 3 and 4; away from there first, or one would overwrite the other.
        high = [fcntl.fcntl(each, fcntl.F_DUPFD, 50) for each in (commands, answers)]

        def place() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(3, 4),
            preexec_fn=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for each in (commands, answers, *high):
            os.close(each)
        self._numbers = itertools.count(1)
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        try:
            target = self._ask("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self._ask(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    @property
    def complaints(self) -> list[str]:
        """Errors of scripts, and what the page's own policy or the network refused."""
        found = []
        for event in self._events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """The addresses that were asked for, whatever came of it."""
        return [
            event["params"]["request"]["url"]
            for event in self._events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def forget(self) -> None:
        """What was complained about and asked for so far, by a page that is left: one whose server is gone goes on
        complaining."""
        self.visit("about:blank")
        self._events.clear()

    def open(self, path: Path) -> None:
        self.visit(path.resolve().as_uri())

    def visit(self, url: str) -> None:
        before = len(self._events)
        self._ask("Page.navigate", url=url)
        while not any(each["method"] == "Page.loadEventFired" for each in self._events[before:]):
            self._next()
        self._settle()

    def look(
        self, *, width: int = 1280, height: int = 900, scale: float = 1, is_dark: bool = False, is_calm: bool = False
    ) -> None:
        """The size of the window, the preferred colours, and whether things may move."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        wishes = {
            "prefers-color-scheme": "dark" if is_dark else "light",
            "prefers-reduced-motion": "reduce" if is_calm else "no-preference",
        }
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self._ask("Emulation.setEmulatedMedia", features=features)

    def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        answer = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self._ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self._ask("Input.dispatchKeyEvent", type="keyUp", key=key)
        self._settle()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """`kind`: mouseMoved, mousePressed, mouseReleased, mouseWheel."""
        self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self._settle()

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        answer = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _settle(self) -> None:
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def _ask(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        request: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while True:
            message = self._next()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def _next(self) -> dict[str, Any]:
        """The next message; events are kept, too."""
        while b"\0" not in self._unread:
            assert select.select([self._answers], [], [], ANSWER_S)[0], f"no word from the browser for {ANSWER_S} s"
            more = os.read(self._answers, 1 << 20)
            assert more, "the browser ended"
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self._events.append(message)
        return message


def _prepare() -> str:
    """What `make setup` says: the browser that the tests will use, fetched if there is no other, or how to get one."""
    if (program := found()) is not None:
        return program
    try:
        fetched = str(chromium.program())
    except JarsMissing as problem:
        return f"{HOW_TO_GET_ONE}. Their tests will be skipped ({problem})"
    if _works(fetched):
        return fetched
    return f"{HOW_TO_GET_ONE}. Their tests will be skipped ({fetched} does not run here)"


if __name__ == "__main__":
    print(_prepare(), file=sys.stderr)
