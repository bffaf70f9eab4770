"""Methods that send scalars of random directions: clients evaluate losses, and no message depends on the model's size.

Networks need layers without running statistics: GroupNorm or LayerNorm in place of BatchNorm.
"""

from typing import Literal

from gossamer.core.method import Method
from gossamer.core.random.directions import DirectionKind
from gossamer.methods.composition import compose
from gossamer.methods.recipes import recipe
from gossamer.parts.codecs.seeds import ScalarType, Seeds
from gossamer.parts.downlinks.delta import Delta
from gossamer.parts.downlinks.seed_sums import SendSums
from gossamer.parts.servers.hiso import Hiso
from gossamer.parts.servers.mean import Weighting
from gossamer.parts.servers.seed_sums import SeedSums
from gossamer.parts.servers.sum_then_decode import SumThenDecode
from gossamer.parts.solvers.k_seed import KSeed
from gossamer.parts.solvers.scaled_zeroth_order import ScaledZerothOrder
from gossamer.parts.solvers.zeroth_order import ZerothOrder
from gossamer.parts.views.full import Full

__all__ = ["decomfl", "fedkseed", "hiso"]


@recipe
def decomfl(
    *,
    lr: float = 0.03,
    steps: int = 5,
    perturbations: int = 10,
    mu: float = 1e-3,
    batch: int | None = 32,
    difference: Literal["central", "forward"] = "forward",
    directions: DirectionKind = "rademacher",
    clip: float | None = None,
    dtype: ScalarType = "float32",
    weights: Weighting = "samples",
) -> Method:
    """Scalars along the random directions of each round, from forward passes alone.

    A download has the sums of the scalars of the rounds that a client has missed.

    Li et al., Achieving Dimension-Free Communication in Federated Learning via Zeroth-Order Optimization, ICLR 2025,
    https://arxiv.org/abs/2405.15861

    Args:
        lr: learning rate
        steps: local steps per round
        perturbations: directions per step
        mu: length of a perturbation
        batch: batch size; none takes all samples
        difference: central, or forward, which has fewer evaluations
        directions: distribution of the entries of a direction: rademacher or gauss
        clip: largest magnitude of a difference quotient; none disables clipping
        dtype: type of a scalar in a message: float32, float16 or bfloat16
        weights: client weights: samples, batches or uniform
    """
    solver = ZerothOrder(lr, steps, perturbations, mu, batch, difference, directions, clip)
    codec, down = Seeds(solver.span.size, directions, dtype), Delta(shared_start=True)
    return compose(Full(), solver, codec, SumThenDecode(weights), down=down)


@recipe
def hiso(
    *,
    lr: float = 0.03,
    steps: int = 5,
    perturbations: int = 10,
    mu: float = 1e-3,
    smoothing: float = 0.05,
    eps: float = 1e-8,
    batch: int | None = 32,
    difference: Literal["central", "forward"] = "forward",
    directions: DirectionKind = "rademacher",
    clip: float | None = None,
    dtype: ScalarType = "float32",
    weights: Weighting = "samples",
) -> Method:
    """DeComFL along directions that are scaled by the curvature, which every machine estimates from the scalars.

    Li et al., Converge Faster, Talk Less: Hessian-Informed Federated Zeroth-Order Optimization, ICLR 2026,
    https://arxiv.org/abs/2506.02370

    Args:
        lr: learning rate
        steps: local steps per round
        perturbations: directions per step
        mu: length of a perturbation, before it is scaled
        smoothing: weight of a round in the estimate of the curvature; 0 is DeComFL
        eps: number that keeps the curvature positive
        batch: batch size; none takes all samples
        difference: central, or forward, which has fewer evaluations
        directions: distribution of the entries of a direction: rademacher or gauss
        clip: largest magnitude of a difference quotient; none disables clipping
        dtype: type of a scalar in a message: float32, float16 or bfloat16
        weights: client weights: samples, batches or uniform
    """
    solver = ScaledZerothOrder(lr, steps, perturbations, mu, batch, difference, directions, clip)
    codec, down = Seeds(solver.span.size, directions, dtype), Delta(shared_start=True)
    return compose(Full(), solver, codec, Hiso(weights, smoothing=smoothing, eps=eps), down=down)


@recipe
def fedkseed(
    *,
    lr: float = 0.002,
    steps: int = 40,
    candidates: int = 1024,
    mu: float = 1e-3,
    batch: int | None = 32,
    directions: DirectionKind = "rademacher",
    clip: float | None = None,
    dtype: ScalarType = "float32",
    weights: Weighting = "samples",
) -> Method:
    """Sums of scalars along a fixed set of random directions, in both ways.

    Qin et al., Federated Full-Parameter Tuning of Billion-Sized Language Models with Communication Cost under 18
    Kilobytes, ICML 2024, https://arxiv.org/abs/2312.06353

    Args:
        lr: learning rate
        steps: local steps per round, each along one direction
        candidates: number of directions of the run
        mu: length of a perturbation
        batch: batch size; none takes all samples
        directions: distribution of the entries of a direction: rademacher or gauss
        clip: largest magnitude of a difference quotient; none disables clipping
        dtype: type of a scalar in an upload: float32, float16 or bfloat16
        weights: client weights: samples, batches or uniform
    """
    solver = KSeed(lr, steps, candidates, mu, batch, directions, clip)
    return compose(Full(), solver, Seeds(candidates, directions, dtype), SeedSums(weights), down=SendSums())
