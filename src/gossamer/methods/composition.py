"""Composition of a method from parts."""

from typing import Any

from gossamer.core.codec import Codec
from gossamer.core.downlink import Downlink
from gossamer.core.method import Exchange, Method
from gossamer.core.sampler import Sampler
from gossamer.core.server import Server
from gossamer.core.solver import Solver
from gossamer.core.view import View
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.samplers.draws import Uniform
from gossamer.parts.servers.mean import Mean

METHOD_FIELDS = ("parametrization", "adapter", "pooled", "tune")


def compose(
    view: View,
    solver: Solver,
    codec: Codec | None = None,
    server: Server | None = None,
    *,
    down: Codec | Downlink | None = None,
    sampler: Sampler | None = None,
    before: tuple[Exchange, ...] = (),
    **fields: Any,
) -> Method:
    """Return a method with one training exchange. Omitted parts are those of FedAvg.

    Args:
        view: which entries of the model a client holds
        solver: how a client trains
        codec: uplink codec; ``Dense()`` by default
        server: aggregation; ``Mean()`` by default
        down: downlink codec, or a downlink such as ``Delta()``; ``Dense()`` by default
        sampler: which clients take part in a round; ``Uniform()`` by default
        before: exchanges that precede this one in each round
        fields: other fields of ``Exchange`` and ``Method``
    """
    of_method = {name: fields.pop(name) for name in METHOD_FIELDS if name in fields}
    last = Exchange(view, solver, codec or Dense(), server or Mean(), down or Dense(), **fields)
    return Method((*before, last), sampler or Uniform(), **of_method)
