"""Audits of differential privacy: a lower bound on the epsilon of a run, measured with canaries.

A statement of privacy is an upper bound that follows from the design of a run. A mistake in its code may break it. An
audit inserts canaries, clients whose updates are known directions, and measures how well they are found in the model.
``canaries`` defines them, ``one_run`` and ``one_shot`` are the statistics of two papers, and ``audit`` runs a method
and returns both.
"""

from gossamer.analysis.audit.canaries import Canaries
from gossamer.analysis.audit.one_run import correct_guesses, epsilon_bound, p_value
from gossamer.analysis.audit.one_shot import epsilon_estimate, epsilon_interval, epsilon_of_gaussians
from gossamer.analysis.audit.run import Audit, audit

__all__ = [
    "Audit",
    "Canaries",
    "audit",
    "correct_guesses",
    "epsilon_bound",
    "epsilon_estimate",
    "epsilon_interval",
    "epsilon_of_gaussians",
    "p_value",
]
