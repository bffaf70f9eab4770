"""Federated averaging with central differential privacy: DP-FedAvg and DP-FTRL.

Both clip updates to a norm and add Gaussian noise at the server, so that the model reveals little about any one client:
``gossamer.parts.servers.private`` and ``gossamer.parts.servers.private_tree`` have the equations. With m clients per
round, the noise of their mean is ``noise_multiplier * clip / m`` per entry. So more clients per round allow for more
noise in the sum, and a smaller epsilon.
"""

from typing import Unpack

from gossamer.core.method import Method
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Training, recipe
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.servers.mean import Mean
from gossamer.parts.servers.private import AdaptiveClip, PrivateMean
from gossamer.parts.servers.private_tree import TreeMean
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.entries import Full

__all__ = ["dp_fedavg", "dp_ftrl"]


@recipe
def dp_fedavg(
    *,
    clip: float = 1.0,
    adaptive: bool = False,
    noise_multiplier: float = 1.0,
    server_lr: float = 1.0,
    **fields: Unpack[Training],
) -> Method:
    """FedAvg with clipped updates and Gaussian noise at the server.

    McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018,
    https://arxiv.org/abs/1710.06963

    Args:
        clip: largest norm of an update
        adaptive: let ``clip`` follow the median of the norms, as in https://arxiv.org/abs/1905.03871
        noise_multiplier: standard deviation of the noise of the sum of updates, divided by ``clip``
        server_lr: server learning rate, the factor of the mean update
    """
    server = PrivateMean(
        Mean("uniform", server_lr=server_lr),
        AdaptiveClip() if adaptive else None,
        clip=clip,
        noise_multiplier=noise_multiplier,
    )
    return compose(Full(), SGD(**fields), Dense(), server)


@recipe
def dp_ftrl(
    *,
    clip: float = 1.0,
    noise_multiplier: float = 1.0,
    server_lr: float = 1.0,
    momentum: float = 0.0,
    restart_every: int | None = None,
    honaker: bool = True,
    **fields: Unpack[Training],
) -> Method:
    """FedAvg with clipped updates and tree noise at the server, whose guarantee needs no random sampling.

    Kairouz et al., Practical and Private (Deep) Learning without Sampling or Shuffling, ICML 2021,
    https://arxiv.org/abs/2103.00039

    Args:
        clip: largest norm of an update
        noise_multiplier: standard deviation of the noise of a node of the tree, divided by ``clip``
        server_lr: server learning rate, the factor of the mean update
        momentum: server momentum
        restart_every: number of rounds of a tree; none has one tree for the whole run
        honaker: estimate sums from all nodes of the tree (Honaker, 2015), so that they have less noise
    """
    server = TreeMean(server_lr, momentum, restart_every, honaker, clip=clip, noise_multiplier=noise_multiplier)
    return compose(Full(), SGD(**fields), Dense(), server)
