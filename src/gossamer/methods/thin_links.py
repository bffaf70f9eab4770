"""Wireless links with low rates: pruned models, and signs of compressive measurements."""

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
    """One gradient of a pruned model per round, sent as one-bit compressive measurements.

    Guan, Hou et al., Energy-efficient federated learning: integrating model pruning, compressive sensing, and outage
    compensation

    Args:
        measurements: number of measurements per entry
        rows: total number of measurements; none uses measurements per entry
        matrix: measurement matrix: hadamard, or gaussian, which is slower
        fresh: draw a new matrix in every round, instead of one for all rounds
        decoder: least-squares, amp, niht, biht or back-projection; amp, niht and biht assume sparse updates
        share: fraction of large entries that amp, niht and biht assume
        length: norm that the decoder assumes for every update; none sends the norm in 32 bits
        retain: after a lost upload, add its signs or its update to the next one, or nothing
        coefficient: factor of the retained signs or update
        accumulate: keep a retained update if the next upload is lost as well
    """
    codec = OneBit(measurements, rows, matrix, fresh, decoder, share, length, retain, coefficient, accumulate)
    solver = SGD(lr, steps=1, batch=None)
    return compose(MagnitudePruned(ratio, by, rise), solver, OnWeights(codec), SumThenDecode(weights))
