"""Reference pipelines by name, for processes that are told only that: ours, and anybody's as PACKAGE.MODULE:NAME."""

from __future__ import annotations

import importlib

from onceflow.errors import ConfigError
from onceflow.pipelines.reference import Reference, reference_named

__all__ = ["load_reference"]


def load_reference(name: str) -> Reference:
    module, colon, attribute = name.partition(":")
    if not colon:
        return reference_named(name)
    found = getattr(importlib.import_module(module), attribute, None)
    if not isinstance(found, Reference):
        raise ConfigError(f"{name!r} is not a reference pipeline (onceflow.pipelines.reference.Reference)")
    return found
