"""Mixing weights and the rotation schedule of PERM.

Deng et al., Distributed Personalized Empirical Risk Minimization, NeurIPS 2023, https://arxiv.org/abs/2310.17761.

    distances    ``GradientTable``: squared distances between the gradients of clients, or of their sketches
    weights      ``waterfill``, ``nearest``: mixing weights from distances; ``group``, ``between``: those of clusters
    stored       ``square``, ``support``: the forms in which a server stores mixing weights
    schedule     ``draw``, ``visits``: which client trains which model in a round
"""

from gossamer.parts.servers.mixing.distances import GradientTable, Sketch, block_rows
from gossamer.parts.servers.mixing.schedule import (
    Flags,
    Indices,
    Pairs,
    Table,
    carried,
    draw,
    edge_colours,
    pending,
    slot,
    visits,
)
from gossamer.parts.servers.mixing.stored import Weights, dense, even, looked_up, sampled, square, summary, support
from gossamer.parts.servers.mixing.weights import (
    between,
    complexity,
    descend,
    group,
    hosts,
    nearest,
    penalty,
    shares,
    simplex,
    usual_lambda,
    waterfill,
)

__all__ = [
    "Flags",
    "GradientTable",
    "Indices",
    "Pairs",
    "Sketch",
    "Table",
    "Weights",
    "between",
    "block_rows",
    "carried",
    "complexity",
    "dense",
    "descend",
    "draw",
    "edge_colours",
    "even",
    "group",
    "hosts",
    "looked_up",
    "nearest",
    "penalty",
    "pending",
    "sampled",
    "shares",
    "simplex",
    "slot",
    "square",
    "summary",
    "support",
    "usual_lambda",
    "visits",
    "waterfill",
]
