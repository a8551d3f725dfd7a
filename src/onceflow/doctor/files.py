"""Reads files of settings: Java's .properties (spark-defaults.conf is one), JSON, and YAML as far as settings need it.

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
from onceflow.properties import parse_properties

__all__ = ["FLAVORS", "ROLES", "read_clients", "read_settings", "read_spark", "spark_facts_of"]

ROLES: Final = ("producer", "consumer", "streams")
FLAVORS: Final = ("java", "librdkafka")
FILE_BYTES_MAX: Final = 1_000_000

SINK_OPTIONS: Final = ("app_id", "topic", "guarantee", "transaction_timeout_ms", "bootstrap_servers")
QUERY_OPTIONS: Final = ("checkpointlocation", "queryname", "trigger", "continuous")
_SECTIONS: Final = re.compile(r"^(?:conf|config|options|kafka\.properties|properties)\.(?=.)")
SPRING: Final = "spring.kafka."
SPRING_OWN: Final = ("listener", "template", "admin", "jaas", "retry", "ssl")
"""Sections that are not of a client, or have other names there than Kafka's."""
SPRING_NAMES: Final = {"transaction.id.prefix": "transactional.id"}
_YAML_LINE: Final = re.compile(
    r"""(?P<indent>\ *)(?P<name>"[^"]+"|'[^']+'|[^\s#:'"\[{&*!|>-][^#]*?)\s*:(?:\s+(?P<value>.*))?"""
)


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
    if suffix == ".json" or text.lstrip()[:1] == "{":
        return _json(path, text)
    return _yaml(path, text) if suffix in (".yaml", ".yml") else parse_properties(text, path)


def _json(path: str, text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        where = f" (line {problem.lineno})" if isinstance(problem, json.JSONDecodeError) else ""
        raise ConfigError(f"{path} is not JSON{where}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} has to be one JSON object of settings")
    return dict(_flat(found, ""))


def _flat(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, each in value.items():
        if isinstance(each, dict):
            yield from _flat(each, f"{prefix}{name}.")
        elif isinstance(each, list):
            yield prefix + name, ",".join(_text(one) for one in each)
        elif each is not None:
            yield prefix + name, _text(each)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _yaml(path: str, text: str) -> dict[str, str]:
    """Names and values, nested by indentation; nothing else of YAML."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#") or line.strip() in ("---", "..."):
            continue
        match = _YAML_LINE.fullmatch(line.rstrip())
        if match is None:
            raise ConfigError(f"line {number} of {path} is not 'name: value', which is all of YAML that is read here")
        indent, name = len(match["indent"]), match["name"].strip("\"'")
        above = [each for each in above if each[0] < indent]
        value = _yaml_value(match["value"] or "")
        if value is None:
            above.append((indent, name))
        else:
            found[".".join([*(each for _, each in above), name])] = value
    return found


def _yaml_value(text: str) -> str | None:
    """None if there is none: then what follows is nested."""
    text = text.strip()
    if text[:1] in ("'", '"'):
        return text[1:].partition(text[0])[0]
    text = re.sub(r"(^|\s)#.*$", "", text).strip()
    return text or None
