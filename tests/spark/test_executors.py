"""What happens to executors and their tasks, in real ones: killed, thrown out, run twice at once.

Spark starts no copy of a task on the machine that runs it, so the two workers say that they are two machines; the
executors of `local-cluster` would say that they are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from onceflow.ports import ReservedPort
from tests.spark.copying import Copying, number_of
from tests.spark.programs.holding import begun
from tests.support.brokers import RunningBroker, started
from tests.support.spark import DriverProcess, SparkProcess
from tests.support.spark_cluster import StandaloneCluster
from tests.support.waiting import eventually

PER_BATCH = 20
KILLED, THROWS, COPIED = range(3)
"""What happens in which micro-batch."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": 0.5,
    "spark.speculation.multiplier": 1.1,
    "spark.speculation.efficiency.enabled": "false",
}
"""As soon as one of two tasks is done, the other is slow."""
SETTINGS = {**SPECULATION, "spark.executor.memory": "512m", "spark.task.maxFailures": 4}
WAIT_S = 180.0


class _TwoMachines(StandaloneCluster):
    """The second worker has a loopback address of its own."""

    def _daemon(self, name: str, kind: str, *arguments: str) -> SparkProcess:
        elsewhere = ("--host", "127.0.0.2") if name == "worker-1" else ()
        return super()._daemon(name, kind, *arguments, *elsewhere)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with started(lambda: _TwoMachines(tmp_path_factory.mktemp("machines"))) as cluster:
        yield cluster


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_executor_that_is_killed_task_that_throws_and_task_that_is_copied_double_nothing(
    broker: RunningBroker,
    machines: StandaloneCluster,
    new_name: Callable[[], str],
    tmp_path: Path,
    new_driver: Callable[..., DriverProcess],
) -> None:
    copying = Copying(broker.bootstrap, new_name(), tmp_path, new_driver, count=3 * PER_BATCH, per_batch=PER_BATCH)
    reserved = ReservedPort()
    port = reserved.number
    held = {KILLED: {}, THROWS: {"throws": True}, COPIED: {}}
    settings = {**SETTINGS, "spark.master": machines.master_url}
    with copying.watcher() as watcher:
        driver = copying.driver(held=held, sink={"driver_port": port}, settings=settings)
        copying.await_written(KILLED)
        machines.executors()[0].kill()
        copying.let_go(KILLED)
        driver.wait_for("Lost executor", WAIT_S)
        assert _attempts(driver, KILLED) == 2
        copying.await_written(THROWS)
        copying.let_go(THROWS)
        driver.wait_for("failed 4 times", WAIT_S)  # Spark has tried a task again, and the sink has refused it
        assert _attempts(driver, THROWS) == 2
        copying.await_written(COPIED)
        copying.let_go(COPIED, [1])
        eventually((copying.marks / begun(COPIED, 0, 1)).exists, "Spark starts a copy of the task", timeout_s=WAIT_S)
        eventually(lambda: _visits(driver.python, port) == 2, "the copy is at the door", timeout_s=WAIT_S)
        copying.let_go(COPIED, [0])
        assert _attempts(driver, COPIED) == 1
        assert driver.wait(WAIT_S) == 0
        copying.check(watcher)
    for batch_id in (KILLED, THROWS):
        times = _times_written(copying, batch_id)
        assert max(times.values()) == 2, "by the attempt that failed, and by the one that was whole"
    assert set(_times_written(copying, COPIED).values()) == {1}


def _visits(driver: psutil.Process, port: int) -> int:
    """How many tasks talk to the sequencer."""
    return sum(
        each.laddr.port == port and each.status == psutil.CONN_ESTABLISHED for each in driver.net_connections("tcp")
    )


def _attempts(driver: DriverProcess, batch_id: int) -> int:
    """How many it took until the micro-batch was committed."""
    return int(driver.wait_for(f"committed {batch_id} {PER_BATCH} ", WAIT_S).split()[-1])


def _times_written(copying: Copying, batch_id: int) -> Counter[int]:
    """How often each record of a micro-batch is in the topic, also if nobody will see it."""
    return Counter(map(number_of, copying.written(batch_id)))
