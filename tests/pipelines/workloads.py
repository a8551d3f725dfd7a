"""The tiny reference pipeline as a workload: `onceflow verify tests.pipelines.workloads:Clicks`."""

from __future__ import annotations

from onceflow.verify.workloads.reference import ReferenceWorkload


class Clicks(ReferenceWorkload):
    name = "clicks"
    reference = "tests.pipelines.clicks:REFERENCE"
