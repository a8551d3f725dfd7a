"""A broker for programs and tests: started with a `with`, in a process of its own.

It is the same broker as `onceflow broker`; a program that dies takes it along (it watches its standard input, which the
system closes), and what it had acknowledged is in `data_dir` for the next one. Ctrl-C is for the program alone, which
may need its broker for what it does about it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from onceflow.broker.listeners import Listener, check_exposure, check_page_exposure
from onceflow.config import BROKER_SETTINGS, BrokerConfig
from onceflow.errors import BrokerStartError
from onceflow.log.files import make_data_directory
from onceflow.ports import ReservedPort

__all__ = ["Broker"]

READY: Final = "onceflow broker ready on "
STOP_S: Final = 15.0
SETTINGS: Final = {"group.initial.rebalance.delay.ms": "0"}
"""Where Kafka's defaults are for clusters. A program that starts its own broker has all its consumers at hand, and need
not wait three seconds for others."""


class Broker:
    """A broker in a process of its own.

    with onceflow.Broker(data_dir="data") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

    Without `data_dir` the data is temporary and goes with the broker. `settings` have Kafka's names and, but for those
    in `SETTINGS`, Kafka's defaults. A broker can be started again on the same data after `stop` or `kill`, and keeps
    its ports: nobody else gets a free port that it has chosen. With `http` ("127.0.0.1:0" for a free port) it serves a
    page and metrics at `http_url`.

    With `listeners` it listens there and not on `host` and `port`: `["SASL_SSL://127.0.0.1:0", ...]`; `bootstraps` has
    their addresses, `bootstrap` is the first. One that other machines can reach has to ask who comes, unless
    `insecure=True` says that everybody may do everything.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        durability: Literal["fsync", "os"] = "fsync",
        settings: Mapping[str, str | int | bool] | None = None,
        start_timeout: float = 30.0,
        http: str | None = None,
        listeners: Sequence[str] = (),
        insecure: bool = False,
    ) -> None:
        self._listeners = [Listener.parse(each, "listeners") for each in listeners] or [Listener(host, port)]
        self._durability = durability
        self._settings = SETTINGS | {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in (settings or {}).items()
        }
        config = BrokerConfig(given=self._settings)  # a mistake is an error here, and not only in the other process
        check_exposure(self._listeners, config, insecure)
        self._http = None if http is None else Listener.parse(http, "http")
        if self._http is not None:
            check_page_exposure(self._http.host, insecure)
        self._insecure = insecure
        self._owner = os.getpid()
        self._temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="onceflow-") if data_dir is None else data_dir)
        if self._temporary:
            # For who never comes to the end of a with statement; at the latest when the program ends.
            weakref.finalize(self, _remove, self.data_dir, self._owner)
        self._start_timeout = start_timeout
        self._reserved: list[ReservedPort] = []
        self.http_url: str | None = None
        """Where the page and the metrics are, once it runs; None without `http`."""
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`."""
        if self._process is None:
            raise BrokerStartError("The broker is not running; use it in a with statement, or call start().")
        return self.bootstraps[0]

    @property
    def bootstraps(self) -> list[str]:
        """The addresses of all listeners, without their protocols."""
        return [str(replace(each, protocol="PLAINTEXT")) for each in self._listeners]

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerStartError("The broker is not running; use it in a with statement, or call start().")
        return self._process.pid

    @property
    def log_file(self) -> Path:
        """What the broker reports, warnings and worse."""
        return self.data_dir / "broker.log"

    def start(self) -> Broker:
        if self._process is not None:
            raise BrokerStartError("The broker is running already.")
        # What it reports goes to a file: a pipe that nobody reads would stop it once it is full.
        try:
            make_data_directory(self.data_dir)
            # Appended to: it may belong to a running broker, whose directory we are about to be refused.
            log = open(self.log_file, "a")  # noqa: SIM115  # the process gets it below
        except OSError as error:
            raise BrokerStartError(f"Data directory {self.data_dir} cannot be used: {error.strerror}.") from error
        command = self._command()
        secrets = self._secrets_in_a_pipe()
        if secrets is not None:
            command += ["--config", f"/dev/fd/{secrets}"]
        with log:
            said_before = log.tell()
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    pass_fds=() if secrets is None else (secrets,),
                    process_group=0,  # not in the terminal's foreground: Ctrl-C is for the program, which ends it
                )
            finally:
                if secrets is not None:
                    os.close(secrets)
        try:
            lines = [self._first_line(process, said_before)]
        except BaseException:
            _end(process, signal.SIGKILL)
            raise
        assert process.stdout is not None
        lines += [process.stdout.readline() for _ in self._listeners[1:]]
        self._listeners = [
            replace(each, port=int(line.rpartition(":")[2])) for each, line in zip(self._listeners, lines, strict=True)
        ]
        self._process = process
        if self._http is not None:
            self.http_url = process.stdout.readline().rpartition(" ")[2].strip()
        return self

    def _command(self) -> list[str]:
        """Without secrets. From the first time on it names the ports that the broker is to keep."""
        self._listeners = [self._with_port(each) for each in self._listeners]
        self._http = self._http and self._with_port(self._http)
        command = [sys.executable, "-m", *self._program()]
        command += ["--data", str(self.data_dir), "--durability", self._durability, "--stop-with-stdin"]
        for listener in self._listeners:
            command += ["--listen", str(listener)]
        if self._insecure:
            command.append("--insecure")
        if self._http is not None:
            command += ["--http", str(self._http)]
        for name, value in self._settings.items():
            if not BROKER_SETTINGS[name].sensitive:
                command += ["--set", f"{name}={value}"]
        return command

    def _with_port(self, listener: Listener) -> Listener:
        if listener.port:
            return listener
        try:
            reserved = ReservedPort(listener.host)
        except (OSError, UnicodeError):
            return listener  # nobody can listen there; the broker says it in its own words
        self._reserved.append(reserved)
        return replace(listener, port=reserved.number)

    def _secrets_in_a_pipe(self) -> int | None:
        """Passwords among the settings, where nobody else can read them: neither in a file nor on the command line."""
        secrets = {name: value for name, value in self._settings.items() if BROKER_SETTINGS[name].sensitive}
        if not secrets:
            return None
        reading, writing = os.pipe()
        with open(writing, "w") as pipe:
            for name, value in secrets.items():
                escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace("\r", r"\r")
                pipe.write(f"{name}={escaped}\n")
        return reading

    def _program(self) -> list[str]:
        """The module that is the broker, and what it takes beyond the options of `onceflow broker`."""
        return ["onceflow", "broker"]

    def _first_line(self, process: subprocess.Popen[str], said_before: int) -> str:
        """Wait until the broker says that it is ready; its complaint becomes our error."""
        assert process.stdout is not None
        deadline = time.monotonic() + self._start_timeout
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise BrokerStartError(f"The broker was not ready after {self._start_timeout:g} s.")
        line = process.stdout.readline()
        if not line.startswith(READY):
            process.wait(STOP_S)
            said = self.log_file.read_bytes()[said_before:].decode(errors="replace").strip()
            complaint = said.rpartition("\n")[2].removeprefix("onceflow: ")
            raise BrokerStartError(complaint or "The broker ended before it was ready.")
        return line.strip()

    def stop(self) -> None:
        """Stop cleanly; everything acknowledged stays in `data_dir`."""
        self._finish(signal.SIGTERM)

    def kill(self) -> None:
        """End it as `kill -9` does, for tests of recovery."""
        self._finish(signal.SIGKILL)

    def _finish(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end(process, number)

    def __enter__(self) -> Broker:
        try:
            return self.start()
        except BaseException:
            self._remove_temporary_data()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if os.getpid() == self._owner:  # a child of os.fork leaves the with statement, too
            self.stop()
            self._remove_temporary_data()

    def _remove_temporary_data(self) -> None:
        if self._temporary:
            _remove(self.data_dir, self._owner)


def _remove(folder: Path, owner: int) -> None:
    """A child of `os.fork` has the same finalizers, and may end first."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
