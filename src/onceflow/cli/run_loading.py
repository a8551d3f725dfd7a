"""Pipelines by name: those that come with Onceflow, and PACKAGE.MODULE:NAME for anybody's."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from onceflow.errors import ConfigError
from onceflow.extras import require

if TYPE_CHECKING:
    from onceflow.pipelines import Pipeline

__all__ = ["load_pipeline"]


def load_pipeline(name: str) -> Pipeline:
    """Raises `ConfigError`, in a sentence, whatever is wrong with it."""
    require("spark", "a pipeline")
    from onceflow.pipelines import Pipeline
    from onceflow.pipelines.reference import REFERENCES

    module, colon, attribute = name.partition(":")
    if name in REFERENCES:
        found = importlib.import_module(f"onceflow.pipelines.{name}").PIPELINE
    elif not (module and colon and attribute):
        known = ", ".join(REFERENCES)
        raise ConfigError(f"there is no pipeline {name!r}: there is {known}, and PACKAGE.MODULE:NAME for one of yours")
    else:
        found = _attribute(_imported(module), attribute)
    if not isinstance(found, Pipeline):
        raise ConfigError(f"{name} is not a Pipeline: it is {found!r:.80}")
    return found


def _imported(name: str) -> ModuleType:
    """A module in the current folder is found, here and by the workers that Spark starts."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    os.environ["PYTHONPATH"] = os.pathsep.join((here, *filter(None, [os.environ.get("PYTHONPATH")])))
    try:
        return importlib.import_module(name)
    except ConfigError:
        raise
    except Exception as problem:
        raise ConfigError(f"the module {name!r} cannot be loaded: {type(problem).__name__}: {problem}") from problem


def _attribute(module: ModuleType, name: str) -> object:
    from onceflow.pipelines import Pipeline

    if hasattr(module, name):
        return getattr(module, name)
    there = [each for each, value in vars(module).items() if isinstance(value, Pipeline)]
    raise ConfigError(f"{module.__name__!r} has no {name!r}: its pipelines are {', '.join(there) or 'none'}")
