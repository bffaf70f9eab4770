"""Engines: where a method runs. The simulator runs it in this process."""

from gossamer.engines.executors import EXECUTORS
from gossamer.engines.options import Options
from gossamer.engines.run import Result
from gossamer.engines.simulate import simulate

__all__ = ["EXECUTORS", "Options", "Result", "simulate"]
