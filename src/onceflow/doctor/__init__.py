"""`onceflow doctor`: what exactly-once needs of a cluster, of a client and of a Spark job, and what is there.

    report = doctor.examine(bootstrap="kafka:9092", clients=["producer.properties"], jobs=["billing.py"])
    report.is_fit()                                     # no faults
    [line.found for line in report.lines if line.verdict == "fault"]

It only looks: nothing is created, written or changed, in the cluster or elsewhere. Three steps: facts are gathered
(`gathering.py` from a cluster, `files.py` and `python_jobs.py` from files), the checks (`*_checks.py`) are pure
functions of facts, and the report is what they found. To add a check is to write such a function under its decorator
(`registry.py`), and a line in the table of faults of its test.
"""

from __future__ import annotations

from onceflow.doctor.examination import check_spark, examine
from onceflow.doctor.findings import Line, Report, Verdict

__all__ = ["Line", "Report", "Verdict", "check_spark", "examine"]
