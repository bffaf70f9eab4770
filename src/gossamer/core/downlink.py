"""Downlink interface: how the model of a round reaches the clients.

A codec as ``Exchange.down`` sends every client the whole model (``WholeModel``). A ``Downlink`` may send less to a
client that still holds an earlier version. The version of a model is the number of the round that starts from it. The
calls, in order:

    init                 once: the downlink's entry of the server state
    held                 per client: the version that the client has acknowledged. Clients with the same version receive
                         the same bytes
    write, read          once per version that is held: the models as arrays, and back
    begin, note          once, and per arrival that the server has folded: what the log keeps of the round
    settled              once per round: the versions that clients hold, by the outcomes of the round
    advance              once per round that counts: the entry of the server state after the round

A client acknowledges a download by its upload. What it keeps of the download is its own state: ``kept``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gossamer.core import sections
from gossamer.core.codec import Codec, Coding, checked
from gossamer.core.errors import require
from gossamer.core.exchange import NONE, Arrival, Outcome, Section, Sections
from gossamer.core.fields import CheckedFields
from gossamer.core.jobs import model_keys
from gossamer.core.random import Key, Purpose
from gossamer.core.sections import SectionArrays
from gossamer.core.types import Clock, Layout, Params, Payload, State
from gossamer.core.untrusted import ReadArrays

if TYPE_CHECKING:
    from gossamer.core.bound import BoundExchange

NEVER = -1
"""The version of a client that holds no model."""

HELD = "held"
"""The entry of a client state with the model that the client holds, and its version."""


class Received(NamedTuple):
    """The models of a download.

    Args:
        models: the models
        base: the version that the message continues from; ``NEVER`` if it contains the whole model
        sections: the values of the server's sections that the downlink supplies
    """

    models: tuple[Params, ...]
    base: int = NEVER
    sections: Sections = NONE


class Downlink(CheckedFields, ABC):
    """The configuration of a downlink, before the network is known.

    Args:
        known: whether the server knows the model that a client holds after a download, bit for bit
    """

    known: ClassVar[bool] = False

    @abstractmethod
    def bind(self, exchange: "BoundExchange") -> "BoundDownlink":
        """Return the downlink of an exchange whose other parts are bound. Called once, before the first round.

        Raises ``ConfigError`` if the downlink does not work with the other parts.
        """


class BoundDownlink(ABC):
    """Writes and reads the models of downloads. The defaults are those of a downlink without versions.

    Args:
        name: the text from which the codec id of the header is computed
        sections: the sections that the downlink writes
        supplied: the names of the server's sections that ``read`` returns: they are not sent as sections
        versioned: whether downloads continue from the version that a client holds
    """

    name: str
    sections: tuple[Section, ...] = ()
    supplied: tuple[str, ...] = ()
    versioned: bool = False

    def init(self, params: Params) -> State:
        """Return the downlink's entries of the server state, given the initial model."""
        return {}

    def held(self, state: State, client: int) -> int:
        """Return the version that a client holds, as far as the server knows."""
        return NEVER

    def models(self, state: State, models: tuple[Params, ...]) -> tuple[Params, ...]:
        """Return the models that clients hold after the download, given those of the server."""
        return models

    def purposes(self, state: State, clock: Clock, held: int) -> Iterable[Purpose]:
        """Return the purposes of the run's key with which clients that hold a version read a download.

        That is beside the ``key`` of ``read``.
        """
        return ()

    @abstractmethod
    def write(
        self, state: State, clock: Clock, held: int, models: Sequence[Params], layout: Layout, key: Key
    ) -> Payload:
        """Return the arrays of a download to clients that hold the version ``held``."""

    @abstractmethod
    def read(
        self, payload: Payload, unread: SectionArrays, layout: Layout, key: Key, clock: Clock, state: State
    ) -> Received:
        """Return the models in the arrays of a download, and remove the downlink's sections from ``unread``.

        ``state`` is the client state. Raises ``PayloadError`` if the client cannot read the message.
        """

    def readable(self, base: int, version: int, state: State) -> bool:
        """Return whether a client with this state can read a message that continues from ``base``."""
        return True

    def kept(self, version: int, models: Sequence[Params], sections: Sections) -> State:
        """Return the entries of the client state after a download with these models and values of sections."""
        return {}

    def begin(self) -> Any:
        """Return the notes of a round before its first arrival."""
        return None

    def note(self, notes: Any, arrival: Arrival) -> Any:
        """Return the notes of a round with what the log keeps of one more arrival. May modify and return ``notes``."""
        return notes

    def settled(self, state: State, outcomes: Sequence[Outcome]) -> State:
        """Return the server state with the versions that clients hold, given the outcomes of a round's clients."""
        return state

    def advance(self, before: State, after: State, notes: Any, clock: Clock) -> State:
        """Return the server state after a round: ``after``, with the downlink's entries.

        ``before`` is the state before the round, ``notes`` are those of its arrivals.
        """
        return after


@dataclass(frozen=True)
class WholeModel(Downlink):
    """Sends all models to all clients.

    Args:
        codec: the codec of the models
    """

    codec: Codec

    def bind(self, exchange: "BoundExchange") -> "BoundWholeModel":
        """Return the downlink. A codec with client state is refused."""
        codec = self.codec.bind(exchange.context)
        stateless = (
            not codec.init(Layout.of(exchange.outline)),
            f"down={self.codec} needs a state per client, and a downlink codec has none: "
            "leave out Feedback, and give OneBit retain='nothing'",
        )
        require(stateless)
        return BoundWholeModel(codec)


class BoundWholeModel(BoundDownlink):
    """Sends all models to all clients, with a bound codec."""

    def __init__(self, codec: Codec) -> None:
        self.codec, self.name = codec, repr(codec)

    def write(
        self, state: State, clock: Clock, held: int, models: Sequence[Params], layout: Layout, key: Key
    ) -> Payload:
        """Return the encoded models. All but the first are sections."""
        each = zip(models, (Coding(layout, at) for at in model_keys(key, len(models))), strict=True)
        coded = [self.codec.encode(layout.flatten(model), ctx) for model, ctx in each]
        return sections.joined(coded[0], {f"model{number}": arrays for number, arrays in enumerate(coded) if number})

    def read(
        self, payload: Payload, unread: SectionArrays, layout: Layout, key: Key, clock: Clock, state: State
    ) -> Received:
        """Decode all models."""
        coded = [ReadArrays(payload)]
        while f"model{len(coded)}" in unread:
            coded.append(ReadArrays(unread.pop(f"model{len(coded)}")))
        each = zip(coded, (Coding(layout, at) for at in model_keys(key, len(coded))), strict=True)
        vectors = [self.codec.decode(arrays, ctx) for arrays, ctx in each]
        for arrays in coded:
            arrays.check()
        return Received(tuple(layout.unflatten(checked(vector, layout)) for vector in vectors))


def downlink_of(down: Codec | Downlink) -> Downlink:
    """Return the downlink of an exchange: itself, or a codec for the whole model."""
    return down if isinstance(down, Downlink) else WholeModel(down)
