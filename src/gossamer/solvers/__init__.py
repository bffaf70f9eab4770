"""Solvers: how a client trains what it holds."""

from gossamer.solvers.adam import Adam
from gossamer.solvers.base import Gradient, Now, Solver, SolverMemory
from gossamer.solvers.batches import InBatches
from gossamer.solvers.ditto import Ditto
from gossamer.solvers.meta import PerFedAvg
from gossamer.solvers.noting import NotingSGD
from gossamer.solvers.pfedme import PFedMe
from gossamer.solvers.probe import Probe
from gossamer.solvers.pruning import PruningSGD
from gossamer.solvers.schedules import SCHEDULES, Constant, Cosine, Exponential, Schedule, Steps
from gossamer.solvers.sgd import SGD

__all__ = [
    "SCHEDULES",
    "SGD",
    "Adam",
    "Constant",
    "Cosine",
    "Ditto",
    "Exponential",
    "Gradient",
    "InBatches",
    "NotingSGD",
    "Now",
    "PFedMe",
    "PerFedAvg",
    "Probe",
    "PruningSGD",
    "Schedule",
    "Solver",
    "SolverMemory",
    "Steps",
]
