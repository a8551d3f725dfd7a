"""Tries every client and tool that docs/clients.md has with our broker, and records what came of it (`make clients`).

    python -m tests.conformance.clients_table                        all of them
    python -m tests.conformance.clients_table aiokafka KafkaJS       these clients; "tools" are one of them
    python -m tests.conformance.clients_table --kafka Sarama         with Apache Kafka, and nothing is recorded

Clients play the scenarios of tests/support/clients/programs.py, in the versions of catalogue.py beside it. A tool is
tried by the tests that are marked with it. What is not tried anew stays as it was recorded. The exit code is 0 if
everything works.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from tools.client_tables import RECORD, recorded

import onceflow
from tests.support.apache_kafka import QUICK_JVM_OPTIONS, ApacheKafka
from tests.support.brokers import SETTINGS, RunningBroker
from tests.support.clients.catalogue import CATALOGUE, ClientVersion
from tests.support.clients.programs import Played
from tests.support.raw import Wire

TOOLS = "tools"
TESTED_IN = ("tests/conformance", "tests/broker", "tests/spark/test_jvm_source.py")


def main(arguments: Sequence[str]) -> int:
    known = [*dict.fromkeys(each.client for each in CATALOGUE), TOOLS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=", ".join(known))
    parser.add_argument("--kafka", action="store_true", help="with Apache Kafka in place of our broker")
    wanted = parser.parse_args(arguments)
    chosen = wanted.clients or known
    if unknown := sorted(set(chosen) - set(known)):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    before = recorded() if RECORD.exists() else {"clients": [], "tools": []}
    old = {(each["client"], each["version"]): each["results"] for each in before["clients"]}
    with _broker(kafka=wanted.kafka) as broker:
        results = {
            (each.client, each.version): _try(each, broker.bootstrap) if each.client in chosen else old.get(_key(each))
            for each in CATALOGUE
        }
    tools = _try_tools("kafka" if wanted.kafka else "onceflow") if TOOLS in chosen else before["tools"]
    now = {
        "recorded": datetime.now(UTC).date().isoformat(),
        "clients": [
            {"client": client, "version": version, "results": found}
            for (client, version), found in results.items()
            if found is not None
        ],
        "tools": tools,
    }
    if not wanted.kafka:
        RECORD.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n")
        subprocess.run([sys.executable, "-m", "tools.write_tables"], check=True)
    works = all(error is None for each in now["clients"] for error in each["results"].values())
    return 0 if works and all(all(each["tried"].values()) for each in tools) else 1


def _key(client: ClientVersion) -> tuple[str, str]:
    return client.client, client.version


def _broker(*, kafka: bool) -> AbstractContextManager[RunningBroker]:
    running: Any = (
        ApacheKafka(SETTINGS, jvm_options=QUICK_JVM_OPTIONS)
        if kafka
        else onceflow.Broker(data_dir=None, settings=SETTINGS)
    )
    return running


def _try(client: ClientVersion, bootstrap: str) -> dict[str, str | None]:
    """What went wrong in each scenario, in one line. The whole of it is printed."""
    played = Played(
        client.get(), bootstrap, f"{client.client}-{uuid4().hex[:8]}".translate(_NO_TOPIC), client.scenarios
    )
    results: dict[str, str | None] = {}
    with Wire(bootstrap) as wire:
        for scenario in client.scenarios:
            try:
                played.check(scenario, wire)
                results[scenario] = None
            except AssertionError as error:
                print(f"{client}, {scenario}: {error}", file=sys.stderr)
                results[scenario] = next(
                    iter(str(error).splitlines()), "what it left in the log is not what it should be"
                )
    failed = [each for each, error in results.items() if error is not None]
    print(f"{client}: {f'fails: {failed}' if failed else 'works'}", flush=True)
    return results


_NO_TOPIC = str.maketrans(" /()", "----")


def _try_tools(broker: str) -> list[dict[str, Any]]:
    """In a process of its own: pytest must be there before what it explains."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as record:
        command = [sys.executable, "-m", "pytest", "-q", "--broker", broker, "-m", "tried", *TESTED_IN]
        subprocess.run([*command, "-p", "tests.support.tried_tools", "--record", record.name], check=False)
        found: list[dict[str, Any]] = json.load(record)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
