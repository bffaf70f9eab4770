"""Sparse models: the smallest weights are pruned, and nonzero weights are sent with their indices.

Weight matrices are pruned. Norms, biases and running statistics are sent uncompressed in the same message.
"""

from typing import Literal, Unpack

from gossamer.core.errors import require, wrong_argument
from gossamer.core.method import Method
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Training, pick, recipe
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.codecs.sparse import Sparse
from gossamer.parts.pruning_schedule import Progressive
from gossamer.parts.servers.average import Average, MajorityAverage, PrunedAverage
from gossamer.parts.solvers.sparse import PruningSGD, SparseSGD
from gossamer.parts.views.entries import Full

__all__ = ["fedavg_pruned", "fedsparsify"]


@recipe
def fedsparsify(
    *,
    sparsity: float = 0.95,
    where: Literal["local", "global"] = "local",
    first: int = 1,
    every: int = 1,
    exponent: float = 3.0,
    **fields: Unpack[Averaging],
) -> Method:
    """Progressive pruning over the rounds: the model becomes sparse, and so do messages both ways.

    Stripelis et al., Federated Progressive Sparsification (Purge, Merge, Tune)+, 2022,
    https://arxiv.org/abs/2204.12430

    Args:
        sparsity: fraction of the weights that are zero after the last round
        where: local (clients prune, and the server keeps weights by majority vote) or global (the server prunes)
        first: round, counted from 1, up to which nothing is pruned
        every: number of rounds from one pruning to the next
        exponent: larger values prune more in early rounds
    """
    require((where in ("local", "global"), wrong_argument("where", where, "must be local or global")))
    pruning, local = Progressive(sparsity, first, every, exponent), where == "local"
    solver = SparseSGD(**pick(Training, fields), pruning=pruning, local=local)
    server = MajorityAverage(fields["weights"]) if local else PrunedAverage(fields["weights"], pruning=pruning)
    sparse = OnWeights(Sparse())
    return compose(Full(), solver, sparse, server, down=sparse, send="model")


@recipe
def fedavg_pruned(*, sparsity: float = 0.7, **fields: Unpack[Averaging]) -> Method:
    """FedAvg with magnitude pruning within each round; clients send the pruned model.

    The baseline of that kind in https://arxiv.org/abs/2408.03220. The schedule of a round is that of Zhu and Gupta, To
    prune, or not to prune, 2017, https://arxiv.org/abs/1710.01878

    Args:
        sparsity: fraction of the weights that are zero at the end of each round
    """
    solver = PruningSGD(**pick(Training, fields), sparsity=sparsity)
    return compose(Full(), solver, OnWeights(Sparse()), Average(fields["weights"]), send="model")
