"""Where a run took place: a number without its machine says little."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import confluent_kafka
import psutil

from benchmarks.brokers import KAFKA_HEAP_MB
from benchmarks.clients import JAVA_HEAP, ROOT
from benchmarks.plan import Plan
from tests.support.kafka_jars import KAFKA_VERSION, java


def environment(plan: Plan) -> dict[str, str]:
    """Facts by name, ready to print."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{psutil.virtual_memory().total / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "load before the run": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "Python": platform.python_version(),
        "Java": _java_version(),
        "Onceflow": f"{_version('onceflow')}, commit {_commit()}, uvloop {_version('uvloop')}, --durability os",
        "Apache Kafka": f"{KAFKA_VERSION}, KRaft, one process, heap -Xmx{KAFKA_HEAP_MB}m -Xms{KAFKA_HEAP_MB}m",
        "Java client": f"kafka-clients {KAFKA_VERSION}, {JAVA_HEAP}, its defaults (batch.size 16384, linger.ms 5), acks=all",
        "confluent-kafka": f"{confluent_kafka.version()}, librdkafka {confluent_kafka.libversion()[0]}, "
        "its defaults (linger.ms 5), acks=all",
        "topics": f"{plan.partitions} partitions, no compression; one where the log grows and for latency",
        "rounds": f"{plan.rounds}, brokers taking turns; medians; growth {plan.growth_rounds}",
    }


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
