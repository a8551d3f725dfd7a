"""`python -m tests.support.defective_broker DEFECT ...`: the broker of verified runs, less one of its protections."""

from __future__ import annotations

import sys

import pytest

from onceflow.verify import faulty_broker
from tests.support.defects.broker import DEFECTS

if __name__ == "__main__":
    DEFECTS[sys.argv.pop(1)].switch_on(pytest.MonkeyPatch())
    sys.exit(faulty_broker.main())
