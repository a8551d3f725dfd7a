"""How much a test tries: a little with each `make test`, much with `ONCEFLOW_SOAK=1` (`make soak`)."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

SOAK = bool(os.environ.get("ONCEFLOW_SOAK"))


def effort(daily: int, soak: int) -> int:
    """So many examples, frames or kills each time, so many in a soak."""
    return soak if SOAK else daily


def examples(daily: int, soak: int, **more: Any) -> settings:
    """The settings of a property test. What is not given is in the profile that `tests/conftest.py` loads."""
    return settings(max_examples=effort(daily, soak), **more)
