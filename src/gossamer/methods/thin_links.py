"""Thin links: pruned models, and signs of a few measurements."""

from typing import Literal

from gossamer.core.method import Method
from gossamer.methods.composition import compose
from gossamer.methods.recipes import recipe
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.codecs.one_bit import Decoder, OneBit
from gossamer.parts.servers.mean import Weighting
from gossamer.parts.servers.sum_then_decode import SumThenDecode
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.magnitude_pruned import MagnitudePruned

__all__ = ["onebit_cs"]


@recipe
def onebit_cs(
    lr: float = 0.5,
    weights: Weighting = "samples",
    ratio: tuple[float, ...] = (0.5,),
    by: Literal["model", "tensor"] = "model",
    rise: int = 0,
    measurements: float = 0.25,
    rows: int | None = None,
    matrix: Literal["hadamard", "gaussian"] = "hadamard",
    fresh: bool = True,
    decoder: Decoder = "least-squares",
    share: float = 0.1,
    length: float | None = None,
    retain: Literal["nothing", "signs", "change"] = "change",
    coefficient: float = 1.0,
    accumulate: bool = False,
) -> Method:
    """One gradient of a pruned model a round, as signs of measurements of it (Guan, Hou et al.).

    Args:
        retain: what becomes of a message that is lost: nothing, or its signs or the gradient are sent with the next
    """
    codec = OneBit(measurements, rows, matrix, fresh, decoder, share, length, retain, coefficient, accumulate)
    solver = SGD(lr, steps=1, batch=None)
    return compose(MagnitudePruned(ratio, by, rise), solver, OnWeights(codec), SumThenDecode(weights))
