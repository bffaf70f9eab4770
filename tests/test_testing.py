"""The contracts can fail: each is shown parts that break it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from gossamer import (
    SGD,
    AnyDevice,
    Clock,
    Codec,
    Dense,
    Full,
    Layout,
    Mean,
    Params,
    Part,
    Payload,
    Perfect,
    Receipt,
    fedavg,
)
from gossamer.core.codec import CodecMemory
from gossamer.core.exchange import (
    GLOBAL,
    Arrival,
    Assignment,
    Context,
    Download,
    LocalTrainingInfo,
    Outcome,
    Section,
    Sections,
)
from gossamer.core.random import Key
from gossamer.core.types import State
from gossamer.core.wire import expect, finite
from gossamer.parts.samplers import Pool, PowerOfChoice, RoundRobin, Sampler
from gossamer.parts.servers import MeasuredServer, Sum
from gossamer.parts.solvers import Gradient, GradientProbe, Hyperparams
from gossamer.parts.views import Bernoulli, BoundView, ViewMemory
from gossamer.testing import (
    check_channel,
    check_codec,
    check_method,
    check_sampler,
    check_server,
    check_solver,
    check_value,
    check_view,
)

WEIGHT, ROWS = "0.weight", 8
"""A tensor of the network that parts are bound to, and its number of rows."""


class BrokenError(Exception):
    """What a part raises that must not."""


# Codecs


class NoValue(Dense):
    """Compares by identity."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass(frozen=True)
class Writes(Dense):
    """Scribbles on its input."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        x += 1
        return {"values": x.clone()}


@dataclass(frozen=True)
class Trusting(Codec):
    """Believes whatever comes."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return {"values": x, "scale": torch.ones(1)}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        return expect(payload, "values", layout.dtype, layout.size)


@dataclass(frozen=True)
class Moody(Dense):
    """Draws from torch's own generator."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return {"values": x + torch.rand_like(x)}


@dataclass(frozen=True)
class Overflowing(Dense):
    """Makes an infinity of a large value."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return {"values": (x.half()).to(x.dtype)}


@dataclass(frozen=True)
class Folding(Dense):
    """Adds all of a payload, whatever its weight."""

    def fold(self, acc: Tensor, payload: Payload, layout: Layout, key: Key, weight: float) -> None:
        acc.add_(self.decode(payload, layout, key))


@dataclass(frozen=True)
class Piecemeal(Dense):
    """Forgets the last piece of a sum."""

    def fold_into(self, payload: Payload, layout: Layout, key: Key, weight: float, like: Tensor) -> Any:
        whole = super().fold_into(payload, layout, key, weight, like)
        return lambda pieces: whole([*pieces[:-1], pieces[-1].clone()])


@dataclass(frozen=True)
class Counting(CodecMemory):
    """Remembers a plain number."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return {"values": x}

    def encode_with(self, x: Tensor, layout: Layout, state: State, key: Key) -> tuple[Payload, State]:
        return self.encode(x, layout, key), {"rounds": 1}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        return finite(expect(payload, "values", layout.dtype, layout.size), "values")


@dataclass(frozen=True)
class Timid(Dense):
    """Does not take what it must."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return {"values": expect({"values": x}, "values", layout.dtype, 100)}


@pytest.mark.parametrize(
    ("codec", "reason"),
    [
        (NoValue(), "not equal to its copy"),
        (Writes(), "changed its input"),
        (Trusting(), "without 'scale'"),
        (Moody(), "a different payload for the same key"),
        (Overflowing(), "not finite"),
        (Folding(), "does not add the decoded vector times the weight"),
        (Piecemeal(), "fold_into does not add the same as fold"),
        (Counting(), "must consist of tensors"),
        (Timid(), "refuses a vector that it must encode"),
    ],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_a_codec_that_breaks_the_contract_is_refused_with_the_reason(codec: Codec, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check_codec(codec)


@dataclass(frozen=True)
class Biased(Codec):
    """Does not claim to be unbiased, and returns its input as ``decode`` implements it."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return {"values": x}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        return self.made(finite(expect(payload, "values", layout.dtype, layout.size), "values"))

    def made(self, values: Tensor) -> Tensor:
        return values


class Negative(Biased):
    def made(self, values: Tensor) -> Tensor:
        return -values


class Zeros(Biased):
    def made(self, values: Tensor) -> Tensor:
        return torch.zeros_like(values)


class Reversed(Biased):
    def made(self, values: Tensor) -> Tensor:
        return values.flip(0)


class Halved(Biased):
    def made(self, values: Tensor) -> Tensor:
        return values / 2


class Doubled(Biased):
    def made(self, values: Tensor) -> Tensor:
        return torch.where(values.abs() < 1e20, values * 2, values)


class Wide(Biased):
    def made(self, values: Tensor) -> Tensor:
        return values.double()


class Short(Biased):
    def made(self, values: Tensor) -> Tensor:
        return values[:-1]


class Infinite(Biased):
    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        return expect(payload, "values", layout.dtype, layout.size)


class Reading(Biased):
    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        return payload["values"].view(layout.size)


class Refusing(Biased):
    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        return expect(payload, "other", layout.dtype, layout.size)


@pytest.mark.parametrize(
    ("codec", "reason"),
    [
        (Negative(), r"in another direction than the encoded ones: cosine -1\.000"),
        (Zeros(), r"in another direction than the encoded ones: cosine 0\.000"),
        (Reversed(), "in another direction than the encoded ones"),
        (Halved(), r"multiplies its norm by 0\.50"),
        (Doubled(), r"multiplies its norm by 2\.00"),
        (Wide(), r"decoded torch\.float64 from a vector of torch\.float32"),
        (Short(), r"decoded \(0,\), expected \(1,\)"),
        (Infinite(), "decoded non-finite values from an altered payload"),
        (Reading(), r"decode crashes: KeyError: 'values'"),
        (Refusing(), "decode refuses a payload of encode"),
    ],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_a_biased_codec_must_be_accurate_in_other_ways(codec: Codec, reason: str) -> None:
    assert not codec.unbiased
    with pytest.raises(AssertionError, match=reason):
        check_codec(codec)


class Unbiased(Biased):
    @property
    def unbiased(self) -> bool:
        return True


class UnbiasedHalved(Unbiased, Halved):
    pass


class UnbiasedNegative(Unbiased, Negative):
    pass


class UnbiasedReversed(Unbiased, Reversed):
    pass


@pytest.mark.parametrize("codec", [UnbiasedHalved(), UnbiasedNegative(), UnbiasedReversed()], ids=repr)
def test_a_codec_that_claims_to_be_unbiased_is_tested_for_it(codec: Codec) -> None:
    with pytest.raises(AssertionError, match="declares itself unbiased, but its bias is"):
        check_codec(codec)


class Coarse(Biased):
    def made(self, values: Tensor) -> Tensor:
        return (values / 1e6).round() * 1e6


def test_a_codec_with_a_fixed_scale_is_tested_on_vectors_of_that_size() -> None:
    check_codec(Coarse(), size=1e8)
    with pytest.raises(AssertionError, match="in another direction"):
        check_codec(Coarse())


# Views


@dataclass(frozen=True)
class Restless(BoundView):
    """Takes another half each time it is asked."""

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        return Part(keep={WEIGHT: (torch.rand(like[WEIGHT].shape) < 0.5).float()})


@dataclass(frozen=True)
class Partly(BoundView):
    """Covers entries by half."""

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        return Part(keep={WEIGHT: torch.full(like[WEIGHT].shape, 0.5)})


@dataclass(frozen=True)
class Elsewhere(Bernoulli):
    """Sends another part than clients hold."""

    def sent(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        return Bernoulli((0.3,)).part(like, clock, key)


@dataclass(frozen=True)
class Shared(Bernoulli):
    """Declares a common download, and draws one per client."""

    common: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (Restless(), "a different part"),
        (Partly(), "must be 0 or 1"),
        (Elsewhere(), "must return the whole model or the client's part"),
        (Shared(), "is not common"),
    ],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_a_view_that_breaks_the_contract_is_refused_with_the_reason(view: BoundView, reason: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=reason):
        check_view(view)


@dataclass(frozen=True)
class Halving(ViewMemory):
    """Holds the first rows of a tensor, and one less after each round; right in every way."""

    section: ClassVar[str] = "rows"

    def rows(self, memory: State | None) -> int:
        return int(memory["rows"]) if memory else ROWS

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        keep = torch.zeros_like(like[WEIGHT])
        keep[: self.rows(memory)] = 1
        return Part(keep={WEIGHT: keep})

    def first(self, client: int) -> State:
        return {"rows": torch.tensor([ROWS])}

    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        left = torch.tensor([self.rows(memory) - 1])
        return {"rows": left}, {"left": left}

    def follow(self, memory: State, section: Payload, like: Params) -> State:
        left = expect(section, "left", torch.int64, 1)
        expect({"left": left[(left >= 0) & (left < self.rows(memory))]}, "left", torch.int64, 1)
        return {"rows": left}


class Grudging(Halving):
    """A server that does not follow."""

    def follow(self, memory: State, section: Payload, like: Params) -> State:
        return memory


class Mutating(Halving):
    """A client that overwrites what it remembers."""

    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        memory["rows"] -= 1
        return memory, {"left": memory["rows"].clone()}


class Wavering(Halving):
    """Sends another section each time."""

    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        state, section = super().revise(memory, info, clock, key)
        return state, {**section, "mood": torch.rand(1)}


class Gullible(Halving):
    """A server that reads what is not there."""

    def follow(self, memory: State, section: Payload, like: Params) -> State:
        return {"rows": section["left"][[0]]}


class Beginning(Halving):
    """Starts with another state than ``first`` returns."""

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        return super().part(like, clock, key, memory or {"rows": torch.tensor([3])})


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (Grudging(), "returns another state than revise"),
        (Mutating(), "revise (is not deterministic|changed the state)"),
        (Wavering(), "the second call returns another payload"),
        (Gullible(), "follow crashes: (KeyError|IndexError)"),
        (Beginning(), "must use the state of first"),
    ],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_a_view_with_a_wrong_state_is_refused_with_the_reason(view: ViewMemory, reason: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=reason):
        check_view(view)


# Solvers


@dataclass(frozen=True)
class InPlace(SGD):
    """Steps in place, on a model that other clients share."""

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        return {"params": start}

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        carry["params"] -= 0.1 * gradient(carry["params"])[0]
        return carry


@dataclass(frozen=True)
class Silent(SGD):
    """Declares a section, and does not write it."""

    sections: ClassVar[tuple[Section, ...]] = (Section("length"),)


@dataclass(frozen=True)
class Talkative(SGD):
    """Writes a section that it does not declare."""

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        return {}, {"length": 1.0}


@dataclass(frozen=True)
class Greedy(SGD):
    """Plans a sample that is not there."""

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        return [np.arange(samples + 1)]


@dataclass(frozen=True)
class Again(SGD):
    """Plans a sample twice in a batch."""

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        return [np.zeros(2, dtype=np.int64)]


@dataclass(frozen=True)
class Nought(SGD):
    """Plans a batch without samples."""

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        return [np.arange(0)]


@dataclass(frozen=True)
class Numbering(SGD):
    """Remembers a plain number."""

    stateful: ClassVar[bool] = True

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        return {"rounds": 1}, {}


@dataclass(frozen=True)
class Amnesic(SGD):
    """Needs what it does not remember."""

    stateful: ClassVar[bool] = True

    def init(self, context: Context) -> State:
        return {"old": self.layout.flatten(context.network.initial())}

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        return super().begin(memory["old"], sections, memory, steps)


@dataclass(frozen=True)
class Undeclared(SGD):
    """Remembers something, and does not say so."""

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        return {"old": carry["params"]}, {}


@dataclass(frozen=True)
class Formless(SGD):
    """Has another form for what was not held than for what was."""

    stateful: ClassVar[bool] = True

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        return {"old": carry["params"]}, {}

    def skipped(self, memory: State) -> State:
        return {"none": memory["old"]}


@dataclass(frozen=True)
class Partial(SGD):
    """Deploys a part of a model."""

    stateful: ClassVar[bool] = True

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        return {"own": carry["params"]}, {}

    def deploy(self, memory: State) -> Tensor | None:
        own: Tensor = memory["own"]
        return own[1:]


@dataclass(frozen=True)
class Random(SGD):
    """Steps at random."""

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        return {**carry, "params": carry["params"] + torch.rand_like(start)}


@pytest.mark.parametrize(
    ("solver", "reason"),
    [
        (InPlace(), "is not deterministic|changed the received model"),
        (Silent(), r"declares the sections \['length'\], but writes \[\]"),
        (Talkative(), r"declares the sections \[\], but writes \['length'\]"),
        (Greedy(), "a sample index out of range"),
        (Again(), "a sample twice in a batch"),
        (Nought(), "an empty batch"),
        (Numbering(), "must consist of tensors"),
        (Amnesic(), "begin, with the state of an earlier round, crashes: KeyError: 'old'"),
        (Undeclared(), "end returns client state: declare stateful = True"),
        (Formless(), "skipped must have the keys of the state that end returns"),
        (Partial(), "deploy must return all parameters"),
        (Random(), "is not deterministic"),
    ],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_a_solver_that_breaks_the_contract_is_refused_with_the_reason(solver: SGD, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check_solver(solver)


# Servers


@dataclass(frozen=True)
class Drifting(Mean):
    """Moves though nothing arrived."""

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        return {"params": {name: tensor + 1 for name, tensor in state["params"].items()}}


@dataclass(frozen=True)
class Hasty(Mean):
    """Moves the model while folding."""

    def fold(self, acc: Sum, arrival: Arrival) -> Sum:
        acc.like[WEIGHT].add_(1)
        return super().fold(acc, arrival)


@dataclass(frozen=True)
class Overwriting(Mean):
    """Writes the new model over the old one, to which a round that fails must go back."""

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        if acc.weight:
            state["params"][WEIGHT].add_(1)
        return state


@dataclass(frozen=True)
class Inventing(Mean):
    """Assigns a model to a client that is not there."""

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment]:
        return dict.fromkeys([*cohort, 4], GLOBAL)


@dataclass(frozen=True)
class Tongue(Mean):
    """Declares a section, and does not write it."""

    sections: ClassVar[tuple[Section, ...]] = (Section("rate"),)


@dataclass(frozen=True)
class Ticking(Mean):
    """Has a plain number in its state."""

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        return {**super().finish(state, acc, clock), "rounds": clock.round}


@dataclass(frozen=True)
class Losing(Mean):
    """Loses a tensor of the model."""

    def download(self, state: State, assignment: Assignment) -> Download:
        return Download(({name: tensor for name, tensor in state["params"].items() if name != WEIGHT},))


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (Drifting(), "without arrivals"),
        (Hasty(), "read-only"),
        (Overwriting(), "read-only"),
        (Inventing(), "assigns models to clients outside the cohort"),
        (Tongue(), r"declares the sections \['rate'\], but writes \[\]"),
        (Ticking(), "must consist of tensors"),
        (Losing(), "download must return all tensors"),
    ],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_a_server_that_breaks_the_contract_is_refused_with_the_reason(server: Mean, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check_server(server)


# Samplers


@dataclass(frozen=True)
class Ghostly(Sampler):
    """Draws the next client, available or not."""

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        return list(range(pool.count))


@dataclass(frozen=True)
class Double(RoundRobin):
    """Draws a client twice."""

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        return [min(pool.available)] * pool.count


@dataclass(frozen=True)
class Disorderly(RoundRobin):
    """Draws in any order."""

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        return super().propose(pool, clock, key)[::-1]


@dataclass(frozen=True)
class Meagre(RoundRobin):
    """Draws one client, whatever it is asked for."""

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        return super().propose(pool, clock, key)[:1]


@dataclass(frozen=True)
class Gambling(Sampler):
    """Draws from torch's own generator."""

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        order = torch.randperm(len(pool.available)).tolist()
        return sorted([sorted(pool.available)[index] for index in order][: pool.count])


@dataclass(frozen=True)
class Wilful(PowerOfChoice):
    """Chooses a client that it did not propose."""

    def choose(self, outcomes: Sequence[Outcome], count: int) -> list[int]:
        return list(range(12, 12 + count))


@dataclass(frozen=True)
class Deaf(PowerOfChoice):
    """Uses replies of clients, also of those whose replies were lost."""

    def choose(self, outcomes: Sequence[Outcome], count: int) -> list[int]:
        return sorted(sorted(outcome.client for outcome in outcomes if outcome.sections["loss"] >= 0)[:count])


@pytest.mark.parametrize(
    ("sampler", "reason"),
    [
        (Ghostly(), "draws clients that are not available"),
        (Double(), "draws a client twice"),
        (Disorderly(), "not in client order"),
        (Meagre(), "draws 1 clients, not 3"),
        (Gambling(), "propose is not deterministic"),
        (Wilful(), "chooses clients that it did not propose"),
        (Deaf(), "choose, with a client that did not reply, crashes: KeyError: 'loss'"),
    ],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_a_sampler_that_breaks_the_contract_is_refused_with_the_reason(sampler: Sampler, reason: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=reason):
        check_sampler(sampler)


# Crashes


@dataclass(frozen=True)
class MemorySGD(SGD):
    """SGD that remembers where it was."""

    stateful: ClassVar[bool] = True

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        return {"old": carry["params"]}, {}


@dataclass(frozen=True)
class MeasuredMean(Mean, MeasuredServer):
    """A mean with a measured figure."""

    def measure(self, state: State, acc: Sum) -> dict[str, Any]:
        return {"weight": acc.weight}


def crashing(base: Any, member: str) -> Any:
    """A part of which one member raises."""

    def crash(self: Any, *given: Any, **more: Any) -> Any:
        raise BrokenError("as asked")

    name = f"{type(base).__name__}_{member}"
    kind = type(name, (type(base),), {member: crash, "__module__": __name__, "__qualname__": name})
    globals()[name] = kind  # where pickle finds it
    return kind(**vars(base))


CRASHES: list[tuple[Callable[[Any], None], Any, str]] = [
    *((check_codec, Biased(), member) for member in ("bind", "encode", "decode", "fold", "fold_into")),
    *((check_codec, Counting(), member) for member in ("encode_with", "settle")),
    *((check_view, Halving(), m) for m in ("bind", "part", "sent", "first", "revise", "follow", "measure")),
    *(
        (check_solver, GradientProbe(), member)
        for member in ("bind", "plan", "batches", "begin", "hyperparams", "step", "end")
    ),
    *((check_solver, MemorySGD(), member) for member in ("init", "settle", "skipped", "deploy")),
    *((check_server, Mean(), member) for member in ("bind", "init", "assign", "download", "begin", "fold", "finish")),
    (check_server, MeasuredMean(), "measure"),
    (check_sampler, RoundRobin(), "propose"),
    (check_sampler, PowerOfChoice(), "choose"),
    *((check_channel, Perfect(), member) for member in ("fit", "send", "work")),
]


@pytest.mark.parametrize(
    ("check", "part", "member"), CRASHES, ids=[f"{type(part).__name__}.{member}" for _, part, member in CRASHES]
)
def test_a_part_that_crashes_is_reported_with_the_call(check: Callable[[Any], None], part: Any, member: str) -> None:
    with pytest.raises(AssertionError, match=rf"\.{member}\b.* crashes: BrokenError: as asked"):
        check(crashing(part, member))


def test_these_parts_pass_without_the_crash() -> None:
    check_codec(Biased())
    check_view(Halving())
    check_solver(GradientProbe())
    check_solver(MemorySGD())
    check_server(MeasuredMean())


# Channels, methods and values


@dataclass(frozen=True)
class Whimsical(AnyDevice):
    """Draws from a global random state."""

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        return Receipt(bool(torch.rand(()) < 0.5))


def test_a_channel_with_hidden_randomness_is_found() -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match="send is not deterministic"):
        check_channel(Whimsical())


def test_a_method_that_does_not_repeat_is_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match="another result with the same seed"):
        check_method(fedavg().with_parts(codec=Moody()), tmp_path)


def test_a_part_that_is_no_dataclass_is_found() -> None:
    class Plain(Full):
        __repr__: Callable[..., str] = object.__repr__

    with pytest.raises(AssertionError, match="it must be picklable"):
        check_value(Plain())
