"""Solvers: how a client trains what it holds."""

from gossamer.solvers.adam import Adam
from gossamer.solvers.base import Gradient, Now, Solver
from gossamer.solvers.pruning import PruningSGD
from gossamer.solvers.schedules import SCHEDULES, Constant, Cosine, Exponential, Schedule, Steps
from gossamer.solvers.sgd import SGD

__all__ = [
    "SCHEDULES",
    "SGD",
    "Adam",
    "Constant",
    "Cosine",
    "Exponential",
    "Gradient",
    "Now",
    "PruningSGD",
    "Schedule",
    "Solver",
    "Steps",
]
