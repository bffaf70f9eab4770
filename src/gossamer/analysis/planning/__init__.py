"""Plans: the power that each device of a fleet sends with, how much it prunes, and how many measurements all take.

From what the devices have (``gossamer.fleet.fleet``), what a round takes, and budgets of energy and time follows
which choices are possible; of these the plan is the one with the least convergence bound. What is minimised is in
``target``, what devices take in ``loads``, what pruning saves in ``pruning``, the search in ``search``, and the file in
``plan``; whether a run works as planned, ``work`` says.
"""

from gossamer.analysis.planning.loads import Load, Pruning
from gossamer.analysis.planning.plan import Plan, Share
from gossamer.analysis.planning.problem import Limits, Problem, make
from gossamer.analysis.planning.target import PLANNED, Target
from gossamer.analysis.planning.work import MessageSize

__all__ = ["PLANNED", "Limits", "Load", "MessageSize", "Plan", "Problem", "Pruning", "Share", "Target", "make"]
