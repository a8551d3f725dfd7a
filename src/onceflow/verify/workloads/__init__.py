"""What is run under faults: each workload in a file of its own, called by its name."""

from __future__ import annotations

import importlib
from typing import Final

from onceflow.errors import ConfigError
from onceflow.verify.stage import Workload

__all__ = ["WORKLOADS", "workload_named"]

WORKLOADS: Final = {
    "producers": ("onceflow.verify.workloads.producers", "Producers"),
    "copy": ("onceflow.verify.workloads.copy", "Copy"),
    "spark": ("onceflow.verify.workloads.spark", "Spark"),
    "orders": ("onceflow.verify.workloads.reference", "Orders"),
    "viewing": ("onceflow.verify.workloads.reference", "Viewing"),
    "pricing": ("onceflow.verify.workloads.reference", "Pricing"),
    "pipeline": ("onceflow.verify.workloads.pipeline", "Pipeline"),
}


def workload_named(name: str) -> Workload:
    """One of ours, or `PACKAGE.MODULE:CLASS` for one of yours."""
    module, colon, cls = name.partition(":")
    if not colon:
        if name not in WORKLOADS:
            known = ", ".join(WORKLOADS)
            raise ConfigError(f"there is no workload {name!r}; there is {known}, or your own as PACKAGE.MODULE:CLASS")
        module, cls = WORKLOADS[name]
    try:
        found: Workload = getattr(importlib.import_module(module), cls)()
    except (ImportError, AttributeError) as problem:
        raise ConfigError(f"the workload {name!r} cannot be loaded: {problem}") from None
    return found
