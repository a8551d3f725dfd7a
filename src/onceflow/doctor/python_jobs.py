"""What a Spark job in Python says about itself, read from its source. The program is not run.

Followed are chains of calls (`spark.readStream.format(...).option(...)`), `SparkSession.builder.config(...)`,
`onceflow.spark.session(...)` and `KafkaSink(...)`, with constants as arguments, and names that are assigned once in
the file, or one time after the other in one block: then the last one before counts. Any other value is `UNSEEN`: it is
set, to what is not known here. What is in other modules is not seen; of a reader that is not followed up to its `load`,
what is missing may have been said elsewhere. A `Pipeline` has the source and the sink that Onceflow gives it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from onceflow.doctor.facts import UNSEEN, SparkFacts
from onceflow.errors import ConfigError

__all__ = ["read_job"]

STATEFUL: Final = frozenset(
    {
        "groupBy",
        "groupby",
        "dropDuplicates",
        "drop_duplicates",
        "dropDuplicatesWithinWatermark",
        "transformWithState",
        "transformWithStateInPandas",
        "applyInPandasWithState",
    }
)
READERS: Final = ("readStream", "read")
WRITERS: Final = ("writeStream", "write")
OUR_MODULES: Final = ("onceflow.spark", "onceflow.pipelines", "onceflow.pipelines.pipeline")
STARTS: Final = frozenset({"start", "toTable", "save"})
LOADS: Final = frozenset({"load", "table"})
JUDGED_IF_MISSING: Final = ("kafka.isolation.level", "startingoffsets")
PIPELINE_SOURCE: Final = {"format": "onceflow", "startingoffsets": "earliest"}


class _Assignment(NamedTuple):
    block: int
    """The list of statements that it is in."""
    end: tuple[int, int]
    value: ast.expr


class _Link(NamedTuple):
    """One element of `a.b(...).c`: its name, the call if it is one, and where in the program it is."""

    name: str
    call: ast.Call | None
    node: ast.expr


def read_job(path: str) -> SparkFacts:
    """Raises `ConfigError` if it is not a Python program, or has nothing of Spark in it that could be judged."""
    try:
        tree = ast.parse(Path(path).read_bytes(), filename=path)
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:  # the last two: nested too deeply
        where = f" (line {problem.lineno})" if isinstance(problem, SyntaxError) else ""
        raise ConfigError(f"{path} is not a Python program{where}") from None
    facts = _Reading(tree).facts(path)
    if facts == SparkFacts(name=path):
        raise ConfigError(
            f"{path} has no readers, writers, sinks or sessions of Spark in it: is the job in another module? "
            "Then look at that one, or write its settings into a file"
        )
    return facts


class _Reading:
    def __init__(self, tree: ast.Module) -> None:
        self._calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self._assignments = _assignments(tree)
        self._attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        self._imported = {
            name.asname or name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in OUR_MODULES
            for name in node.names
        }

    def facts(self, path: str) -> SparkFacts:
        chains = [self._chain(call) for call in self._calls]
        writers = [links for links in _segments(chains, WRITERS) if STARTS & {each.name for each in links}]
        queries = [self._options(links) for links in writers]
        sources = [self._source(links) for links in _segments(chains, READERS)]
        sources += [PIPELINE_SOURCE for _ in self._pipelines()]
        return SparkFacts(
            name=path,
            conf=self._conf(chains),
            sources=tuple(sources),
            sinks=(*(query for query in queries if "format" in query), *self._our_sinks()),
            queries=tuple(queries),
            stateful=bool(self._attributes & STATEFUL) if sources else None,
        )

    def _our_sinks(self) -> Iterator[dict[str, str]]:
        for call in self._calls:
            if _name(call.func) == "KafkaSink":
                yield self._arguments(call) | {"format": "onceflow"}
            elif _name(call.func) == "SqlSink":
                yield {"format": "sql"}
        for call in self._pipelines():
            name = self._arguments(call).get("name", UNSEEN)
            yield {"format": "onceflow", "app_id": name, "new_checkpoint": UNSEEN}

    def _pipelines(self) -> list[ast.Call]:
        return [call for call in self._calls if _name(call.func) in self._imported & {"Pipeline"}]

    def _source(self, links: list[_Link]) -> dict[str, str]:
        missing = {} if LOADS & {each.name for each in links} else dict.fromkeys(JUDGED_IF_MISSING, UNSEEN)
        return missing | self._options(links)

    def _meant(self, node: ast.expr) -> ast.expr:
        """What a name stands for where it is used; the name itself, if that is not known."""
        found = self._assignments.get(node.id, []) if isinstance(node, ast.Name) else []
        if len(found) == 1:
            return found[0].value
        if len({each.block for each in found}) != 1:
            return node
        return next((each.value for each in reversed(found) if each.end <= (node.lineno, node.col_offset)), node)

    def _chain(self, node: ast.expr) -> list[_Link]:
        """From the first name to this call. A name that stands for another chain is followed there."""
        found: list[_Link] = []
        followed: set[int] = set()
        while True:
            if isinstance(node, ast.Call):
                found.append(_Link(_name(node.func), node, node))
                if not isinstance(node.func, ast.Attribute):
                    return found[::-1]  # of a plain function
                node = node.func.value
            elif isinstance(node, ast.Attribute):
                found.append(_Link(node.attr, None, node))
                node = node.value
            elif (meant := self._meant(node)) is not node and id(meant) not in followed:
                followed.add(id(meant))
                node = meant
            else:
                return found[::-1]

    def _options(self, links: list[_Link]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, call, _ in links:
            if call is None:
                continue
            if name == "option" and len(call.args) == 2:
                found[self._value(call.args[0]).lower()] = self._value(call.args[1])
            elif name == "options":
                found |= {key.lower(): value for key, value in self._arguments(call).items()}
            elif name in ("format", "queryName") and call.args:
                found[name.lower()] = self._value(call.args[0])
            elif name == "trigger":
                found |= _trigger(self._arguments(call))
        return found

    def _conf(self, chains: list[list[_Link]]) -> dict[str, str]:
        found: dict[str, str] = {}
        for call in self._calls:
            if ast.unparse(call.func).endswith("spark.session") or _name(call.func) in self._imported & {"session"}:
                found |= self._session(call)
        for chain in chains:
            if {each.name for each in chain} & {"builder", "conf", "SparkConf"} and chain[-1].call is not None:
                found |= self._configured(chain[-1].name, chain[-1].call)
        return found

    def _configured(self, name: str, call: ast.Call) -> dict[str, str]:
        if name in ("config", "set") and len(call.args) == 2:
            return {self._value(call.args[0]): self._value(call.args[1])}
        return {"spark.master": self._value(call.args[0])} if name == "master" and call.args else {}

    def _session(self, call: ast.Call) -> dict[str, str]:
        """What `onceflow.spark.session` sets, and what is given to it."""
        from onceflow.spark.sessions import recommended

        given = {word.arg: word.value for word in call.keywords if word.arg is not None}
        master = self._value(given["master"]) if "master" in given else None
        conf = {each.name: each.value for each in recommended(master)}
        if master is not None:
            conf["spark.master"] = master
        return conf | (self._mapping(given["conf"]) if "conf" in given else {})

    def _arguments(self, call: ast.Call) -> dict[str, str]:
        found: dict[str, str] = {}
        for word in call.keywords:
            if word.arg is None:
                found |= self._mapping(word.value)
            else:
                found[word.arg] = self._value(word.value)
        return found

    def _mapping(self, node: ast.expr) -> dict[str, str]:
        node = self._meant(node)
        if not isinstance(node, ast.Dict):
            return {}
        return {
            self._value(key): self._value(value)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }

    def _value(self, node: ast.expr) -> str:
        node = self._meant(node)
        if not isinstance(node, ast.Constant) or node.value is None:
            return UNSEEN
        value: Any = node.value
        return str(value).lower() if isinstance(value, bool) else str(value)


def _assignments(tree: ast.Module) -> dict[str, list[_Assignment]]:
    """All assignments to each name, in the order of the program."""
    found: dict[str, list[_Assignment]] = {}
    for block in _blocks(tree):
        for node in block:
            if isinstance(node, ast.Assign):
                end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(_Assignment(id(block), end, node.value))
    return found


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):  # the body of a lambda is no list
                yield block


def _segments(chains: list[list[_Link]], beginnings: tuple[str, ...]) -> list[list[_Link]]:
    """What follows `readStream` (or `writeStream`), up to the end of the reader (or the writer): each once, as long as
    it gets."""
    found: dict[int, list[_Link]] = {}
    for chain in chains:
        for at, link in enumerate(chain):
            if link.call is None and link.name in beginnings:
                links = _until_its_end(chain[at + 1 :])
                if len(links) > len(found.get(id(link.node), ())):
                    found[id(link.node)] = links
    return list(found.values())


def _until_its_end(links: list[_Link]) -> list[_Link]:
    for at, link in enumerate(links):
        if link.name in LOADS | STARTS:
            return links[: at + 1]
    return links


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _trigger(arguments: dict[str, str]) -> dict[str, str]:
    if "continuous" in arguments:
        return {"continuous": arguments["continuous"]}
    return {"trigger": arguments["processingTime"]} if "processingTime" in arguments else {}
