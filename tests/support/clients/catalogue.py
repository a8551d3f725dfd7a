"""The clients and versions that are tried with the broker, and how each of them gets here.

Java's are part of `make test`; their jars are in the table of digests. The others are tried by `make clients`, which
installs them below `.cache/clients`: Python's from the package index, Go's and Node's as `go.sum` and
`package-lock.json` have them, kcat from Debian's packages. What a client has not, it is not asked for.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.clients.java import QUICK_START, QUIET
from tests.support.clients.programs import SCENARIOS, TRANSACTIONS, Program
from tests.support.java_programs import classes
from tests.support.kafka_jars import CLIENT_VERSIONS, client_classpath, java
from tests.support.registry import CACHE, only_one_process

__all__ = ["CATALOGUE", "JAVA", "ClientVersion"]

PROGRAMS = Path(__file__).resolve().parents[2] / "conformance" / "programs"
PROTOCOL_848: Final = "consumer protocol"


@dataclass(frozen=True, kw_only=True)
class ClientVersion:
    client: str
    version: str
    scenarios: tuple[str, ...]
    get: Callable[[], Program]
    """Installs what is not there yet."""

    def __str__(self) -> str:
        return f"{self.client} {self.version}"


def _all_but(*left_out: str) -> tuple[str, ...]:
    return tuple(each for each in SCENARIOS if each not in left_out)


# --- Java


def _java(version: str) -> ClientVersion:
    has_848 = tuple(map(int, version.split(".")[:2])) >= (4, 0)  # where it is no preview any more
    return ClientVersion(
        client="Java (kafka-clients)",
        version=version,
        scenarios=SCENARIOS if has_848 else _all_but(PROTOCOL_848),
        get=lambda: _java_program(version),
    )


def _java_program(version: str) -> Program:
    oldest = client_classpath(CLIENT_VERSIONS[0])
    path = os.pathsep.join((str(classes("versions", oldest)), client_classpath(version)))
    return Program([java(), *QUICK_START, QUIET, "-cp", path, "Scenarios"])


JAVA: Final = tuple(map(_java, CLIENT_VERSIONS))


# --- Python


def _python(
    client: str, version: str, program: str, scenarios: tuple[str, ...], *needed: str, extras: str = ""
) -> ClientVersion:
    requirements = (f"{client}{extras}=={version}", *needed)
    return ClientVersion(
        client=client, version=version, scenarios=scenarios, get=lambda: _python_program(program, requirements)
    )


def _python_program(program: str, requirements: Sequence[str]) -> Program:
    def install(folder: Path) -> None:
        _run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *requirements])

    folder = _installed(re.sub(r"\[.*?]", "", requirements[0]), " ".join(requirements), install)
    return Program([sys.executable, str(PROGRAMS / "python" / f"{program}.py")], {"PYTHONPATH": str(folder)})


CODEC_LIBRARIES = ("lz4", "python-snappy", "zstandard")
AIO_EXTRAS = "[snappy,lz4,zstd]"
PYTHON: Final = (
    *(
        _python("confluent-kafka", version, "confluent", _all_but(PROTOCOL_848))
        for version in ("2.0.2", "2.3.0", "2.6.1", "2.10.1")
    ),
    _python("confluent-kafka", "2.16.1", "confluent", SCENARIOS),
    # It stands on kafka-python, and on what later ones have not.
    _python("aiokafka", "0.8.1", "aio", _all_but(PROTOCOL_848), "kafka-python==2.0.2", extras=AIO_EXTRAS),
    *(
        _python("aiokafka", version, "aio", _all_but(PROTOCOL_848), extras=AIO_EXTRAS)
        for version in ("0.10.0", "0.12.0", "0.14.0")
    ),
    _python(
        "kafka-python",
        "2.0.2",
        "kafka_python",
        _all_but("idempotence", *TRANSACTIONS, PROTOCOL_848),
        *CODEC_LIBRARIES,
    ),
    *(
        _python("kafka-python", version, "kafka_python", _all_but(PROTOCOL_848), *CODEC_LIBRARIES)
        for version in ("2.2.15", "2.3.3", "3.0.12")
    ),
)


# --- Go


def _go(client: str, module: str, program: str, scenarios: tuple[str, ...]) -> ClientVersion:
    required = re.search(rf"{re.escape(module)} v(\S+)", (PROGRAMS / "go" / "go.mod").read_text())
    assert required is not None, module
    return ClientVersion(client=client, version=required[1], scenarios=scenarios, get=lambda: _go_program(program))


def _go_program(program: str) -> Program:
    sources = PROGRAMS / "go"
    variables = {"GOPATH": str(CACHE / "clients" / "go"), "GOFLAGS": "-modcacherw -mod=readonly"}

    def build(folder: Path) -> None:
        _run(["go", "build", "-o", f"{folder}/", "./..."], cwd=sources, variables=variables)

    folder = _installed("go-programs", _content(sorted(sources.rglob("*.*"))), build)
    return Program([str(folder / program)])


GO: Final = (
    _go("franz-go", "github.com/twmb/franz-go", "franz", SCENARIOS),
    _go("Sarama", "github.com/IBM/sarama", "sarama", _all_but(PROTOCOL_848)),
    _go(
        "segmentio/kafka-go",
        "github.com/segmentio/kafka-go",
        "segmentio",
        _all_but("idempotence", *TRANSACTIONS, PROTOCOL_848),
    ),
)


# --- Node


def _node_program() -> Program:
    sources = PROGRAMS / "node"

    def install(folder: Path) -> None:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(sources / name, folder)
        _run(["npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder)

    folder = _installed("node", (sources / "package-lock.json").read_text(), install)
    return Program(["node", str(sources / "kafkajs.js")], {"NODE_PATH": str(folder / "node_modules")})


NODE: Final = (
    ClientVersion(
        client="KafkaJS",
        version="2.2.4",
        scenarios=_all_but("lz4", "zstd", PROTOCOL_848),
        get=_node_program,
    ),
)

CATALOGUE: Final = (*JAVA, *PYTHON, *GO, *NODE)


# --- installing


def _installed(name: str, content: str, install: Callable[[Path], None]) -> Path:
    """A folder that is complete or absent, as those of `registry.py` are; another content makes another one."""
    folder = CACHE / "clients" / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    if not folder.is_dir():
        with only_one_process("clients"):
            if not folder.is_dir():
                print(f"Installing {name} (once) ...", file=sys.stderr, flush=True)
                staging = folder.with_name(f"{folder.name}.partial")
                shutil.rmtree(staging, ignore_errors=True)
                staging.mkdir(parents=True)
                install(staging)
                staging.rename(folder)
    return folder


def _content(files: Sequence[Path]) -> str:
    return "\0".join(each.read_text() for each in files)


def _run(command: Sequence[str], *, cwd: Path | None = None, variables: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(variables or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
