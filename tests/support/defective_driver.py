"""The driver of `onceflow verify spark` with a deliberate defect, which a variable of the environment names.

What runs in the driver's own process has it: the sink. The source plans and reads in processes that Spark starts.
"""

from __future__ import annotations

import os

import pytest

from onceflow.verify.programs import spark_driver
from tests.support.defects.stream import DEFECTS

__all__ = ["DEFECT_VARIABLE"]

DEFECT_VARIABLE = "ONCEFLOW_TESTS_DEFECT"

if __name__ == "__main__":
    DEFECTS[os.environ[DEFECT_VARIABLE]].switch_on(pytest.MonkeyPatch())
    spark_driver.main()
