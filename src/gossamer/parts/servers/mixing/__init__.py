"""Mixing weights and the rotation schedule of PERM.

Deng et al., Distributed Personalized Empirical Risk Minimization, NeurIPS 2023, https://arxiv.org/abs/2310.17761.

    distances    ``GradientTable``: squared distances between the gradients of clients
    sketch       ``Sketch``: short vectors with the same distances in expectation
    weights      ``waterfill``, ``nearest``: mixing weights from distances
    clusters     ``group``, ``between``: mixing weights of clusters of clients
    stored       ``square``, ``support``: the forms in which a server stores mixing weights
    colouring    ``edge_colours``: rounds in which no client and no model has two visits
    schedule     ``draw``, ``visits``: which client trains which model in a round
"""

from gossamer.parts.servers.mixing.clusters import between, group, hosts, shares
from gossamer.parts.servers.mixing.colouring import Indices, edge_colours
from gossamer.parts.servers.mixing.distances import GradientTable, block_rows
from gossamer.parts.servers.mixing.schedule import Flags, Pairs, Table, carried, draw, pending, slot, visits
from gossamer.parts.servers.mixing.sketch import Sketch
from gossamer.parts.servers.mixing.stored import Weights, dense, even, looked_up, sampled, square, summary, support
from gossamer.parts.servers.mixing.weights import (
    complexity,
    descend,
    nearest,
    penalty,
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
