"""Codec interface: compress a vector into a payload, and decompress it.

A codec is a pair of pure functions. The sender calls ``encode``, the receiver calls ``decode``. Both get the same
layout (names and shapes of the tensors behind the vector) and the same random key, in a ``Coding``. An exchange has two
codecs: ``codec`` on the uplink and ``down`` on the downlink.

A complete codec that sends 16-bit floats:

    @dataclass(frozen=True)
    class BFloat16(Codec):
        def encode(self, x, ctx):
            return {"values": finite(x.bfloat16(), "change")}

        def decode(self, payload, ctx):
            values = expect(payload, "values", torch.bfloat16, ctx.layout.size)
            return finite(values, "values").to(ctx.layout.dtype)

**Rows.** Clients that are trained together are a group: a matrix with a row for each. ``encode`` and ``decode`` are
written over the last dimension, so that the same lines serve one client and a thousand: ``x`` is ``[n]`` or ``[K, n]``,
the arrays of a payload ``[m]`` or ``[K, m]``. Where the length of a message depends on its values, ``encode`` returns a
list of payloads for a matrix, and ``decode`` takes one: ``each_row`` makes such methods from those for one vector.

All other methods have a default that means "nothing special". A codec overrides those that it needs:

    bind                                            check the other parts, and learn what follows from the network
    init, encode_with, settle, skipped, retains     client state between rounds, for example error feedback
    fold, fold_into                                 add to a sum without the decoded vector in memory
    to_sum, from_sum, sum_size, sum_segments        payloads that the server averages before it decodes them
    surrogate_context, surrogate                    a surrogate of the codec in the forward pass of local training
    takes_carry, encode_carry                       payloads from what the solver carries, not from the change
    figures, warning                                metrics of each upload in the record of a round
    unreplayable, replayed                          what of a payload is sent on to other clients
    private, guarantee, fewest                      noise of differential privacy

``gossamer.testing.check_codec`` tests a codec against this interface.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from gossamer.core.errors import PayloadError
from gossamer.core.fields import CheckedFields
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.random import Key, Keys, fold, fold_each
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Params, Payload, State
from gossamer.core.wire import finite

if TYPE_CHECKING:
    from gossamer.core.exchange import Context
    from gossamer.core.solver import Solver

T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])

Kept = Literal["nothing", "last", "all"]
"""Which lost messages the next message of a codec compensates for."""

FoldInto = Callable[[Sequence[Tensor]], None]
"""Adds a payload to a sum. The sum is given as consecutive pieces of one vector."""

SUMMABLE = "use FixedPoint(), StochasticSign(0.1), Ternary(scale=0.1), CommonMaskedNoise(alpha=0.1) or SampledMask()"
"""What to use in place of a codec without sums of whole numbers, for messages."""

SOME = Layout((("entry", torch.Size([1])),))
"""The layout of any vector."""

TRIAL = Layout((("a.bias", torch.Size([5])), ("a.weight", torch.Size([4, 3]))))
"""A layout for trials."""


@dataclass(frozen=True, eq=False)
class Coding:
    """What sender and receiver of a message know beside its payload, and what the sender alone knows.

    Args:
        layout: names and shapes of the tensors behind the vector
        key: the random key; of a group, a key per row, or one for all
        known: returns ``start``, which is computed only if it is used
        client: the sender's number, or one per row of a group; none at the receiver
    """

    layout: Layout
    key: Key | Keys
    known: Callable[[], Tensor] | None = field(default=None, repr=False)
    client: int | Sequence[int] | None = None

    @cached_property
    def start(self) -> Tensor | None:
        """The vector of what the client has received, which both sides of an upload know; none elsewhere."""
        return None if self.known is None else self.known()

    @property
    def own(self) -> Key | Keys:
        """The key of the sender's own random numbers, for a codec with a ``common`` key."""
        if isinstance(self.client, Sequence):
            return fold_each(self.key, "client", self.client)
        return self.key if self.client is None else fold(self.key, "client", self.client)

    def row(self, number: int) -> "Coding":
        """Return that of one row of a group."""

        def known() -> Tensor:
            assert self.start is not None
            return self.start[number] if self.start.dim() > 1 else self.start

        key = self.key[number] if isinstance(self.key, Keys) else self.key
        client = self.client[number] if isinstance(self.client, Sequence) else self.client
        return Coding(self.layout, key, self.known and known, client)

    def of(self, layout: Layout, *labels: str | int) -> "Coding":
        """Return that of some of the tensors, whose layout is given. Labels are folded into the key."""

        def known() -> Tensor:
            assert self.start is not None
            return self.layout.pick(self.start, {name for name, _ in layout.shapes})

        return Coding(layout, fold(self.key, *labels), self.known and known, self.client)


class Codec(CheckedFields, ABC):
    """Compresses a vector into a payload, and decompresses it."""

    @abstractmethod
    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the payload for a vector, or for the rows of a matrix. Called by the sender.

        ``x`` has ``ctx.layout.size`` entries and must not be modified. Raises ``PayloadError`` for a vector that has no
        payload, for example because a value is not finite.
        """

    @abstractmethod
    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the vector of ``ctx.layout.size`` entries that a payload encodes. Called by the receiver.

        The payload is untrusted. Raises ``PayloadError`` for a payload that ``encode`` cannot have produced.
        """

    def bind(self: T, context: "Context") -> T:
        """Return the codec for one network and its clients. Called once, before the first round.

        Raises ``ConfigError`` if the codec does not work with the other parts of the exchange.
        """
        return self

    @property
    def exact(self) -> bool:
        """Whether equal inputs give equal bytes on every device."""
        return True

    @property
    def unbiased(self) -> bool:
        """Whether the expectation of the decoded vector over random keys is the encoded vector."""
        return False

    @property
    def common(self) -> bool:
        """Whether all clients of a round encode with the same key, as sums of encoded vectors need."""
        return False

    @property
    def wrapped(self) -> tuple["Codec", ...]:
        """The codecs that make the payload, if the codec itself does not."""
        return ()

    # Client state, a nest of tensors with the names and shapes of the model's tensors. Where a client holds only a part
    # of the model, the view slices the state in the same way. The client calls ``encode_with``; when it knows whether
    # its message arrived, it calls ``settle`` with the state of ``encode_with``, and keeps the result.

    @property
    def retains(self) -> Kept:
        """Which lost messages the next one compensates for: none, the last one, or all since the last delivery."""
        return "nothing"

    def init(self, layout: Layout) -> State:
        """Return the state of a client before its first round."""
        return {}

    def encode_with(self, x: Tensor, memory: State, ctx: Coding) -> tuple[Payload, State]:
        """Return the payload for a vector and a state, and a new state that ``settle`` completes."""
        return self.encode(x, ctx), memory

    def settle(self, memory: State, delivered: bool) -> State:
        """Return the state to keep, given whether the payload arrived."""
        return memory

    def skipped(self, memory: State) -> State:
        """Return the state after a round for entries that the client did not hold, in the form of ``encode_with``."""
        return memory

    def companion(self, other: "Codec") -> "Codec":
        """Return ``other`` with the same compensation for lost messages.

        ``OnWeights`` calls it for the codec of the remaining tensors in the same message.
        """
        return other

    # Sums of decoded vectors.

    def fold(self, acc: Tensor, payload: Payload, ctx: Coding, weight: float) -> None:
        """Add ``weight`` times the decoded vector to ``acc``, in place. Called by the server for each upload.

        Override it where a codec can add to the sum without the decoded vector in memory.
        """
        acc.add_(checked(self.decode(payload, ctx), ctx.layout).to(acc.dtype) * weight)

    def fold_into(self, payload: Payload, ctx: Coding, weight: float, like: Tensor) -> FoldInto:
        """Check a payload, and return a function that adds ``weight`` times its vector to the pieces of a sum.

        ``like`` has the type and the device of the sum. Override it together with ``fold``.
        """
        total = torch.zeros(ctx.layout.size, dtype=like.dtype, device=like.device)
        self.fold(total, payload, ctx, weight)

        def add(pieces: Sequence[Tensor]) -> None:
            for piece, part in zip(pieces, torch.split(total, [len(piece) for piece in pieces]), strict=True):
                piece.add_(part)

        return add

    @property
    def folds_decoded(self) -> bool:
        """Whether ``fold`` gives the bits of ``acc + weight * decode(...)``."""
        return True

    # Sums of encoded vectors: the server averages vectors from ``to_sum``, and decodes their mean once.

    def sum_size(self, layout: Layout) -> int:
        """Return the number of entries of the vectors from ``to_sum``."""
        return layout.size

    def to_sum(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return a payload as a vector that can be averaged over clients. Checks the payload as ``decode`` does."""
        return checked(self.decode(payload, ctx), ctx.layout)

    def from_sum(self, mean: Tensor, ctx: Coding) -> Tensor:
        """Decode a mean of vectors from ``to_sum``: return the mean of the encoded vectors."""
        return mean

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the limits of the vectors from ``to_sum``, if they are whole numbers from 0 on; else nothing.

        Their sum over clients of equal weight is then exact, whatever the order, and takes few bits: those of the
        number of clients times the limit. ``from_sum`` takes a mean of any floating-point type, and gives the same
        result with the key of any client: the key is ``common``, or ``from_sum`` does not use it.
        """
        return ()

    def unsummable(self) -> str:
        """Return why the vectors are not whole numbers, and what to use; empty if they are."""
        if self.sum_segments(SOME):
            return ""
        return f"{type(self).__name__} sends floats, scales or indices of each client, which do not add up: {SUMMABLE}"

    # Training with a straight-through estimator. In each local step, the forward pass uses ``surrogate(change)`` in
    # place of the change since the round's start, and its gradient is used as the gradient at the change.

    def surrogate_context(self, ctx: Coding, steps: int, device: torch.device) -> State:
        """Return what ``surrogate`` needs in a round of ``steps`` local steps. Called once per client and round.

        ``ctx`` is that of the later ``encode``. An empty result turns the surrogate off.
        """
        return {}

    def surrogate(self, change: Params, context: State, step_index: Tensor) -> Params:
        """Return the tensors of the change that the forward pass of one step uses in place of the true ones.

        Tensors that are missing in the result stay as they are. ``context`` is from ``surrogate_context``,
        ``step_index`` counts the local steps of the round from 0. Must be pure: executors compile and stack it.
        """
        return {}

    def takes_carry(self, solver: "Solver") -> bool:
        """Whether ``encode_carry`` is called in place of ``encode``. Then clients need not compute their change."""
        return False

    def encode_carry(self, carry: State, ctx: Coding) -> Payload:
        """Return the payload for the solver's carry after the last step. ``decode`` gives the change of the model."""
        raise NotImplementedError

    # Metrics: the client measures what it encodes, and reports the numbers beside its upload, like its loss. The record
    # of a round has the means over its clients, as ``figures``.

    @property
    def figure_names(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return ()

    def figures(self, x: Tensor, ctx: Coding) -> dict[str, float]:
        """Return the metrics of a vector by name. Called by the sender, with the arguments of ``encode``."""
        return {}

    def warning(self, figures: Mapping[str, float]) -> str | None:
        """Return what is wrong according to the metrics of a round, and what to do; ``None`` if nothing is."""
        return None

    # Payloads that a delta downlink sends on to other clients, which fold them again.

    def unreplayable(self) -> str:
        """Return why ``fold`` does not give the same bits on every device; empty if it does."""
        return "" if self.exact else f"{self} gives different bits on different devices"

    def replayed(self, payload: Payload, layout: Layout) -> tuple[Payload, Layout]:
        """Return the arrays of a payload that are sent on to other clients, with the layout of their tensors.

        They are a payload of this codec for that layout. New values of the remaining tensors are sent instead.
        """
        return payload, layout

    # Differential privacy of clients (``gossamer.core.privacy``).

    @property
    def private(self) -> bool:
        """Whether the codec adds noise of differential privacy. Then nothing else may tell clients apart."""
        return False

    def guarantee(self, participation: Participation) -> Guarantee | None:
        """Return the guarantee of a run, if the codec is ``private``. Raises ``ConfigError`` if there is none."""
        return None

    def fewest(self, cohort: int) -> int:
        """Return the smallest number of clients whose sum may be revealed, given the number that was asked.

        Engines ask only under secure aggregation: where the noise of one client protects it only together with others'.
        """
        return 0


def rows_of(given: Any) -> list[Any] | None:
    """Return the rows of a matrix, or the payload of each row of a group; ``None`` for a vector or a single payload."""
    if isinstance(given, list):
        return given
    if isinstance(given, Tensor):
        return list(given) if given.dim() > 1 else None
    arrays = list(dict.values(given))  # not ``given.values()``, which notes that they are read
    if not arrays or arrays[0].dim() == 1:
        return None
    return [dict(zip(given, row, strict=True)) for row in zip(*arrays, strict=True)]


def stacked(payloads: list[Payload]) -> Any:
    """Return the payloads of a group as one, with arrays ``[K, m]``; as they are, if their arrays are not alike.

    >>> stacked([{"bits": torch.zeros(2)}, {"bits": torch.ones(2)}])["bits"]
    tensor([[0., 0.],
            [1., 1.]])
    """
    first = payloads[0]
    alike = all(
        {name: a.shape for name, a in each.items()} == {n: a.shape for n, a in first.items()} for each in payloads
    )
    return {name: torch.stack([each[name] for each in payloads]) for name in first} if alike and first else payloads


def row_by_row(method: Callable[[Any, Coding], T], given: Any, ctx: Coding) -> T:
    """Return what a method of a codec gives for each row of a group: rows, or a list of payloads."""
    rows = rows_of(given)
    assert rows is not None
    found: Any = [method(row, ctx.row(number)) for number, row in enumerate(rows)]
    return cast(T, torch.stack(found) if isinstance(found[0], Tensor) else found)


def each_row(method: M) -> M:
    """Let ``encode``, ``decode`` or ``to_sum`` of one message take those of a group, row by row."""

    @wraps(method)
    def of_rows(self: Any, given: Any, ctx: Coding) -> Any:
        one = method.__get__(self)
        return one(given, ctx) if rows_of(given) is None else row_by_row(one, given, ctx)

    return of_rows  # type: ignore[return-value]


def treats_rows(codec: Codec) -> bool:
    """Return whether a codec treats the rows of a matrix as each alone, by a trial. If not: ``row_by_row``."""
    x = torch.arange(34.0).view(2, 17).sin()
    keys, key = fold_each(Key(0, 0), "row", range(2)), Key(0, 0)
    ctx = Coding(TRIAL, key if codec.common else keys, client=(0, 1))
    try:
        found, each = codec.encode(x, ctx), [codec.encode(row, ctx.row(number)) for number, row in enumerate(x)]
        decoded, alone = codec.decode(found, ctx), [codec.decode(sent, ctx.row(at)) for at, sent in enumerate(each)]
    except Exception:  # whatever a codec raises that takes one vector alone
        return False
    rows = rows_of(found) or []
    same = [one.keys() == other.keys() for one, other in zip(rows, each, strict=False)]
    same += [torch.equal(one[n], other[n]) for one, other in zip(rows, each, strict=False) for n in one.keys() & other]
    return len(rows) == len(x) and all(same) and torch.equal(decoded, torch.stack(alone))


def checked(vector: Tensor, layout: Layout) -> Tensor:
    """Return a decoded vector in the layout's type. Raise ``PayloadError`` if its size is wrong or it is not finite."""
    if vector.shape[-1:] != (layout.size,):
        raise PayloadError(f"decoded shape {tuple(vector.shape)}, expected {layout.size} entries")
    return finite(vector.to(layout.dtype), "change")


def centred(vector: Tensor, segments: Sequence[SumSegment]) -> Tensor:
    """Return a vector from ``to_sum`` with opposite signs for opposite updates: whole numbers as -1 to 1."""
    if not segments:
        return vector
    pieces = vector.split([segment.size for segment in segments], -1)
    return torch.cat([piece * (2 / segment.limit) - 1 for piece, segment in zip(pieces, segments, strict=True)], -1)
