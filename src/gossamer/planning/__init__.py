"""Plans: the power that each device of a fleet sends with, how much it prunes, and how many measurements all take.

From what the devices have (:mod:`gossamer.fleet`), what a round takes, and budgets of energy and time follows which
choices are possible; of these the plan is the one with the least convergence bound. What is minimised is in
``target``, what devices take in ``loads``, what pruning saves in ``pruning``, the search in ``search``, and the file in
``plan``; whether a run works as planned, ``work`` says.
"""

from gossamer.planning.loads import Load
from gossamer.planning.make import Limits, make
from gossamer.planning.message import Message
from gossamer.planning.plan import Plan, Share
from gossamer.planning.problem import Problem
from gossamer.planning.pruning import Pruning
from gossamer.planning.target import PLANNED, Target

__all__ = ["PLANNED", "Limits", "Load", "Message", "Plan", "Problem", "Pruning", "Share", "Target", "make"]
