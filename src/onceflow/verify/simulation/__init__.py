"""The broker's core under one seed: clock, disk, network and clients, in memory and in virtual time.

`simulate(seed)` is one run and its verdict, in some milliseconds, and the same for the same seed wherever and whenever
it is run. `run_many` makes thousands of them; `replay` makes one again and tells what happened when.
"""

from __future__ import annotations

from onceflow.verify.simulation.many import Failure, Progress, Simulations, replay, run_many
from onceflow.verify.simulation.running import SimulationResult, simulate

__all__ = ["Failure", "Progress", "SimulationResult", "Simulations", "replay", "run_many", "simulate"]
