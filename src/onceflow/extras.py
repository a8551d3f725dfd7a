"""What is installed only on request: `pip install 'onceflow[spark]'`, `'onceflow[sql]'`, `'onceflow[doctor]'`."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Final

from onceflow.errors import ConfigError

__all__ = ["EXTRAS", "advice_for", "require"]

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "spark": ("pyspark", "pyarrow", "numpy", "pandas", "orjson", "google.protobuf"),
    "sql": ("psycopg",),
    "doctor": ("yaml",),
}
"""The modules that each has, as they are imported."""


def require(extra: str, what: str) -> None:
    """Raises `ConfigError` if a module of it is missing. `what` needs it: "PostgreSQL", for example."""
    for module in EXTRAS[extra]:
        if not _is_there(module):
            raise ConfigError(f"{what} needs {module}, which is not installed: {_command(extra)}")


def advice_for(missing: ImportError) -> str | None:
    """A sentence, if what could not be imported belongs to an extra."""
    name = missing.name or ""
    for extra, modules in EXTRAS.items():
        if any(name == each or name.startswith(f"{each}.") for each in modules):
            module = name.partition(".")[0]
            if any(_is_there(each) for each in modules if each.partition(".")[0] == module):
                return f"this needs {module}, which is installed but cannot be imported: {missing}"
            return f"this needs {module}, which is not installed: {_command(extra)}"
    return None


def _command(extra: str) -> str:
    return f"pip install 'onceflow[{extra}]'"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of the package that it is in
        return False
