"""Steps of a delta downlink: how the model of one version becomes that of the next, as bytes.

``Replay`` has exact steps (``gossamer.parts.downlinks.replay``). ``Compressed`` has lossy ones: the change of the
model, compressed. The server keeps the model that the clients hold, which differs from its own. A step encodes the
difference between the two. So the error of a step is part of the next one: error feedback at the server, as in
DoubleSqueeze (Tang et al., ICML 2019, https://arxiv.org/abs/1905.05957). With w the server's model, v that of the
clients, and C the codec:

    v_(t+1) = v_t + C(w_(t+1) - v_t)

Clients train from v and send their updates relative to it. The server adds the mean of the updates to w.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from gossamer.core import tree, wire
from gossamer.core.codec import Codec, Coding, checked
from gossamer.core.errors import require
from gossamer.core.exchange import Arrival
from gossamer.core.jobs import round_purpose
from gossamer.core.random import Key, Purpose, fold
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.core.wire import Body

if TYPE_CHECKING:
    from gossamer.core.bound import BoundExchange


class Steps(ABC):
    """Makes and takes steps.

    Args:
        exact: whether clients then hold the server's model
        layout: the tensors that the steps cover
        replayed: the entries of the server state, in addition to the model, that the steps cover
    """

    exact: ClassVar[bool]
    layout: Layout
    replayed: tuple[str, ...] = ()

    def begin(self) -> Any:
        """Return the notes of a round before its first arrival."""
        return None

    def note(self, notes: Any, arrival: Arrival, room: int) -> Any:
        """Return the notes with what a step contains of one more arrival. May modify and return ``notes``.

        Steps with more than ``room`` bytes are not kept, so their notes need not be completed.
        """
        return notes

    def purposes(self, step: bytes, version: int) -> Iterable[Purpose]:
        """Return the purposes of the run's key with which a client takes a step."""
        return ()

    @abstractmethod
    def make(self, held: Params, model: Params, notes: Any, version: int) -> bytes:
        """Return the step of a round.

        ``held`` is the model that clients hold in it, ``model`` the server's new model. ``notes`` are those of the
        round's arrivals. ``version`` is the round.
        """

    @abstractmethod
    def take(self, held: State, step: bytes, clock: Clock) -> State:
        """Return the covered tensors after a step from version ``clock.round``. Called on both sides.

        ``held`` has those of the model as ``params``, and the entries of ``replayed``; so has the result. Raises
        ``PayloadError`` for bytes that ``make`` cannot have produced.
        """


DELTA = "delta"
"""The purpose of the keys of steps."""


class Compressed(Steps):
    """Encodes the change of the model.

    Args:
        codec: the codec of the change
        layout: the tensors that the codec compresses
        key: the run's random key
    """

    exact = False

    def __init__(self, codec: Codec, layout: Layout, key: Key) -> None:
        self.codec, self.layout, self.key = codec, layout, key

    @classmethod
    def of(cls, codec: Codec, exchange: "BoundExchange") -> "Compressed":
        """Return the steps of an exchange. Refuse codecs with client state, and those that depend on the device."""
        whole, bound = Layout.of(exchange.outline), codec.bind(exchange.context)
        _, layout = bound.replayed({}, whole)
        problem = bound.unreplayable()
        require(
            (not bound.init(whole), f"Delta has its own error feedback: leave out that of codec={codec}"),
            (not problem, f"Delta needs the same bits on every device: {problem}"),
            (bool(layout.shapes), f"Delta.codec must compress the weights, got {codec}: leave it out, or use Eden(2)"),
        )
        return cls(bound, layout, exchange.context.network.key)

    def make(self, held: Params, model: Params, notes: None, version: int) -> bytes:
        """Return the encoded difference between the server's model and that of the clients."""
        change = self.layout.flatten(model) - self.layout.flatten(held)
        piece = Body.of(self.codec.encode(change, Coding(self.layout, self._key(version))))
        return b"".join((wire.varint(piece.arrays), piece.data))

    def take(self, held: State, step: bytes, clock: Clock) -> State:
        """Return the covered tensors plus the decoded change."""
        arrays, at = wire.read_varint(memoryview(step), 0)
        payload = wire.read_piece(step[at:], arrays, tree.device(held["params"]))
        change = checked(self.codec.decode(payload, Coding(self.layout, self._key(clock.round))), self.layout)
        return {"params": self.layout.unflatten(self.layout.flatten(held["params"]) + change)}

    def purposes(self, step: bytes, version: int) -> Iterable[Purpose]:
        """Return the key of the step, which all clients share."""
        yield (*round_purpose(version), DELTA)

    def _key(self, version: int) -> Key:
        return fold(self.key, *round_purpose(version), DELTA)
