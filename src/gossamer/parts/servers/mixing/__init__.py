"""Mixing weights and the rotation schedule of PERM.

Deng et al., Distributed Personalized Empirical Risk Minimization, NeurIPS 2023, https://arxiv.org/abs/2310.17761.

    distances    ``GradientTable``: squared distances between the gradients of clients
    sketch       ``Sketch``: short vectors with the same distances in expectation
    weights      ``waterfill``, ``nearest``: mixing weights from distances
    colouring    ``edge_colours``: rounds in which no client and no model has two visits
    schedule     ``draw``, ``visits``: which client trains which model in a round
"""

from gossamer.parts.servers.mixing.colouring import Indices, edge_colours
from gossamer.parts.servers.mixing.distances import GradientTable, block_rows
from gossamer.parts.servers.mixing.schedule import Flags, Pairs, Table, carried, draw, pending, slot, visits
from gossamer.parts.servers.mixing.sketch import Sketch
from gossamer.parts.servers.mixing.weights import (
    Weights,
    complexity,
    dense,
    descend,
    even,
    looked_up,
    nearest,
    penalty,
    simplex,
    square,
    summary,
    support,
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
    "block_rows",
    "carried",
    "complexity",
    "dense",
    "descend",
    "draw",
    "edge_colours",
    "even",
    "looked_up",
    "nearest",
    "penalty",
    "pending",
    "simplex",
    "slot",
    "square",
    "summary",
    "support",
    "usual_lambda",
    "visits",
    "waterfill",
]
