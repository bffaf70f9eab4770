"""Wireless links with low rates: pruned models, and signs of compressive measurements."""

from typing import Literal

from gossamer.core.method import Method
from gossamer.methods.composition import compose
from gossamer.methods.recipes import recipe
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.codecs.one_bit import Decoder, OneBit, Scaling
from gossamer.parts.servers.mean import Weighting
from gossamer.parts.servers.sums import SumThenDecode
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.magnitude import MagnitudePruned

__all__ = ["onebit_cs", "onebit_cs_paper"]


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
    scaling: Scaling = "norms",
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
        length: norm that the decoder assumes for every gradient; none sends the norm in 32 bits
        retain: after a lost upload, add its signs or its update to the next one, or nothing
        coefficient: factor of the retained signs or update
        accumulate: keep a retained update if the next upload is lost as well
        scaling: norm of the reconstruction: linear (as decoded) or norms (mean norm of the updates)
    """
    norm = None if length is None else lr * length  # an update is lr times a gradient
    codec = OneBit(measurements, rows, matrix, fresh, decoder, share, norm, retain, coefficient, accumulate, scaling)
    return _sensed(codec, _gradient(lr), MagnitudePruned(ratio, by, rise), weights)


@recipe
def onebit_cs_paper(
    lr: float = 0.5,
    weights: Weighting = "samples",
    ratio: tuple[float, ...] = (0.5,),
    by: Literal["model", "tensor"] = "model",
    rise: int = 0,
    measurements: float = 0.25,
    rows: int | None = None,
    decoder: Decoder = "least-squares",
    share: float = 0.1,
    coefficient: float = 1.0,
) -> Method:
    """``onebit_cs`` in the setting of its paper: one Gaussian matrix, lost signs sent again, no norms.

    Every gradient counts with norm 1, so a round moves the model by at most lr. The paper does not name the decoder.

    Guan, Hou et al., Energy-efficient federated learning: integrating model pruning, compressive sensing, and outage
    compensation

    Args:
        measurements: number of measurements per entry
        rows: total number of measurements; none uses measurements per entry
        decoder: least-squares, amp, niht or back-projection; amp and niht assume sparse updates
        share: fraction of large entries that amp and niht assume
        coefficient: factor of the retained signs
    """
    codec = OneBit(measurements, rows, "gaussian", False, decoder, share, lr, "signs", coefficient, scaling="linear")
    return _sensed(codec, _gradient(lr), MagnitudePruned(ratio, by, rise), weights)


def _gradient(lr: float) -> SGD:
    """Return the solver of one gradient of all samples per round."""
    return SGD(lr, steps=1, batch=None)


def _sensed(codec: OneBit, solver: SGD, view: MagnitudePruned, weights: Weighting) -> Method:
    """Return a method with this codec for the weights."""
    return compose(view, solver, OnWeights(codec), SumThenDecode(weights))
