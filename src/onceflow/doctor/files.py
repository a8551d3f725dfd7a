"""Reads files of settings: Java's .properties (spark-defaults.conf is one), JSON and YAML.

Every format becomes one flat mapping: what is nested is joined with dots. In it, `producer.acks` is of the producer
only, `acks` of all clients in the file. A complaint about a file says the line and never shows what is in it, which
may be a password.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from onceflow.doctor.facts import ClientFacts, SparkFacts
from onceflow.doctor.setting_names import (
    CONSUMER_NAMES,
    JAVA_MARKS,
    LIBRDKAFKA_MARKS,
    PRODUCER_NAMES,
    STREAMS_NAMES,
)
from onceflow.errors import ConfigError
from onceflow.extras import require
from onceflow.properties import parse_properties

__all__ = ["FLAVORS", "ROLES", "read_clients", "read_settings", "read_spark", "spark_facts_of"]

ROLES: Final = ("producer", "consumer", "streams")
FLAVORS: Final = ("java", "librdkafka")
FILE_BYTES_MAX: Final = 1_000_000
YAML_ELEMENTS_MAX: Final = 20_000
"""Names and values."""

SINK_OPTIONS: Final = ("app_id", "topic", "guarantee", "transaction_timeout_ms", "bootstrap_servers")
QUERY_OPTIONS: Final = ("checkpointlocation", "queryname", "trigger", "continuous")
_SECTIONS: Final = re.compile(r"^(?:conf|config|options|kafka\.properties|properties)\.(?=.)")
SPRING: Final = "spring.kafka."
SPRING_OWN: Final = ("listener", "template", "admin", "jaas", "retry", "ssl")
"""Sections that are not of a client, or have other names there than Kafka's."""
SPRING_NAMES: Final = {"transaction.id.prefix": "transactional.id"}


def read_clients(path: str, *, role: str | None = None, flavor: str | None = None) -> list[ClientFacts]:
    """The clients that a file has settings for. Raises `ConfigError` for one that cannot be read, or that does not
    tell what it is for."""
    found = read_settings(path)
    is_spring = any(name.startswith(SPRING) for name in found)
    values = _of_spring(found) if is_spring else found
    roles = [role] if role is not None else _roles(values)
    if not roles:
        raise ConfigError(f"{path} does not tell whether it is for a producer or a consumer: say so with --role")
    whose = flavor or ("java" if is_spring else _flavor(values))
    return [ClientFacts(name=path, role=each, flavor=whose, values=_of_role(values, each)) for each in roles]


def _of_spring(found: Mapping[str, str]) -> dict[str, str]:
    """What Spring Boot hands to clients. The rest of its file is the application's: a port, levels of its log."""
    aside = tuple(f"{SPRING}{each}." for each in SPRING_OWN)
    theirs = {name: value for name, value in found.items() if name.startswith(SPRING) and not name.startswith(aside)}
    return {_without_spring(name.removeprefix(SPRING)): value for name, value in theirs.items()}


def _without_spring(name: str) -> str:
    """Spring Boot has names of its own for the usual settings, with hyphens; those under `properties` are Kafka's."""
    before, properties, own = name.partition("properties.")
    if properties:
        return before + own
    role = _role_prefix(name)
    rest = name.removeprefix(f"{role}.").replace("-", ".")
    rest = SPRING_NAMES.get(rest, rest)
    return f"{role}.{rest}" if role else rest


def _roles(values: Mapping[str, str]) -> list[str]:
    bare = {name.removeprefix("main.").partition(".")[2] for name in values if _role_prefix(name)}
    prefixed = {_role_prefix(name) for name in values} if bare else set()
    if "application.id" in values or "processing.guarantee" in values:
        return ["streams"]
    found = {
        "producer": "producer" in prefixed or any(name in PRODUCER_NAMES for name in values),
        "consumer": "consumer" in prefixed or any(name in CONSUMER_NAMES for name in values),
        "streams": "streams" in prefixed,
    }
    return [each for each, is_there in found.items() if is_there]


def _role_prefix(name: str) -> str | None:
    first = name.partition(".")[0]
    return first if first in ROLES else None


def _of_role(values: Mapping[str, str], role: str) -> dict[str, str]:
    """What is of this role, and what is of all; the former wins."""
    common = {name: value for name, value in values.items() if _role_prefix(name) is None}
    if role != "streams":
        other = CONSUMER_NAMES if role == "producer" else PRODUCER_NAMES
        common = {name: value for name, value in common.items() if name not in other | STREAMS_NAMES}
    prefix = f"{role}."
    own = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    return common | {name.removeprefix("properties."): value for name, value in own.items()}


def _flavor(values: Mapping[str, str]) -> str:
    names = {name.removeprefix("producer.").removeprefix("consumer.") for name in values}
    java, librdkafka = bool(names & JAVA_MARKS), bool(names & LIBRDKAFKA_MARKS)
    if java == librdkafka:
        return "unknown"
    return "java" if java else "librdkafka"


def read_spark(path: str) -> SparkFacts:
    """A file of Spark settings: `spark.*` as in spark-defaults.conf, and `source.NAME`, `sink.NAME` and
    `checkpointLocation`, `queryName` and `trigger` of the query."""
    values = read_settings(path)
    if not values:
        raise ConfigError(f"{path} has no settings in it")
    return spark_facts_of(path, values)


def spark_facts_of(name: str, values: Mapping[str, str]) -> SparkFacts:
    conf: dict[str, str] = {}
    parts: dict[str, dict[str, str]] = {"source": {}, "sink": {}, "query": {}}
    for given, value in values.items():
        plain = _SECTIONS.sub("", given)
        if plain.startswith("spark."):
            conf[plain] = value
        else:
            part, option = _part(plain.lower())
            parts[part][option] = value
    if "app_id" in parts["sink"]:
        parts["sink"].setdefault("format", "onceflow")
    for option in QUERY_OPTIONS:
        if option in parts["sink"]:
            parts["query"][option] = parts["sink"].pop(option)
    stateful = {"true": True, "false": False}.get(parts["query"].pop("stateful", ""))
    return SparkFacts(
        name=name,
        conf=conf,
        sources=(parts["source"],) if parts["source"] else (),
        sinks=(parts["sink"],) if parts["sink"] else (),
        queries=(parts["query"],) if parts["query"] or parts["sink"] else (),
        stateful=stateful,
    )


def _part(name: str) -> tuple[str, str]:
    """Whose option it is, and what it is called there."""
    first, _, rest = name.partition(".")
    if rest and first in ("source", "sink", "query"):
        return first, _SECTIONS.sub("", rest)
    if name in SINK_OPTIONS:
        return "sink", name
    if name in QUERY_OPTIONS or name == "stateful":
        return "query", name
    return "source", name


def read_settings(path: str) -> dict[str, str]:
    """A file as a flat mapping, whatever its format."""
    try:
        data = Path(path).read_bytes()[: FILE_BYTES_MAX + 1]
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"{path} is larger than a file of settings can be")
        text = data.decode("utf-8-sig")
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file") from None
    suffix = Path(path).suffix.lower()
    if suffix in (".yaml", ".yml"):
        return _yaml(path, text)
    is_json = suffix == ".json" or text.lstrip()[:1] == "{"
    return _json(path, text) if is_json else parse_properties(text, path)


def _json(path: str, text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        where = f" (line {problem.lineno})" if isinstance(problem, json.JSONDecodeError) else ""
        raise ConfigError(f"{path} is not JSON{where}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} has to be one JSON object of settings")
    return dict(_flat(found, ""))


def _flat(value: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, each in value.items():
        name = _text(key)
        if isinstance(each, dict):
            yield from _flat(each, f"{prefix}{name}.")
        elif isinstance(each, list):
            yield prefix + name, ",".join(_text(one) for one in each)
        elif each is not None:
            yield prefix + name, _text(each)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _yaml(path: str, text: str) -> dict[str, str]:
    """Of several documents the later ones win, as with Spring."""
    require("doctor", f"{path} is YAML, and reading that")
    import yaml

    found: dict[str, str] = {}
    try:
        for line, document in _documents(path, yaml.SafeLoader(text)):
            if not isinstance(document, dict | None):
                raise ConfigError(f"{path} has to be names and values (line {line})")
            found.update(_flat(document or {}, ""))
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        raise ConfigError(f"{path} is not YAML" + (f" (line {mark.line + 1})" if mark else "")) from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
        # Most of them from values with a type in front that they are not of: `!!timestamp x`.
        raise ConfigError(f"{path} is not YAML, or not of the kind that settings are") from None
    return found


def _documents(path: str, loader: Any) -> Iterator[tuple[int, Any]]:
    """Each with its first line. Aliases are counted as often as they are used, before anything is made of them: a few
    lines can stand for more than there is memory."""
    while loader.check_node():
        node = loader.get_node()
        if _elements(node, {}) > YAML_ELEMENTS_MAX:
            raise ConfigError(f"{path} stands for more than {YAML_ELEMENTS_MAX:,} settings, with its aliases")
        yield node.start_mark.line + 1, loader.construct_document(node)


def _elements(node: Any, known: dict[int, int]) -> int:
    """Of a node of YAML and all that it holds. Raises `ValueError` where one holds itself."""
    if id(node) not in known:
        known[id(node)] = -1
        held = node.value if isinstance(node.value, list) else ()
        parts = [part for each in held for part in (each if isinstance(each, tuple) else (each,))]
        known[id(node)] = 1 + sum(_elements(each, known) for each in parts)
    if known[id(node)] < 0:
        raise ValueError("it holds itself")
    return known[id(node)]
