"""The broker as an operator runs it, with a hand on its limits, its environment and its files.

`onceflow.Broker` is the friendly way to start one; tests of failures need more: limits (`prlimit`), a mount namespace,
a disk that fails (`tests/support/faulty_disk`), the exit code, and what it said on stderr.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from onceflow.ports import ReservedPort
from tests.support.raw_client import RawClient

__all__ = ["READY", "BrokerProcess", "FaultyDisk", "run_broker_command"]

READY = "onceflow broker ready on "
START_S = 60.0
STOP_S = 30.0


def broker_command(data: Path, *options: str, module: str = "onceflow") -> list[str]:
    return [sys.executable, "-m", module, "broker", "--data", str(data), *options]


def run_broker_command(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a broker that is expected to end by itself."""
    return subprocess.run(broker_command(data, *options), capture_output=True, text=True, timeout=START_S, check=False)


class BrokerProcess:
    """One data directory and the broker processes that run on it, one after the other."""

    def __init__(
        self,
        data: Path,
        *,
        durability: str = "fsync",
        settings: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        log_level: str = "warning",
        module: str = "onceflow",
        options: Sequence[str] = (),
    ) -> None:
        """`module` is what is run: `onceflow`, or what runs that with something added."""
        self._options = options
        self.data = data
        self.seen_data = data
        """Where we see the data, if the broker lives in another mount namespace."""
        self.durability = durability
        self.settings = {"group.initial.rebalance.delay.ms": 0, **(settings or {})}
        self._environment = {**os.environ, **(environment or {})}
        self._prefix = list(prefix)
        self._log_level = log_level
        self._module = module
        self._stderr = data.with_name(data.name + ".stderr")
        self._process: subprocess.Popen[str] | None = None
        self._reserved = ReservedPort()
        self.port = self._reserved.number

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "The broker was not started."
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def reports(self) -> str:
        """Everything that it wrote to stderr, over all restarts."""
        return self._stderr.read_text(errors="replace")

    def start(self) -> BrokerProcess:
        assert self._process is None, "The broker is running already."
        options = ["--listen", f"127.0.0.1:{self.port}", "--durability", self.durability, "--stop-with-stdin"]
        options += ["--log-level", self._log_level]
        options += self._options
        for name, value in self.settings.items():
            options += ["--set", f"{name}={value}"]
        with open(self._stderr, "a") as stderr:
            self._process = subprocess.Popen(
                [*self._prefix, *broker_command(self.data, *options, module=self._module)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self._environment,
                text=True,
            )
        line = self._first_line()
        assert line.startswith(READY), f"The broker did not start: {line!r}\n{self.reports[-4000:]}"
        self.port = int(line.rpartition(":")[2])
        return self

    def _first_line(self) -> str:
        stdout = self.process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(START_S):
                return ""
        return stdout.readline().strip()

    def client(self, **rest: float) -> RawClient:
        return RawClient(self.bootstrap, **rest)  # type: ignore[arg-type]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Returns the exit code."""
        process, self._process = self.process, None
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def restart(self) -> None:
        """Stop cleanly and start again on the same port."""
        code = self.stop()
        assert code == 0, f"exit code {code}\n{self.reports[-4000:]}"
        self.start()

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()

    # Looking at it, and squeezing it

    @property
    def memory_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    @property
    def memory_peak_bytes(self) -> int:
        """The most that it has had at a time, since it began or `forget_memory_peak`."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024

    def forget_memory_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    @property
    def open_files(self) -> int:
        return psutil.Process(self.pid).num_fds()

    def limit_file_size(self, size: int | None) -> None:
        """No file may grow beyond `size`; None lifts the limit."""
        limit = resource.RLIM_INFINITY if size is None else size
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


class FaultyDisk:
    """Makes the syncs of a broker process fail, through `faulty_disk/sitecustomize.py` in its environment."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder

    @property
    def environment(self) -> dict[str, str]:
        code = [str(Path(__file__).with_name("faulty_disk")), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(code), "ONCEFLOW_TEST_FAULTS": str(self._folder)}

    def fail_syncs(self, path_part: str = "") -> None:
        """From now on, every sync of a file whose path contains `path_part` fails with EIO."""
        self._write("fail-always", path_part)

    def fail_one_sync(self, path_part: str = "") -> None:
        """The next such sync fails, the ones after it do not."""
        self._write("fail-once", path_part)

    @property
    def has_failed_once(self) -> bool:
        return not (self._folder / "fail-once").exists()

    def hold_syncs(self, path_part: str = "") -> None:
        """Such syncs do not return until `release`."""
        self._write("hold", path_part)

    def wait_for_held_sync(self, timeout_s: float = 15.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not (self._folder / "holding").exists():
            assert time.monotonic() < deadline, "No sync came."
            time.sleep(0.005)

    def release(self) -> None:
        (self._folder / "hold").unlink()

    def die_after(self, steps: int) -> None:
        """The broker kills itself, as `kill -9` does, in place of the write or sync after so many more."""
        self._write("die", str(steps))

    def heal(self) -> None:
        for name in ("fail-always", "fail-once", "hold", "holding", "die"):
            (self._folder / name).unlink(missing_ok=True)

    def _write(self, name: str, path_part: str) -> None:
        # In two steps: the broker must not read a trigger that is not written yet.
        draft = self._folder / f"{name}.draft"
        draft.write_text(path_part)
        draft.rename(self._folder / name)
