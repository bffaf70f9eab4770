"""Engines run a method: the simulator in one process, ``gossamer.engines.flower`` across a network."""

from gossamer.engines.executors import EXECUTORS
from gossamer.engines.options import Options
from gossamer.engines.result import Result
from gossamer.engines.simulate import simulate

__all__ = ["EXECUTORS", "Options", "Result", "simulate"]
