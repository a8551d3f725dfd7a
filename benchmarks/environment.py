"""Where a run took place: a number without its machine says little."""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import confluent_kafka
import psutil
from tests.support.kafka_jars import KAFKA_VERSION, java

from benchmarks.brokers import KAFKA_HEAP_MB
from benchmarks.clients import JAVA_HEAP, ROOT
from benchmarks.plan import Plan

DEFAULTS = "acks=all, else its defaults"
TUNED = "fetch.queue.backoff.ms=1 (no 1 s rests)"
OTHER_CORES_MAX = 0.1


def environment(plan: Plan) -> dict[str, str]:
    """Facts by name, ready to print."""
    heap = f"-Xmx{KAFKA_HEAP_MB}m -Xms{KAFKA_HEAP_MB}m"
    librdkafka, _ = confluent_kafka.libversion()
    confluent = f"confluent-kafka {confluent_kafka.version()}, librdkafka {librdkafka}"
    ours = f"{_version('onceflow')}, commit {_commit()}, uvloop {_version('uvloop')}"
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{psutil.virtual_memory().total / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "load before the run": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "Python": platform.python_version(),
        "Java": _java_version(),
        "Onceflow": f"{ours}, --durability os",
        "Apache Kafka": f"{KAFKA_VERSION}, KRaft, one process, its start script's JVM options, {heap}",
        "java": f"kafka-clients {KAFKA_VERSION}, {JAVA_HEAP}, {DEFAULTS} (batch.size 16384, linger.ms 5)",
        "confluent": f"{confluent}, {DEFAULTS} but {TUNED}",
        "topics": f"{plan.partitions} partitions, no compression; 1 where the log grows and for latency",
        "rounds": f"{plan.rounds}, brokers taking turns, medians; growth {plan.growth_rounds}",
    }


class OtherLoad:
    """How many cores have been busy with something other than this benchmark since this was made."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._before = _busy_elsewhere_seconds()

    def cores(self) -> float:
        return max(_busy_elsewhere_seconds() - self._before, 0.0) / (time.monotonic() - self._since)


def cautions(*, quick: bool, other_cores: float) -> list[str]:
    """Why this run may mislead; empty for a full run on a quiet machine."""
    found = []
    if quick:
        found.append("a quick run: too short for Kafka's JVM to compile all of its work, so the ratios flatter ours")
    if other_cores > OTHER_CORES_MAX:
        found.append(f"something else kept {other_cores:.2f} cores busy: rates are low and ratios random")
    return found


def _busy_elsewhere_seconds() -> float:
    """CPU time of the machine, what its host took included, less ours and our ended children's."""
    machine = psutil.cpu_times()
    # The kernel counts the time of guests under user time as well.
    busy = sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice
    ours = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return float(busy - sum(each.ru_utime + each.ru_stime for each in ours))


def _processor() -> str:
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def _java_version() -> str:
    printed = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False).stderr
    return printed.splitlines()[0] if printed else "unknown"


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
