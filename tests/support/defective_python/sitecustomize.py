"""Python imports this when it starts, if the folder is on PYTHONPATH: a deliberate defect for the driver of
`onceflow verify spark`, and for the processes that Spark starts for it, in which the source plans and reads.

The variable below names the defect.
"""

import os
import sys

VARIABLE = "ONCEFLOW_TESTS_DEFECT"
PROGRAMS = ("onceflow.verify.programs.spark_driver", "pyspark.")
"""What their modules begin with, which `python -m` runs."""

if VARIABLE in os.environ and any(each.startswith(PROGRAMS) for each in sys.orig_argv):
    import pytest
    from tests.support.defects.stream import DEFECTS

    DEFECTS[os.environ[VARIABLE]].switch_on(pytest.MonkeyPatch())
