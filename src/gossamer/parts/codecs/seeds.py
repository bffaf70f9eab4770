"""Seeds: an update as scalars of random directions, which both sides draw from a common key.

With a solver that evaluates losses only (``Solver.uses``), the change of a client is a sum of
random directions. The upload has the scalar of each direction as the solver computed it, and no vector is encoded:

    upload      s_1 ... s_n                          n scalars, whatever the size of the model
    decoded     sum_j scale s_j z_j                  scale is the solver's, -lr / P

Where many scalars are zero, because the solver has not used their directions, the upload has the others and which ones
they are, if that is shorter.

With any other solver, the scalars are the products of the change x with the directions. The decoded vector is then an
unbiased estimate, whose variance is about d / n times the square of the norm of x, in d dimensions:

    upload      s_j = <x, z_j> / n
    decoded     sum_j s_j z_j

All clients of a round have the same directions (``gossamer.core.random.directions``), so the server can average the
scalars, and decode once (``gossamer.parts.servers.SumThenDecode``). Sums are elementwise operations in a fixed order:
every machine decodes the same bits.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import exact, indices, wire
from gossamer.core.codec import Codec, Coding, each_row
from gossamer.core.errors import PayloadError, listed, require, wrong
from gossamer.core.exchange import Context
from gossamer.core.random import Key
from gossamer.core.random import tensor as key_tensor
from gossamer.core.random.directions import DIRECTION_KINDS, DirectionKind, combine, project
from gossamer.core.solver import Solver
from gossamer.core.types import Layout, Payload, State
from gossamer.core.wire import expect, finite

ScalarType = Literal["float32", "float16", "bfloat16"]

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""The types of scalars in a message, by name."""

LARGEST = torch.finfo(torch.float32).max / 8
"""The sum of magnitudes above which sums of directions may be infinite."""


@dataclass(frozen=True)
class Seeds(Codec):
    """Sends one scalar per random direction.

    Args:
        count: the number of directions; that of the solver, steps times perturbations, if it evaluates losses only
        directions: distribution of the entries of a direction: rademacher or gauss
        dtype: the type of a scalar in a message: float32, float16 or bfloat16
    """

    count: int = 10
    directions: DirectionKind = "rademacher"
    dtype: ScalarType = "float32"
    layers: Mapping[str, int] | None = field(default=None, init=False, repr=False, compare=False)
    """The number of each trained tensor, if the scalars are those of a solver. Other tensors have no direction."""
    solver: Solver | None = field(default=None, init=False, repr=False, compare=False)
    """The solver that computes the scalars, for one network."""

    def __post_init__(self) -> None:
        require(
            (self.count >= 1, wrong(self, "count", "must be at least 1")),
            (
                self.directions in DIRECTION_KINDS,
                wrong(self, "directions", f"must be one of {listed(DIRECTION_KINDS)}"),
            ),
            (self.dtype in DTYPES, wrong(self, "dtype", f"must be one of {listed(DTYPES)}")),
        )

    def bind(self, context: Context) -> "Seeds":
        """Return the codec for the scalars of the solver, if it evaluates losses only. Its numbers must be the same."""
        solver = context.exchange.solver
        span, name = solver.span, type(solver).__name__
        if context.exchange.codec is not self or span is None:
            return self
        require(
            (self.count == span.size, wrong(self, "count", f"must be that of {name}, {span.size} directions")),
            (self.directions == span.kind, wrong(self, "directions", f"must be those of {name}, {span.kind}")),
        )
        layers = {tensor: number for number, tensor in enumerate(sorted(context.trained))}
        return self.filled(layers=layers, solver=solver.bind(context))

    @property
    def common(self) -> bool:
        """True: all clients of a round have the same directions."""
        return True

    @property
    def unbiased(self) -> bool:
        """Whether scalars are not rounded to 16 bits: products with random directions estimate the vector."""
        return self.dtype == "float32"

    def takes_carry(self, solver: Solver) -> bool:
        """Whether the solver computes the scalars."""
        return solver.span is not None

    # Client side.

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the products of the vector with the directions, divided by their number."""
        at, total = key_tensor(ctx.key, x.device), x.new_zeros(*x.shape[:-1], self.count)
        scaled, exponent = exact.unit(finite(x, "change"))  # sums of the largest floats would be infinite
        for layer, piece in self._pieces(scaled, ctx.layout):
            total += project(self.directions, at, piece, self.count, layer)
        scalars = exact.shift(total / total.new_tensor(self.count), exponent)
        if not bool((scalars.double().abs().sum(-1) < LARGEST).all()):
            raise PayloadError(f"the change has entries up to {float(x.abs().amax()):.1e}, too large for sums")
        return self._sent(scalars)

    def encode_carry(self, carry: State, ctx: Coding) -> Payload:
        """Return the scalars of the solver."""
        return self._sent(carry["scalars"])

    def _sent(self, scalars: Tensor) -> Payload:
        if scalars.dim() > 1:  # lengths differ
            return [self._sent(row) for row in scalars]  # type: ignore[return-value]
        scalars = finite(scalars.to(DTYPES[self.dtype]), "scalars")
        used = scalars != 0
        sparse = {"scalars": scalars[used], **indices.pack(used)}
        return min({"scalars": scalars}, sparse, key=wire.piece_size)

    # Server side.

    def sum_size(self, layout: Layout) -> int:
        """Return the number of directions."""
        return self.count

    @each_row
    def to_sum(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the scalars."""
        if not payload.keys() & {"bitmap", "quotients", "remainders"}:
            return finite(expect(payload, "scalars", DTYPES[self.dtype], self.count), "scalars").to(ctx.layout.dtype)
        used = indices.unpack(payload, self.count)
        sent = finite(expect(payload, "scalars", DTYPES[self.dtype], int(used.sum())), "scalars")
        scalars = torch.zeros(self.count, dtype=ctx.layout.dtype, device=sent.device)
        scalars[used] = sent.to(ctx.layout.dtype)
        return scalars

    def from_sum(self, mean: Tensor, ctx: Coding) -> Tensor:
        """Return the sum of the directions, each times its scalar."""
        mean = mean.to(ctx.layout.dtype)
        scale = self.solver.span.scale if self.solver and self.solver.span else 1.0
        key = ctx.key
        if self.solver is not None:
            assert isinstance(key, Key)  # all clients of a round have the same directions
            key = self.solver.direction_key(key)
        at, found = key_tensor(key, mean.device), mean.new_zeros(*mean.shape[:-1], ctx.layout.size)
        pieces = list(self._pieces(found, ctx.layout))
        sums = combine(
            self.directions, at, mean * mean.new_tensor(scale), [(layer, piece.shape[-1]) for layer, piece in pieces]
        )
        for (_, piece), total in zip(pieces, sums, strict=True):
            piece.copy_(total)
        return finite(found, "change")

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Decode a single message."""
        return self.from_sum(self.to_sum(payload, ctx), ctx)

    def _pieces(self, vector: Tensor, layout: Layout) -> Iterator[tuple[int, Tensor]]:
        """Yield the number and the entries of each tensor that the directions have."""
        for number, (name, piece) in enumerate(layout.cut(vector)):
            if self.layers is None:
                yield number, piece
            elif name in self.layers:
                yield self.layers[name], piece
