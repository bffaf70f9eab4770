"""Plans for a fleet: the transmit power and pruning ratio of each device, and the number of measurements.

A plan minimizes a convergence bound within budgets of energy and time. ``target`` defines the bound and estimates its
constants, ``loads`` the devices' costs and what pruning saves, ``search`` the search, ``problem`` the planning problem
of a fleet, ``plan`` the result and its file. ``work`` checks that a run does not exceed its plan.
"""

from gossamer.analysis.planning.loads import Load, Pruning
from gossamer.analysis.planning.plan import Plan, Share
from gossamer.analysis.planning.problem import Limits, Problem, make
from gossamer.analysis.planning.target import PLANNED, Constants, Target, probe
from gossamer.analysis.planning.work import MessageSize

__all__ = [
    "PLANNED",
    "Constants",
    "Limits",
    "Load",
    "MessageSize",
    "Plan",
    "Problem",
    "Pruning",
    "Share",
    "Target",
    "make",
    "probe",
]
