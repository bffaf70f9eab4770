"""Codec interface: compress a vector into a payload, and decompress it.

A codec is a pair of pure functions. The sender calls ``encode``, the receiver calls ``decode``. Both get the same
``Layout`` (names and shapes of the tensors behind the vector) and the same random key. An exchange has two codecs:
``codec`` on the uplink and ``down`` on the downlink.

A complete codec that sends 16-bit floats:

    @dataclass(frozen=True)
    class BFloat16(Codec):
        def encode(self, x, layout, key):
            return {"values": finite(x.bfloat16(), "change")}

        def decode(self, payload, layout, key):
            values = expect(payload, "values", torch.bfloat16, layout.size)
            return finite(values, "values").to(layout.dtype)

Ten base classes add optional abilities:

    CodecMemory        client state between rounds, for example error feedback
    Summing            payloads that the server averages before it decodes them
    IntegerSums        summing of small whole numbers, which is exact in any order
    OwnDraws           random numbers of the sender's own, where all clients of a round have the same key
    StraightThrough    a surrogate of the codec in the forward pass of local training
    SideInformation    the tensors that a client has received, which both sides of an upload know
    MeasuredCodec      metrics of each upload in the record of a round, and a warning about them
    OwnFold            a ``fold`` of its own that rounds as the sum with the decoded vector does
    Replayable         payloads that are sent on to other clients, in part or under conditions
    CarryCodec         payloads that are made from what the solver carries, not from the change of the model

``memory_of``, ``sums_of``, ``surrogate_of`` and ``replay_of`` return a codec with the ability. For a codec that lacks
it, they return a wrapper with neutral defaults. ``informed`` passes side information to a codec that takes it, and
``of_client`` the sender's number. ``sum_limit`` returns 0, and ``sum_segments`` nothing, for a codec whose sums are not
whole numbers; ``unsummable`` returns the reason.
``gossamer.testing.check_codec`` tests a codec against this interface.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Params, Payload, State
from gossamer.core.wire import finite

if TYPE_CHECKING:
    from gossamer.core.exchange import Context

T = TypeVar("T")

Kept = Literal["nothing", "last", "all"]
"""Which lost messages the next message of a codec compensates for."""

FoldInto = Callable[[Sequence[Tensor]], None]
"""Adds a payload to a sum. The sum is given as consecutive pieces of one vector."""

SUMMABLE = "use FixedPoint(), StochasticSign(0.1), Ternary(scale=0.1), CommonMaskedNoise(alpha=0.1) or SampledMask()"
"""What to use in place of a codec without sums of whole numbers, for messages."""


class Codec(CheckedFields, ABC):
    """Compresses a vector into a payload, and decompresses it."""

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
        """Whether all clients of a round encode with the same key, as ``Summing`` codecs with random matrices need."""
        return False

    def bind(self: T, context: "Context") -> T:
        """Return the codec for one network and its clients. Called once, before the first round.

        Raises ``ConfigError`` if the codec does not work with the other parts of the exchange.
        """
        return self

    @abstractmethod
    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """Return the payload for a vector. Called by the sender.

        ``x`` has ``layout.size`` entries and must not be modified. Raises ``PayloadError`` for a vector that has no
        payload, for example because a value is not finite.
        """

    @abstractmethod
    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Return the vector of ``layout.size`` entries that a payload encodes. Called by the receiver.

        The payload is untrusted. Raises ``PayloadError`` for a payload that ``encode`` cannot have produced.
        """

    def fold(self, acc: Tensor, payload: Payload, layout: Layout, key: Key, weight: float) -> None:
        """Add ``weight`` times the decoded vector to ``acc``, in place. Called by the server for each upload.

        Override it where a codec can add to the sum without the decoded vector in memory.
        """
        acc.add_(checked(self.decode(payload, layout, key), layout).to(acc.dtype) * weight)

    def fold_into(self, payload: Payload, layout: Layout, key: Key, weight: float, like: Tensor) -> FoldInto:
        """Check a payload, and return a function that adds ``weight`` times its vector to the pieces of a sum.

        ``like`` has the type and the device of the sum. Override it together with ``fold``.
        """
        total = torch.zeros(layout.size, dtype=like.dtype, device=like.device)
        self.fold(total, payload, layout, key, weight)

        def add(pieces: Sequence[Tensor]) -> None:
            for piece, part in zip(pieces, torch.split(total, [len(piece) for piece in pieces]), strict=True):
                piece.add_(part)

        return add


class CodecMemory(Codec):
    """A codec with client state, for example the error of earlier messages.

    The state is a nest of tensors with the names and shapes of the model's tensors. Where a client holds only a part
    of the model, the view slices the state in the same way.

    The client calls ``encode_with`` instead of ``encode``. When it knows whether its message arrived, it calls
    ``settle`` with the state that ``encode_with`` returned, and keeps the result until its next round.
    """

    @property
    def retains(self) -> Kept:
        """Which lost messages the next one compensates for: none, the last one, or all since the last delivery."""
        return "nothing"

    def init(self, layout: Layout) -> State:
        """Return the state of a client before its first round."""
        return {}

    def encode_with(self, x: Tensor, layout: Layout, state: State, key: Key) -> tuple[Payload, State]:
        """Return the payload for a vector and a state, and a new state that ``settle`` completes."""
        return self.encode(x, layout, key), state

    def settle(self, state: State, delivered: bool) -> State:
        """Return the state to keep, given whether the payload arrived."""
        return state

    def skipped_state(self, state: State) -> State:
        """Return the state after a round for entries that the client did not hold, in the form of ``encode_with``."""
        return state

    def companion(self, other: Codec) -> Codec:
        """Return ``other`` with the same compensation for lost messages.

        ``OnWeights`` calls it for the codec of the remaining tensors in the same message.
        """
        return other


class Summing(Codec):
    """A codec whose payloads can be averaged before they are decoded.

    The server calls ``to_sum`` on each payload, averages the results, and calls ``from_sum`` once on the mean.
    """

    def sum_size(self, layout: Layout) -> int:
        """Return the number of entries of the vectors from ``to_sum``."""
        return layout.size

    def to_sum(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Return a payload as a vector that can be averaged over clients. Checks the payload as ``decode`` does."""
        return checked(self.decode(payload, layout, key), layout)

    def from_sum(self, mean: Tensor, layout: Layout, key: Key) -> Tensor:
        """Decode a mean of vectors from ``to_sum``: return the mean of the encoded vectors."""
        return mean


class IntegerSums(Summing):
    """A ``Summing`` codec whose vectors from ``to_sum`` are small whole numbers, from 0 to a limit.

    Their sum over clients of equal weight is exact, whatever the order, and takes few bits: those of the number of
    clients times the limit. ``from_sum`` takes a mean of any floating-point type, and gives the same result with the
    key of any client: the key is ``common``, or ``from_sum`` does not use it.
    """

    @abstractmethod
    def sum_limit(self, layout: Layout) -> int:
        """Return the largest entry of a vector from ``to_sum``; the smallest is 0. 0: they are not whole numbers."""

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the limits of consecutive entries; empty if they are not whole numbers. By default, all have one."""
        limit = self.sum_limit(layout)
        return (SumSegment(self.sum_size(layout), limit),) if limit else ()

    def unsummable(self) -> str:
        """Return why the vectors are not whole numbers, and what to use; empty if they are.

        Override it where only some settings give whole numbers.
        """
        return ""


class OwnDraws(Codec):
    """A ``common`` codec that also uses random numbers of the sender's own, which the receiver does not need."""

    @abstractmethod
    def of_client(self, client: int) -> Codec:
        """Return the codec of one client's uploads. Called by the sender, before ``surrogate_context`` and ``encode``.

        Its own random numbers follow from the key and the client's number.
        """


class StraightThrough(Codec):
    """A codec that local training takes into account with a straight-through estimator.

    In each local step, the forward pass uses ``surrogate(change)`` in place of the change since the round's start. The
    backward pass treats the surrogate as the identity: its gradient is used as the gradient at the change.
    """

    def surrogate_context(self, layout: Layout, steps: int, key: Key, device: torch.device) -> State:
        """Return what ``surrogate`` needs in a round of ``steps`` local steps. Called once per client and round.

        ``layout`` and ``key`` are those of the later ``encode``. An empty result turns the surrogate off.
        """
        return {}

    def surrogate(self, change: Params, context: State, step_index: Tensor) -> Params:
        """Return the tensors of the change that the forward pass of one step uses in place of the true ones.

        Tensors that are missing in the result stay as they are. ``context`` is from ``surrogate_context``,
        ``step_index`` counts the local steps of the round from 0. Must be pure: executors compile and stack it.
        """
        return {}


class SideInformation(Codec):
    """A codec of uploads that uses what both sides know: the tensors that the client has received."""

    @abstractmethod
    def with_side_information(self, start: Params) -> Codec:
        """Return the codec of one upload. Called by both sides, with the client's part of the received model."""


class MeasuredCodec(Codec):
    """A codec that adds metrics to the record of a round, such as the share of clipped entries.

    The client measures what it encodes, and reports the numbers beside its upload, like its loss. The record has the
    means over the clients of the round, as ``figures``.
    """

    @property
    @abstractmethod
    def figure_names(self) -> tuple[str, ...]:
        """The names of the metrics."""

    @abstractmethod
    def figures(self, x: Tensor, layout: Layout, key: Key) -> dict[str, float]:
        """Return the metrics of a vector by name. Called by the sender, with the arguments of ``encode``."""

    def warning(self, figures: Mapping[str, float]) -> str | None:
        """Return what is wrong according to the metrics of a round, and what to do; ``None`` if nothing is."""
        return None


class Replayable(Codec):
    """A codec that says which of its payloads a delta downlink can send on to other clients, which fold them again.

    A codec without this ability is replayed if it is ``exact``, and its payloads are sent on whole.
    """

    def unreplayable(self) -> str:
        """Return why ``fold`` does not give the same bits on every device; empty if it does."""
        return "" if self.exact else f"{self} gives different bits on different devices"

    def replayed(self, payload: Payload, layout: Layout) -> tuple[Payload, Layout]:
        """Return the arrays of a payload that are sent on to other clients, with the layout of their tensors.

        They are a payload of this codec for that layout. New values of the remaining tensors are sent instead.
        """
        return payload, layout


class CarryCodec(Codec):
    """A codec of uploads that encodes what the solver carries, in place of the change of the model."""

    @property
    @abstractmethod
    def takes_carry(self) -> bool:
        """Whether ``encode_carry`` is called in place of ``encode``. Then clients need not compute their change."""

    @abstractmethod
    def encode_carry(self, carry: State, layout: Layout, key: Key) -> Payload:
        """Return the payload for the solver's carry after the last step. ``decode`` gives the change of the model."""


def carry_codec(codec: Codec) -> CarryCodec | None:
    """Return the codec if its payloads are made from the solver's carry."""
    return codec if isinstance(codec, CarryCodec) and codec.takes_carry else None


@dataclass(frozen=True)
class Plain(CodecMemory, Summing, StraightThrough, Replayable):
    """A codec with neutral defaults for all optional abilities.

    Args:
        codec: the codec that encodes and decodes
    """

    codec: Codec

    @property
    def exact(self) -> bool:
        """Delegate to the wrapped codec."""
        return self.codec.exact

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """Delegate to the wrapped codec."""
        return self.codec.encode(x, layout, key)

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Delegate to the wrapped codec."""
        return self.codec.decode(payload, layout, key)

    def unreplayable(self) -> str:
        """Return that the wrapped codec is not exact, if so."""
        return "" if self.exact else f"{self.codec} gives different bits on different devices"


def memory_of(codec: Codec) -> CodecMemory:
    """Return the codec as a ``CodecMemory``: itself, or wrapped with an empty state."""
    return codec if isinstance(codec, CodecMemory) else _plain(codec, "CodecMemory", "encode_with")


class Wrapping(Codec):
    """A codec whose payload is made by other codecs."""

    @property
    @abstractmethod
    def wrapped(self) -> tuple[Codec, ...]:
        """These codecs."""


class OwnFold(Codec):
    """A codec with a ``fold`` of its own that may round as the sum with the decoded vector does."""

    @property
    @abstractmethod
    def folds_decoded(self) -> bool:
        """Whether ``fold`` gives the bits of ``acc + weight * decode(...)``."""


def folds_decoded(codec: Codec) -> bool:
    """Return whether a decoded vector can be added in place of ``fold``, with the same bits."""
    return codec.folds_decoded if isinstance(codec, OwnFold) else type(codec).fold is Codec.fold


def sums_of(codec: Codec) -> Summing:
    """Return the codec as a ``Summing``: itself, or wrapped so that decoded vectors are averaged."""
    return codec if isinstance(codec, Summing) else _plain(codec, "Summing", "from_sum")


def surrogate_of(codec: Codec) -> StraightThrough:
    """Return the codec as a ``StraightThrough``: itself, or wrapped without a surrogate."""
    return codec if isinstance(codec, StraightThrough) else _plain(codec, "StraightThrough", "surrogate")


def sum_limit(codec: Codec, layout: Layout) -> int:
    """Return the largest entry of the vectors that a codec sums; 0 if they are not whole numbers."""
    return codec.sum_limit(layout) if isinstance(codec, IntegerSums) else 0


def sum_segments(codec: Codec, layout: Layout) -> tuple[SumSegment, ...]:
    """Return the limits of the vectors that a codec sums; empty if they are not whole numbers."""
    return codec.sum_segments(layout) if isinstance(codec, IntegerSums) else ()


def unsummable(codec: Codec) -> str:
    """Return why the payloads of a codec do not add up to whole numbers, and what to use; empty if they do."""
    if isinstance(codec, IntegerSums):
        return codec.unsummable()
    return f"{type(codec).__name__} sends floats, scales or indices of each client, which do not add up: {SUMMABLE}"


def centred(codec: Codec, vector: Tensor, layout: Layout) -> Tensor:
    """Return a vector from ``to_sum`` with opposite signs for opposite updates: whole numbers as -1 to 1."""
    segments = sum_segments(codec, layout)
    if not segments:
        return vector
    pieces = vector.split([segment.size for segment in segments])
    return torch.cat([piece * (2 / segment.limit) - 1 for piece, segment in zip(pieces, segments, strict=True)])


def joined_segments(segments: Iterable[SumSegment]) -> tuple[SumSegment, ...]:
    """Return segments with neighbours of the same limit as one.

    >>> joined_segments([SumSegment(3, 1), SumSegment(2, 1), SumSegment(2, 255)])
    (SumSegment(size=5, limit=1), SumSegment(size=2, limit=255))
    """
    groups = groupby(segments, key=lambda segment: segment.limit)
    return tuple(SumSegment(sum(segment.size for segment in group), limit) for limit, group in groups)


def of_client(codec: Codec, client: int) -> Codec:
    """Return the codec of one client's uploads."""
    return codec.of_client(client) if isinstance(codec, OwnDraws) else codec


def informed(codec: Codec, start: Params) -> Codec:
    """Return the codec of one upload, given the tensors that both sides know."""
    return codec.with_side_information(start) if isinstance(codec, SideInformation) else codec


def replay_of(codec: Codec) -> Replayable:
    """Return the codec as a ``Replayable``: itself, or wrapped so that payloads are sent on whole."""
    return codec if isinstance(codec, Replayable) else _plain(codec, "Replayable", "replayed")


def _plain(codec: Codec, base: str, member: str) -> Plain:
    """Wrap a codec that lacks an ability. Refuse one that has the member but not the base class."""
    if hasattr(codec, member):
        name = type(codec).__name__
        raise ConfigError(f"{name} has {member}, which is a member of {base} now: class {name}({base})")
    return Plain(codec)


def checked(vector: Tensor, layout: Layout) -> Tensor:
    """Return a decoded vector in the layout's type. Raise ``PayloadError`` if its size is wrong or it is not finite."""
    if vector.shape != (layout.size,):
        raise PayloadError(f"decoded shape {tuple(vector.shape)}, expected {layout.size} entries")
    return finite(vector.to(layout.dtype), "change")
