"""Delta downlink: a client receives what it has missed since its last download.

A client keeps the model of its last download. With its upload it acknowledges that it has this version. The server
keeps a log with one entry per round: the step from the version at the start of the round to the next one. A download to
a client that holds version v contains the steps since v, and the new values of the tensors that no step covers (biases,
norms, running statistics). There are two kinds of steps:

    Delta()           the uploads of the round, as they were folded: client, number of samples and payload. The client
                      repeats the aggregation, and gets the server's model bit for bit. Where uploads are masks of
                      equal weight, their sum, which is shorter (``gossamer.parts.downlinks.replay``)
    Delta(codec)      the change of the model, compressed. The server keeps the model that the clients hold, and the
                      next step contains the error of the last one (``gossamer.parts.downlinks.steps``)

The server sends the whole model instead where that is shorter, and to a client without a model. It therefore drops
steps from the log that are longer than the whole model together. All clients that hold the same version receive the
same bytes. A client may hold a later version than it has acknowledged, because its upload was lost. It skips the steps
that it has. A download also contains a checksum of the new model. A client whose result differs refuses the download,
and receives the whole model in its next round.

With ``Delta(shared_start=True)``, a client that takes part for the first time receives steps too: it builds version 0
from the seed and the initial weights of the run. So no client ever receives the whole model, as long as the steps are
shorter.

With ``Delta()``, every client may see the uploads of all others. With ``Delta(sums_only=True)``, it sees only their
sum.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from gossamer.core import wire
from gossamer.core.codec import Codec, Coding
from gossamer.core.downlink import HELD, NEVER, BoundDownlink, Downlink, Received
from gossamer.core.errors import ConfigError, Mistake, PayloadError, Setting, require, wrong
from gossamer.core.exchange import GLOBAL, Arrival, Context, Outcome, Section, Sections
from gossamer.core.random import Key, Purpose
from gossamer.core.sections import ALONE, SectionArrays, joined
from gossamer.core.server import Server
from gossamer.core.specs import parse, unknown
from gossamer.core.types import Clock, Layout, Params, Payload, State
from gossamer.core.untrusted import ReadArrays, check_names
from gossamer.core.wire import expect
from gossamer.parts.codecs import CODECS
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.downlinks.replay import Replay
from gossamer.parts.downlinks.steps import Compressed, Steps

if TYPE_CHECKING:
    from gossamer.core.bound import BoundExchange

ENTRY = 16
"""Bytes of a step in the table of a message, at most. They bound the log where steps are empty."""

SUM = "sum"
"""The spec of ``sums_only``, in place of a codec."""

DENSE = (
    "a dense change is as long as the whole model: leave the codec out for the exact form, Delta() or --down delta, or "
    "compress it, as with Delta(OnWeights(Eden(2))) or --down delta:eden:2"
)

LOG, SHADOW, ACKNOWLEDGED = "log", "shadow", "held"
"""Entries of the downlink's state: the steps by version, the clients' model, and the version of each client."""


@dataclass(frozen=True)
class Delta(Downlink):
    """Sends the steps that a client has missed, or the whole model where that is shorter.

    Args:
        codec: the codec of the steps; none sends the uploads of the missed rounds, and is exact
        whole: the type in which the whole model and the tensors outside of the steps are sent. A type with fewer bits
            needs a codec: clients then hold rounded values
        sums_only: without a codec, send only sums of uploads, so that no client sees the upload of another. A method
            whose uploads do not add up is refused
        shared_start: clients hold version 0 before their first download, because every machine builds the initial model
            from the same seed and the same initial weights
    """

    known: ClassVar[bool] = True
    spec_usage: ClassVar[str] = "delta, delta:sum, or delta:CODEC such as delta:eden:2"

    codec: Codec | None = None
    whole: Dense = Dense()
    sums_only: bool = False
    shared_start: bool = False

    @classmethod
    def of_spec(cls, text: str) -> "Delta":
        """Return the downlink of the command line: ``delta``, ``delta:sum``, or ``delta:eden:2`` with a codec."""
        if text in ("", SUM):
            return cls(sums_only=bool(text))
        name = text.partition(":")[0]
        if name not in CODECS:
            raise ConfigError(unknown("codec", text if name == SUM else name, [*CODECS, SUM]))
        return cls(OnWeights(parse(text, CODECS, "codec")))

    def __post_init__(self) -> None:
        exact = self.codec is not None or self.whole.dtype == "model"
        inner = self.codec.codec if isinstance(self.codec, OnWeights) else self.codec
        require(
            (inner != Dense(), DENSE),
            (exact, wrong(self, "whole", "must be Dense() without a codec: clients need the exact model")),
            (self.codec is None or not self.sums_only, wrong(self, "sums_only", "must be False with a codec")),
        )

    def bind(self, exchange: "BoundExchange") -> "BoundDelta":
        """Return the downlink of an exchange. Refuse parts with which clients cannot follow the server."""
        require(
            (exchange.last and exchange.number == 0, "Delta needs a method with one exchange per round"),
            (_sends_all(exchange), "Delta needs clients that receive the whole model: use Full()"),
            (not exchange.per_client, "Delta needs one global model, and this method has one per client"),
            (exchange.exchange.labels == "all", Mistake("Delta needs {}", None, Setting("", "labels", "all"))),
            (exchange.send in ("change", "model"), f"Delta needs uploads of models, got send={exchange.send!r}"),
        )
        server = exchange.server
        single = len(server.download(server.init(exchange.outline), GLOBAL).models) == 1
        require((single, f"Delta needs one global model, and {type(exchange.exchange.server).__name__} has several"))
        steps = Replay.of(exchange, self.sums_only) if self.codec is None else Compressed.of(self.codec, exchange)
        return BoundDelta(self, steps, server, exchange.outline, exchange.context)


class BoundDelta(BoundDownlink):
    """A delta downlink for one network and its clients.

    Args:
        config: the downlink
        steps: the kind of steps
        server: the server
        outline: the tensors of the model
        context: the clients, and the initial model
    """

    versioned = True
    sections = (Section("steps"), Section("rest"), Section("checksum"))

    def __init__(self, config: Delta, steps: Steps, server: Server, outline: Params, context: Context) -> None:
        self.whole, self.steps, self.server, self.context = config.whole, steps, server, context
        self.layout, self.supplied, self.shared_start = Layout.of(outline), steps.replayed, config.shared_start
        state = server.init(outline)
        self.more = {name: Layout.of(state[name]) for name in self.supplied}
        covered = {name for name, _ in steps.layout.shapes}
        self.rest = self.layout.only([name for name, _ in self.layout.shapes if name not in covered])
        zeros = [torch.zeros(each.size, dtype=each.dtype) for each in (self.layout, *self.more.values())]
        self.room = wire.piece_size(self._all(self.layout, *zeros))
        # Without sums_only and shared_start: they do not change how messages are read.
        self.name = f"Delta(codec={config.codec!r}, whole={config.whole!r})"

    # Server side.

    def init(self, params: Params) -> State:
        """Return an empty log, and that no client holds a model, or all clients the initial one."""
        shadow = {} if self.steps.exact else {SHADOW: self._rounded(params)}
        held = 0 if self.shared_start else NEVER
        return {"downlink": {ACKNOWLEDGED: torch.full((self.context.clients,), held), LOG: {}, **shadow}}

    def held(self, state: State, client: int) -> int:
        """Return the version of a client's last acknowledged download."""
        return int(state["downlink"][ACKNOWLEDGED][client])

    def purposes(self, state: State, clock: Clock, held: int) -> Iterable[Purpose]:
        """Return the purposes of the steps since a version, as far as the log has them."""
        log = self._log(state)
        for version in (version for version in range(max(held, 0), clock.round) if str(version) in log):
            yield from self.steps.purposes(log[str(version)].cpu().numpy().tobytes(), version)

    def models(self, state: State, models: tuple[Params, ...]) -> tuple[Params, ...]:
        """Return the model that the clients hold: the server's model, or what the steps make of it."""
        return models if self.steps.exact else (state["downlink"][SHADOW],)

    def write(
        self, state: State, clock: Clock, held: int, models: Sequence[Params], layout: Layout, key: Key
    ) -> Payload:
        """Return the steps since a version, or the whole model if it is shorter or the log does not reach back."""
        (model,), log = models, self._log(state)
        whole = self._all(layout, layout.flatten(model), *self._entries(state))
        missed = [str(version) for version in range(held, clock.round)]
        if held == NEVER or not all(version in log for version in missed):
            return whole
        checksum = {ALONE: self._checksum(model, state)}
        packed = {"steps": {version: log[version] for version in missed}, "checksum": checksum}
        rest = {"rest": self._whole(self.rest, self.rest.flatten(model))} if self.rest.shapes else {}
        delta = joined({}, packed | rest)
        return min(whole, delta, key=wire.piece_size)

    def begin(self) -> Any:
        """Return the notes of the steps."""
        return self.steps.begin()

    def note(self, notes: Any, arrival: Arrival) -> Any:
        """Add what a step contains of an arrival. A step that is longer than the whole model is not completed."""
        return self.steps.note(notes, arrival, self.room)

    def settled(self, state: State, outcomes: Sequence[Outcome]) -> State:
        """Return the state with the versions that clients hold.

        A client whose upload was folded holds the version of the round. Of one that failed, nothing is known: it may
        have refused the download. A client whose answer was lost holds its earlier version, or a later one.
        """
        held = state["downlink"][ACKNOWLEDGED].clone()
        for outcome in outcomes:
            if outcome.folded or (outcome.reason and not outcome.silent):
                held[outcome.client] = outcome.version if outcome.folded else NEVER
        return {**state, "downlink": {**state["downlink"], ACKNOWLEDGED: held}}

    def advance(self, before: State, after: State, notes: Any, clock: Clock) -> State:
        """Add the step of a round to the log. One that was not completed is too long to be kept."""
        (model,) = self.models(before, self.server.download(before, GLOBAL).models)
        (new_model,) = self.server.download(after, GLOBAL).models
        step = self.steps.make(model, new_model, notes, clock.round)
        log = {**self._log(before), str(clock.round): torch.from_numpy(np.frombuffer(step, np.uint8).copy())}
        room, kept = self.room, State()  # the last steps, as far as they are not longer than the whole model together
        for version in sorted(log, key=int, reverse=True):
            room -= log[version].numel() + ENTRY
            if room < 0:
                break
            kept[version] = log[version]
        new = {**before["downlink"], LOG: kept}
        if not self.steps.exact:
            rest = {name: new_model[name] for name, _ in self.rest.shapes}
            new[SHADOW] = self._rounded({**rest, **self.steps.take({"params": model}, step, clock)["params"]})
        return {**after, "downlink": new}

    def _log(self, state: State) -> State:
        """Return the steps by version; a checkpoint has no entry for an empty log."""
        found: State = state["downlink"].get(LOG, {})
        return found

    # Client side.

    def read(
        self, payload: Payload, unread: SectionArrays, layout: Layout, key: Key, clock: Clock, state: State
    ) -> Received:
        """Return the whole model, or the client's model after the steps."""
        if "checksum" not in unread:
            read = ReadArrays(payload)
            model = layout.unflatten(self.whole.decode(read, Coding(layout, key)))
            read.check()
            supplied = {}
            for name in self.supplied:
                read, own = ReadArrays(unread.pop(name, {})), self.more[name]
                supplied[name] = own.unflatten(self.whole.decode(read, Coding(own, key)))
                read.check()
            return Received((model,), sections=supplied)
        steps, base = _steps(unread.pop("steps", {}), clock.round)
        checksum = unread.pop("checksum")
        check_names(checksum, {ALONE})
        wanted = expect(checksum, ALONE, torch.int64, 1)
        if payload or not self.readable(base, clock.round, state):
            raise PayloadError(f"the client does not hold version {base}, from which the download continues")
        held = self._held(state)
        now: State = {name: held[name] for name in ("params", *self.supplied)}
        now["params"] = {name: held["params"][name] for name, _ in self.steps.layout.shapes}
        for version in range(int(held["version"]), clock.round):
            now = self.steps.take(now, steps[version], clock._replace(round=version))
            now["params"] = self._rounded(now["params"])
        params: Params = now.pop("params")
        if self.rest.shapes:
            read = ReadArrays(unread.pop("rest", {}))
            params |= self.rest.unflatten(self.whole.decode(read, Coding(self.rest, key)))
            read.check()
        model = {name: params[name] for name, _ in layout.shapes}
        if not torch.equal(self._checksum(model, now), wanted.cpu()):
            raise PayloadError("the model after the steps of the download is not that of the server")
        return Received((model,), base, now)

    def readable(self, base: int, version: int, state: State) -> bool:
        """Return whether the client holds a model from ``base`` to ``version``."""
        held = self._held(state)
        return base == NEVER or (held.keys() >= {"params", *self.supplied} and base <= int(held["version"]) <= version)

    def _held(self, state: State) -> State:
        """Return the version and the model that a client holds; empty if it holds none."""
        held: State = state.get(HELD, {})
        return held if held or not self.shared_start else {"version": torch.tensor(0), **self._first}

    @cached_property
    def _first(self) -> State:
        """What clients hold of the initial state, as it arrives where the whole model is sent."""
        first = self._rounded(self.context.initial())
        state = self.server.init(first) if self.supplied else {}
        return {"params": first, **{name: state[name] for name in self.supplied}}

    def kept(self, version: int, models: Sequence[Params], sections: Sections) -> State:
        """Return the model and its version, and the entries of the server state that the client computes."""
        more = {name: sections[name] for name in self.supplied}
        return {HELD: {"version": torch.tensor(version), "params": models[0], **more}}

    # Both sides.

    def _all(self, layout: Layout, vector: torch.Tensor, *entries: torch.Tensor) -> Payload:
        """Return the whole model, and the entries of the server state that clients hold."""
        given = zip(self.more.items(), entries, strict=True)
        return joined(self._whole(layout, vector), {name: self._whole(own, entry) for (name, own), entry in given})

    def _entries(self, state: State) -> list[torch.Tensor]:
        """Return the entries of the server state that clients hold, as vectors."""
        return [layout.flatten(state[name]) for name, layout in self.more.items()]

    def _whole(self, layout: Layout, vector: torch.Tensor) -> Payload:
        return self.whole.encode(vector, Coding(layout, Key(0, 0)))  # a codec without randomness

    def _rounded(self, params: Params) -> Params:
        """Return tensors as they arrive at a client that receives the whole model."""
        layout = Layout.of(params)
        sent = self._whole(layout, layout.flatten(params))
        return layout.unflatten(self.whole.decode(sent, Coding(layout, Key(0, 0))))

    def _checksum(self, model: Params, state: State) -> torch.Tensor:
        checksum = 0
        for vector in (self.layout.flatten(model), *self._entries(state)):
            checksum = wire.checksum(wire.array_bytes(vector), checksum)
        return torch.tensor([checksum])


def _sends_all(exchange: "BoundExchange") -> bool:
    """Return whether all clients receive the whole model, and every machine knows which part of it a client holds."""
    view = exchange.view
    sent = partial(view.sent, exchange.outline, Clock(0, 1, 0), Key(0, 0))
    return exchange.exchange.view.whole or (view.common and view.predictable and sent().whole)


def _steps(arrays: Payload, version: int) -> tuple[dict[int, bytes], int]:
    """Return the steps of a download by version, and the version of the first one."""
    found = {int(name): array for name, array in arrays.items() if name.isdecimal() and str(int(name)) == name}
    base = min(found, default=version)
    if len(found) < len(arrays) or set(found) != set(range(base, version)):
        raise PayloadError(f"the steps of a download must end at version {version}, got {', '.join(sorted(arrays))}")
    blobs = {number: expect({"step": array}, "step", torch.uint8, array.numel()) for number, array in found.items()}
    return {number: blob.cpu().numpy().tobytes() for number, blob in blobs.items()}, base
