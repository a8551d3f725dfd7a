"""What Kafka's own `kafka-dump-log --offsets-decoder` makes of a partition of the offsets topic."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.kafka_jars import classpath, java

__all__ = ["Decoded", "decoded"]


class Decoded(NamedTuple):
    """A record: its kind, its key and its value; no value for a tombstone."""

    kind: int
    key: dict[str, Any]
    value: dict[str, Any] | None


def decoded(folder: Path) -> list[Decoded]:
    command = [java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath()]
    command += ["org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files"]
    command.append(",".join(str(path) for path in sorted(folder.glob("*.log"))))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [_decoded(line) for line in done.stdout.splitlines() if " key: " in line and " payload: " in line]


def _decoded(line: str) -> Decoded:
    key_text, _, value_text = line.partition(" key: ")[2].partition(" payload: ")
    key = json.loads(key_text)
    value = None if value_text.strip() in ("<DELETE>", "null") else json.loads(value_text)["data"]
    return Decoded(int(key["type"]), key["data"], value)
