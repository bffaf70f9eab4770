"""Methods that send scalars of random directions: clients evaluate losses, and no message depends on the model's size.

Networks need layers without running statistics: GroupNorm or LayerNorm in place of BatchNorm.
"""

from typing import Annotated, Literal, TypedDict, Unpack

from gossamer.core.method import Method
from gossamer.core.random.directions import DirectionKind
from gossamer.core.server import Server
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Default, pick, recipe
from gossamer.parts.codecs.seeds import ScalarType, Seeds
from gossamer.parts.downlinks.delta import Delta
from gossamer.parts.downlinks.seed_sums import SendSums
from gossamer.parts.servers.mean import Weighting
from gossamer.parts.servers.sums import Hiso, SeedSums, SumThenDecode
from gossamer.parts.solvers.zeroth_order import KSeed, Perturbing, ScaledZerothOrder, ZerothOrder
from gossamer.parts.views.entries import Full

__all__ = ["decomfl", "fedkseed", "hiso"]


class Quotients(TypedDict, total=False):
    """Local training by difference quotients: fields of ``KSeed`` and ``ZerothOrder``."""

    lr: Annotated[float, Default(0.03)]
    steps: Annotated[int, Default(5)]
    mu: Annotated[float, Default(1e-3)]
    batch: Annotated[int | None, Default(32)]
    directions: Annotated[DirectionKind, Default("rademacher")]
    clip: Annotated[float | None, Default(None)]


class Perturbed(Quotients, total=False):
    """The same along several directions per step: fields of ``ZerothOrder``."""

    perturbations: Annotated[int, Default(10)]
    difference: Annotated[Literal["central", "forward"], Default("forward")]


class Sent(TypedDict, total=False):
    """Messages and aggregation weights."""

    dtype: Annotated[ScalarType, Default("float32")]
    weights: Annotated[Weighting, Default("samples")]


class Sums(Quotients, Sent, total=False):
    """Local training along one direction per step, messages and aggregation weights.

    Args:
        lr: learning rate
        steps: local steps per round, each along one direction
        mu: length of a perturbation
        batch: batch size; none takes all samples
        directions: distribution of the entries of a direction: rademacher or gauss
        clip: largest magnitude of a difference quotient; none disables clipping
        dtype: type of a scalar in an upload: float32, float16 or bfloat16
        weights: client weights: samples, batches or uniform
    """


class Scalars(Perturbed, Sent, total=False):
    """Local training along several directions per step, messages and aggregation weights.

    Args:
        lr: learning rate
        steps: local steps per round
        mu: length of a perturbation
        batch: batch size; none takes all samples
        directions: distribution of the entries of a direction: rademacher or gauss
        clip: largest magnitude of a difference quotient; none disables clipping
        perturbations: directions per step
        difference: central, or forward, which has fewer evaluations
        dtype: type of a scalar in a message: float32, float16 or bfloat16
        weights: client weights: samples, batches or uniform
    """


@recipe
def decomfl(**fields: Unpack[Scalars]) -> Method:
    """Scalars along the random directions of each round, from forward passes alone.

    A download has the sums of the scalars of the rounds that a client has missed.

    Li et al., Achieving Dimension-Free Communication in Federated Learning via Zeroth-Order Optimization, ICLR 2025,
    https://arxiv.org/abs/2405.15861
    """
    return _scalars(ZerothOrder(**pick(Perturbed, fields)), SumThenDecode(fields["weights"]), fields)


@recipe
def hiso(*, smoothing: float = 0.05, eps: float = 1e-8, **fields: Unpack[Scalars]) -> Method:
    """DeComFL along directions that are scaled by the curvature, which every machine estimates from the scalars.

    Li et al., Converge Faster, Talk Less: Hessian-Informed Federated Zeroth-Order Optimization, ICLR 2026,
    https://arxiv.org/abs/2506.02370

    Args:
        smoothing: weight of a round in the estimate of the curvature; 0 is DeComFL
        eps: number that keeps the curvature positive
    """
    server = Hiso(fields["weights"], smoothing=smoothing, eps=eps)
    return _scalars(ScaledZerothOrder(**pick(Perturbed, fields)), server, fields)


def _scalars(solver: Perturbing, server: Server, fields: Scalars) -> Method:
    """Return a method whose clients replay the scalars that they have missed."""
    codec = Seeds(solver.span.size, fields["directions"], fields["dtype"])
    return compose(Full(), solver, codec, server, down=Delta(shared_start=True))


@recipe(lr=0.002, steps=40)
def fedkseed(*, candidates: int = 1024, **fields: Unpack[Sums]) -> Method:
    """Sums of scalars along a fixed set of random directions, in both ways. All directions are equally likely.

    Qin et al., Federated Full-Parameter Tuning of Billion-Sized Language Models with Communication Cost under 18
    Kilobytes, ICML 2024, https://arxiv.org/abs/2312.06353

    Args:
        candidates: number of directions of the run
    """
    solver = KSeed(candidates=candidates, **pick(Quotients, fields))
    codec = Seeds(candidates, fields["directions"], fields["dtype"])
    return compose(Full(), solver, codec, SeedSums(fields["weights"]), down=SendSums())
