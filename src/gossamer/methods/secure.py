"""Secure aggregation of a method's uploads: what must change so that they add up, and what cannot.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017,
https://doi.org/10.1145/3133956.3133982; Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead,
CCS 2020, https://doi.org/10.1145/3372297.3417885.

The server learns the sum of the uploads alone. So uploads must be small whole numbers (``Codec.sum_segments``) of one
weight, in the same entries at all clients, and the server must need only their sum (``Server.unsummable``). ``secured``
makes the changes that keep the idea of a method:

    weights by samples or batches      equal weights
    floats                             fixed point of 16 bits (``FixedPoint``)
    scales that each client measures   a fixed scale, in units of the learning rate: see below
    noise of each client               noise of the round (``CommonMaskedNoise``), summed by ``SumThenDecode``
    entropy codes                      none: a masked upload has no structure to code

An update grows with the learning rate, so the fixed scales are multiples of it. The multiples were measured on the
digits, with the defaults of ``signsgd``, ``terngrad``, ``fedmrn``, ``fedmrns`` and ``onebit_cs``; 50 clients. There,
``fedmrn`` loses four points of accuracy, since an entry whose common noise has the wrong sign moves at no client; the
others lose nothing that one or two seeds can show. Set a scale in the codec for other data: a codec whose scale is a
number stays as it is.
"""

from dataclasses import replace
from typing import Any, NamedTuple, cast

from gossamer.core.codec import Codec
from gossamer.core.downlink import Downlink
from gossamer.core.errors import require
from gossamer.core.method import Exchange, Method
from gossamer.core.secure import SecureAggregation
from gossamer.core.server import Server
from gossamer.core.view import View
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.codecs.fixed_point import FixedPoint
from gossamer.parts.codecs.masked_noise import CommonMaskedNoise, NoiseMask
from gossamer.parts.codecs.masks import SampledMask
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.codecs.one_bit import OneBit
from gossamer.parts.codecs.signs import StochasticSign, Ternary
from gossamer.parts.codecs.wrappers import CodecWrapper
from gossamer.parts.downlinks.delta import Delta
from gossamer.parts.servers.mean import Mean, WeightedMean
from gossamer.parts.servers.sums import SumThenDecode
from gossamer.parts.views.magnitude import MagnitudePruned

__all__ = ["secure_changes", "secured"]

SIGN, TRIT, MASK, LENGTH = 1.0, 2.0, 1.0, 1.0
"""Scales of signs, trits and masked noise, and norms of measured updates, divided by the learning rate."""

USUAL_RATE = 0.1
"""The learning rate that stands for that of a solver without one."""

VALUES = FixedPoint(limit=8.0, statistics=256.0)
"""The codec of models in place of changes: weights of norms start at 1, and variances are not bounded by a step."""


class Rates(NamedTuple):
    """What fixed scales depend on.

    Args:
        lr: the learning rate of the solver
        values: whether clients send models instead of changes
    """

    lr: float
    values: bool

    @classmethod
    def of(cls, exchange: Exchange) -> "Rates":
        """Return the rates of an exchange."""
        return cls(float(getattr(exchange.solver, "lr", USUAL_RATE)), exchange.send == "model")


def secured(method: Method, protocol: SecureAggregation | None = None) -> Method:
    """Return a method whose server learns only the sum of the uploads. ``secure_changes`` says what was changed.

    Args:
        method: the method; one whose uploads do not add up is refused
        protocol: the protocol; ``SecAgg()`` by default
    """
    return secure_changes(method, protocol)[0]


def secure_changes(method: Method, protocol: SecureAggregation | None = None) -> tuple[Method, list[str]]:
    """Return the method of ``secured``, and each change of a part as a text."""
    exchange = method.training
    codec = _summed(exchange.codec, Rates.of(exchange))
    server = _summing(exchange.server, codec)
    require(*_rules(method, codec, server))
    new = method.with_parts(codec=codec, server=server, secure=protocol or _default())
    return new, _changes(exchange, new.training)


def _default() -> SecureAggregation:
    from gossamer.parts.secure import SecAgg  # imported here: it needs an optional package

    return SecAgg()


def _changes(old: Exchange, new: Exchange) -> list[str]:
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in ("codec", "server")]
    return [f"{name}: {before} becomes {after}" for name, before, after in pairs if before != after]


def _summed(codec: Codec, rates: Rates) -> Codec:
    """Return a codec of whole numbers with the same idea, or the codec itself if there is none."""
    if isinstance(codec, OnWeights):
        return replace(codec, codec=_summed(codec.codec, rates), other=_summed(codec.other, rates))
    if isinstance(codec, CodecWrapper):
        return cast(Codec, replace(cast(Any, codec), codec=_summed(codec.codec, rates)))
    if isinstance(codec, Dense):
        return VALUES if rates.values else FixedPoint()
    if isinstance(codec, StochasticSign) and isinstance(codec.scale, str):
        return StochasticSign(SIGN * rates.lr)
    if isinstance(codec, Ternary):
        return Ternary(False, codec.scale or TRIT * rates.lr)
    if isinstance(codec, NoiseMask):
        return _common(codec, rates.lr)
    if isinstance(codec, OneBit):
        retain = "change" if codec.retain == "signs" else codec.retain
        return replace(codec, length=codec.length or LENGTH * rates.lr, retain=retain)
    return replace(codec, coded=False) if isinstance(codec, SampledMask) else codec


def _common(codec: NoiseMask, lr: float) -> CommonMaskedNoise:
    """Return the codec with noise that all clients share, and a fixed magnitude."""
    alpha = MASK * lr if isinstance(codec.alpha, str) else codec.alpha
    return CommonMaskedNoise(**{**vars(codec), "alpha": alpha, "coded": False})


def _summing(server: Server, codec: Codec) -> Server:
    """Return a server with equal weights, which sums codes before it decodes them if they have a common key."""
    if not isinstance(server, WeightedMean):
        return server
    if type(server) is Mean and codec.common:
        return SumThenDecode(**{**vars(server), "weights": "uniform"})
    return replace(server, weights="uniform")


def _rules(method: Method, codec: Codec, server: Server) -> list[tuple[bool, str]]:
    """Return the conditions for secure aggregation, each with the message if it does not hold."""
    last, probe = method.training, method.sampler.probe
    beside = ", ".join(section.name for section in last.solver.sections)
    wrong_server, wrong_codec = server.unsummable(), codec.unsummable()
    reasons = [
        (last.send in ("change", "model"), f"clients send no update (send={last.send})"),
        (not method.pooled, "all samples are at one client"),
        (len(method.exchanges) == 1, "it has several exchanges per round, and only the last one would be protected"),
        (_common_part(last.view), f"{last.view} gives clients different parts of the model: use Full()"),
        (last.labels == "all", "clients tell which labels they have: use labels='all'"),
        (not beside, f"{type(last.solver).__name__} sends {beside} of each client beside the update"),
        (probe is None, f"{method.sampler} asks each client for its loss: use another sampler, such as Uniform()"),
        (_known_down(last.down), f"{last.down} sends the uploads on to other clients: use Dense() or Delta(codec)"),
        (not wrong_server, wrong_server),
        (not wrong_codec, wrong_codec),
    ]
    return [(holds, f"secure aggregation: {reason}") for holds, reason in reasons]


def _common_part(view: View) -> bool:
    """Return whether all clients hold the same entries."""
    return view.whole or (isinstance(view, MagnitudePruned) and len(set(view.ratio)) == 1)


def _known_down(down: Codec | Downlink) -> bool:
    """Return whether downloads can be made without single uploads."""
    return not isinstance(down, Delta) or down.codec is not None
