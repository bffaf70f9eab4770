"""Solvers: how a client trains what it holds."""

from gossamer.solvers.base import Gradient, Solver
from gossamer.solvers.schedules import SCHEDULES, Constant, Cosine, Exponential, Schedule, Steps
from gossamer.solvers.sgd import SGD

__all__ = ["SCHEDULES", "SGD", "Constant", "Cosine", "Exponential", "Gradient", "Schedule", "Solver", "Steps"]
