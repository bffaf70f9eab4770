"""The contract that each kind of part keeps, as functions to call from a test.

    def test_my_codec():
        check_codec(MyCodec(bits=2))

Each binds the part first, to a small network, and raises ``AssertionError`` with what was expected; a part that crashes
is a finding too, with the member that did. A part that passes works with every other part, over every channel, in every
engine.
"""

import contextlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core import tree, wire
from gossamer.core.bound import BoundExchange
from gossamer.core.channel import Channel
from gossamer.core.codec import Codec, memory_of
from gossamer.core.errors import ConfigError, PayloadError, RunError
from gossamer.core.exchange import Arrival, Outcome
from gossamer.core.method import Exchange, Method
from gossamer.core.random import Key, fold, key, uniform
from gossamer.core.sampler import Pool, Sampler
from gossamer.core.server import Server
from gossamer.core.solver import Solver
from gossamer.core.types import Clock, Flops, Layout, Params, Part, Payload, State
from gossamer.core.view import View, ViewMemory
from gossamer.engines import simulate
from gossamer.engines.metrics import Ledger
from gossamer.engines.run import Result
from gossamer.methods.composition import compose
from gossamer.parts.samplers.uniform import Uniform
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.full import Full
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task

KEY = key(20)
CLOCK = Clock(round=1, rounds=4, client=2)


@contextlib.contextmanager
def _named(part: object, member: str) -> Iterator[None]:
    """Whatever a part raises that it must not is a finding, by the name of what was called."""
    try:
        yield
    except (AssertionError, PayloadError, ConfigError):
        raise
    except Exception as error:
        raise AssertionError(f"{part!r}.{member} crashes: {type(error).__name__}: {error}") from error


def bound(exchange: Exchange, task: Task | None = None) -> BoundExchange:
    """An exchange that is bound to a task, a small one if none is given: what the checks here work with."""
    with _named(exchange, "bind"):
        return Method((exchange,), Uniform()).bind(Objective(task or tiny_task(), "cpu", KEY)).training


def check_value(part: Any) -> None:
    """A part is a value: it prints its fields, compares, hashes and pickles."""
    with _named(part, "__reduce__ (it must pickle)"):
        twin = pickle.loads(pickle.dumps(part))
    assert twin == part, f"{part!r} is not equal to its own copy: make it a frozen dataclass"
    assert hash(twin) == hash(part), f"{part!r} does not hash by value"
    assert repr(twin) == repr(part), f"{part!r} does not print its fields"
    assert " at 0x" not in repr(part), f"{part!r} prints an address: make it a dataclass"


# Codecs.


def check_codec(
    codec: Codec,
    *,
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64),
    largest: float = 1e30,
    size: float = 1.0,
) -> None:
    """A codec is pure, keeps what it promises, crosses the wire unharmed, and decodes no payload but its own.

    A vector with an entry above ``largest`` may be refused, with the reason; any other must be encoded. ``size`` is how
    large the entries of an ordinary vector are, for a codec that has a scale of its own.
    """
    check_value(codec)
    codec = bound(compose(Full(), SGD(), codec).training).codec
    for dtype in dtypes:
        for x in awkward_vectors(dtype):
            _check_round_trip(codec, x, largest)
        _check_refusals(codec, dtype)
        _check_memory(codec, dtype)
        _check_fold(codec, dtype)
    if codec.unbiased:
        _check_mean(codec, dtypes[-1])
    else:
        _check_direction(codec, dtypes[-1], size)


def awkward_vectors(dtype: torch.dtype = torch.float32) -> Iterator[Tensor]:
    """Vectors that break careless codecs: tiny, huge, constant, mostly zero, lopsided and ordinary ones."""
    for n in (1, 2, 7, 64, 1000):
        noise = uniform(fold(KEY, n), n, dtype=torch.float64) * 2 - 1
        yield from (vector.to(dtype) for vector in (noise, torch.zeros(n), torch.ones(n), noise * 1e-30, noise * 1e15))
        yield torch.where(noise > 0.8, noise, 0).to(dtype)
        yield torch.cat([noise[:1] * 1e15, noise[1:] * 1e-15]).to(dtype)
        yield (noise * torch.finfo(dtype).max).to(dtype)


def _layout(x: Tensor) -> Layout:
    """A layout of several tensors, when there is room for them."""
    first = len(x) // 3
    pieces = {"a": x[:first], "b": x[first:].view(-1, 1)} if first else {"a": x}
    return Layout.of(pieces)


def _ordinary(dtype: torch.dtype) -> Tensor:
    return (uniform(KEY, 100, dtype=torch.float64) - 0.5).to(dtype)


def _check_round_trip(codec: Codec, x: Tensor, largest: float) -> None:
    layout, before = _layout(x), x.clone()
    try:
        with _named(codec, "encode"):
            payload = codec.encode(x, layout, KEY)
    except PayloadError as error:
        if x.abs().max() > largest:
            return
        raise AssertionError(f"{codec!r} refuses a vector that it must take: {error}") from error
    assert torch.equal(x, before), f"{codec!r}.encode changed its input"
    again = codec.encode(x, layout, KEY)
    sent = _over_the_wire(payload)
    assert _same(sent, payload), f"{codec!r}: the payload came back from the wire changed"
    assert _same(again, payload), f"{codec!r}.encode gives another payload for the same key"
    strided = torch.stack([x, x + 1], 1)[:, 0]
    assert _same(codec.encode(strided, layout, KEY), payload), f"{codec!r} encodes a strided vector otherwise"
    decoded = _own(codec, sent, layout)
    assert decoded.shape == x.shape, f"{codec!r} decoded {tuple(decoded.shape)}, expected {tuple(x.shape)}"
    assert decoded.dtype == x.dtype, f"{codec!r} decoded {decoded.dtype} from a vector of {x.dtype}"
    assert torch.isfinite(decoded).all(), f"{codec!r} decoded values that are not finite from {x}"
    assert torch.equal(decoded, codec.decode(sent, layout, KEY)), f"{codec!r}.decode gives another vector each time"
    if codec.exact and torch.cuda.is_available():
        _check_gpu(codec, x, payload, decoded)


def _own(codec: Codec, payload: Payload, layout: Layout) -> Tensor:
    try:
        with _named(codec, "decode"):
            return codec.decode(payload, layout, KEY)
    except PayloadError as error:
        raise AssertionError(f"{codec!r}.decode refuses what encode made: {error}") from error


def _over_the_wire(payload: Payload) -> Payload:
    return wire.unpack(wire.pack(wire.Message("up", 0, 0, 0, 1.0, payload))).payload


def _same(a: Payload, b: Payload) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def _check_gpu(codec: Codec, x: Tensor, payload: Payload, decoded: Tensor) -> None:
    """Bytes and decoded values do not depend on the device."""
    layout = _layout(x)
    there = codec.encode(x.cuda(), layout, KEY)
    assert _same(_over_the_wire(there), payload), f"{codec!r} encodes otherwise on a GPU: if it must, exact = False"
    back = codec.decode({name: tensor.cuda() for name, tensor in payload.items()}, layout, KEY)
    assert torch.equal(back.cpu(), decoded), f"{codec!r} decodes otherwise on a GPU: if it must, exact = False"


def _check_mean(codec: Codec, dtype: torch.dtype) -> None:
    """Over many keys the decoded vector comes to the encoded one, as near as its own scatter lets it.

    Args:
        Twice: in the root mean square over all entries, and along the vector, where a wrong scale shows best.
    """
    x = uniform(fold(KEY, "mean"), 48, dtype=torch.float64).to(dtype) * 2 - 1
    layout = _layout(x)
    keys = [fold(KEY, draw) for draw in range(300)]
    decoded = torch.stack([codec.decode(codec.encode(x, layout, k), layout, k) for k in keys]).double()
    for errors in (decoded - x.double(), (decoded - x.double()) @ x.double().view(-1, 1) / x.double().square().sum()):
        off = errors.mean(0).square().mean().sqrt()
        scatter = (errors.var(0).mean() / len(keys)).sqrt()
        assert off <= 4 * scatter + 1e-6, (
            f"{codec!r} says that it is unbiased: it is off by {off:.2g} on average, give or take {scatter:.2g}"
        )


def _check_direction(codec: Codec, dtype: torch.dtype, size: float) -> None:
    """What is decoded points where the encoded vector does, and encoding it again does not make it smaller or larger.

    A codec that is biased may lose much of a vector. But over many vectors what is left must not be unrelated to them,
    and must be such as the codec itself would send.
    """
    cosines, ratios = [], []
    for draw in range(48):
        at = fold(KEY, "direction", draw)
        x = (size * (uniform(fold(at, "x"), 257, dtype=torch.float64) * 2 - 1)).to(dtype)
        layout = _layout(x)
        once = codec.decode(codec.encode(x, layout, at), layout, at)
        twice = codec.decode(codec.encode(once, layout, at), layout, at)
        cosines.append(float(once @ x / (once.norm() * x.norm()).clamp(min=1e-30)))
        ratios.append(float(twice.norm() / once.norm().clamp(min=1e-30)))
    cosine, ratio = sum(cosines) / len(cosines), sorted(ratios)[len(ratios) // 2]
    assert cosine > 0.05, f"{codec!r} decodes vectors that do not point where the encoded ones do: cosine {cosine:.3f}"
    assert 0.8 < ratio < 1.25, (
        f"{codec!r} decodes vectors of another length than it is given: sent again, what it decoded comes back "
        f"{ratio:.2f} times as long"
    )


def _check_refusals(codec: Codec, dtype: torch.dtype) -> None:
    """A payload with an array missing is refused; one that was altered is refused or decodes to finite values."""
    x = _ordinary(dtype)
    layout = _layout(x)
    payload = codec.encode(x, layout, KEY)
    for name in payload:
        assert not _decodes(codec, {n: t for n, t in payload.items() if n != name}, layout), (
            f"{codec!r}.decode accepts a payload without {name!r}: read it with gossamer.core.wire.expect"
        )
    for altered in _altered(payload):
        _decodes(codec, _over_the_wire(altered), layout)
    for bad in (torch.nan, torch.inf, -torch.inf):
        poisoned = x.clone()
        poisoned[3] = bad
        with contextlib.suppress(PayloadError):
            _decodes(codec, codec.encode(poisoned, layout, KEY), layout)


def _decodes(codec: Codec, payload: Payload, layout: Layout) -> bool:
    try:
        with _named(codec, "decode"):
            decoded = codec.decode(payload, layout, KEY)
    except PayloadError:
        return False
    assert decoded.shape == (layout.size,), f"{codec!r} decoded {tuple(decoded.shape)}, expected {layout.size} entries"
    assert torch.isfinite(decoded).all(), (
        f"{codec!r} decoded values that are not finite from a payload not its own: "
        "check it with gossamer.core.wire.finite"
    )
    return True


def _altered(payload: Payload) -> Iterator[Payload]:
    """The payload with one array cut, grown, of another type, with bits flipped, or with other bytes throughout."""
    for name, tensor in payload.items():
        for other in (tensor[:-1], tensor[:1], tensor[:0], torch.cat([tensor, tensor]), tensor.to(torch.int64)):
            yield {**payload, name: other}
        raw = tensor.contiguous().view(torch.uint8)
        for other in (*_flipped(raw), torch.zeros_like(raw), torch.full_like(raw, 0xFF), *_garbage(raw)):
            yield {**payload, name: other.view(tensor.dtype)}


def _flipped(raw: Tensor) -> Iterator[Tensor]:
    """All bits of some bytes, and one bit of each of these."""
    for number, place in enumerate(range(0, len(raw), max(1, len(raw) // 16))):
        for bits in (0xFF, 1 << number % 8, 0x80 >> number % 8):
            flipped = raw.clone()
            flipped[place] ^= bits
            yield flipped


def _garbage(raw: Tensor) -> Iterator[Tensor]:
    for draw in range(16):
        yield (uniform(fold(KEY, "garbage", draw), len(raw)) * 256).to(torch.uint8)


def _check_memory(codec: Codec, dtype: torch.dtype) -> None:
    """What a codec remembers is a nest of tensors, and survives being stored between rounds."""
    x = _ordinary(dtype)
    layout = _layout(x)
    memory = memory_of(codec)
    state = memory.init(layout)
    for number, delivered in enumerate((True, False, True)):
        at = fold(KEY, number)
        with _named(codec, "encode_with"):
            payload, kept = memory.encode_with(x, layout, state, at)
            again, _ = memory.encode_with(x, layout, tree.unflatten(tree.flatten(state)) or state, at)
        assert _same(payload, again), f"{codec!r} encodes otherwise once its memory was stored and read back"
        assert codec.decode(_over_the_wire(payload), layout, at).shape == x.shape
        with _named(codec, "settle"):
            state = memory.settle(kept, delivered)
        assert all(isinstance(leaf, Tensor) for leaf in tree.flatten(state).values()), f"{codec!r} must keep tensors"


def _check_fold(codec: Codec, dtype: torch.dtype) -> None:
    """To fold a payload into a sum is to decode it, weigh it and add it, and so it is if the sum lies in pieces."""
    x = _ordinary(dtype)
    layout = _layout(x)
    payload = codec.encode(x, layout, KEY)
    acc = torch.ones_like(x)
    with _named(codec, "fold"):
        codec.fold(acc, payload, layout, KEY, 0.5)
    wanted = 1 + codec.decode(payload, layout, KEY) * 0.5
    assert torch.allclose(acc, wanted, rtol=1e-5, atol=1e-5), (
        f"{codec!r}.fold adds something else than half of what it decodes"
    )
    pieces = [torch.ones_like(part) for part in (x[:3], x[3:])]
    with _named(codec, "fold_into"):
        codec.fold_into(payload, layout, KEY, 0.5, acc)(pieces)
    assert torch.allclose(torch.cat(pieces), wanted, rtol=1e-5, atol=1e-5), (
        f"{codec!r}.fold_into adds something else than {codec!r}.fold"
    )


# Views, solvers, servers, channels.


def check_view(view: View, task: Task | None = None) -> None:
    """Server and client see the same part; what is taken and put back covers exactly what it says."""
    check_value(view)
    found = bound(compose(view, SGD()).training, task)
    view, like = found.view, found.context.network.initial()
    with _named(view, "part"):
        part, twin = view.part(like, CLOCK, KEY), view.part(like, CLOCK, KEY)
    held = part.take(like)
    assert _same(_flat(held), _flat(twin.take(like))), f"{view!r} gives another part for the same clock and key"
    assert held.keys() == like.keys(), f"{view!r} must take something of every tensor"
    ones = {name: torch.ones_like(tensor) for name, tensor in held.items()}
    cover = part.coverage(like)
    for name, tensor in part.spread(ones, like).items():
        assert tensor.shape == like[name].shape, f"{view!r} spreads {name} to {tuple(tensor.shape)}"
        assert torch.equal(tensor, cover[name]), (
            f"{view!r} spreads {name} where it does not cover it, or not where it does"
        )
        assert ((cover[name] == 0) | (cover[name] == 1)).all(), f"{view!r} covers entries of {name} in part"
    assert _same(_flat(part.put(like, held)), _flat(like)), f"{view!r} puts back something else than was taken"
    layout = part.layout(like)
    assert _same(_flat(layout.unflatten(layout.flatten(held))), _flat(held)), f"{view!r} loses entries on the way"
    with _named(view, "sent"):
        sent = view.sent(like, CLOCK, KEY)
        other = view.sent(like, CLOCK._replace(client=CLOCK.client + 1), fold(KEY, "other"))
    assert sent.whole or _same_part(sent, part, like), f"{view!r}.sent must be the whole model, or what part says"
    assert not view.common or _same_part(sent, other, like), f"{view!r} is not common: clients are sent other parts"
    if isinstance(view, ViewMemory):
        _check_view_memory(view, like)


def _check_view_memory(view: ViewMemory, like: Params) -> None:
    """What a client makes of its part, the server makes of what it is told, round after round."""
    with _named(view, "first"):
        memory = view.first(CLOCK.client)
    assert _same_part(view.part(like, CLOCK, KEY, memory), view.part(like, CLOCK, KEY), like), (
        f"{view!r}: a client that remembers nothing must hold what it starts with"
    )
    for number in range(CLOCK.rounds):
        clock, at, info = CLOCK._replace(round=number), fold(KEY, number), _Info(view, like, memory, number)
        before = tree.clone(memory)
        with _named(view, "revise"):
            (then, said), (twin, again) = (view.revise(memory, info, clock, at) for _ in range(2))
        assert _same(said, again), f"{view!r}.revise says something else the second time"
        assert _same_state(then, twin), f"{view!r}.revise comes to another part the second time"
        assert _same_state(memory, before), f"{view!r}.revise changed the part that it must only read"
        for known in (memory, _stored(memory) or memory):
            with _named(view, "follow"):
                followed = view.follow(known, _over_the_wire(said), like)
            assert _same_state(followed, then), f"{view!r}.follow comes to another part than revise"
        assert _same_part(view.part(like, clock, at, then), view.part(like, clock, at, _stored(then)), like), (
            f"{view!r} gives another part once it was stored and read back"
        )
        for altered in _altered(said):
            with contextlib.suppress(PayloadError), _named(view, "follow"):
                view.part(like, clock, at, view.follow(memory, _over_the_wire(altered), like)).layout(like)
        with _named(view, "measure"):
            view.measure({0: memory}, {0: then}, like)
        memory = then


class _Info:
    """Made-up training: what a client holds, and random numbers."""

    def __init__(self, view: Any, like: Params, memory: State, number: int) -> None:
        def noise(label: str) -> Params:
            return {
                name: (uniform(fold(KEY, label, number, name), t.numel(), dtype=torch.float64) - 0.5).to(t).view_as(t)
                for name, t in like.items()
            }

        part = view.part(like, CLOCK, KEY, memory)
        self.start = part.take(like)
        self.weights, self.carry = part.take(noise("weights")), {"early": part.take(noise("early"))}
        self._gradient = noise("gradient")

    def loss(self) -> float:
        return 1.0

    def accuracy(self, params: Params) -> float:
        return 1.0

    def gradient(self) -> Params:
        return self._gradient

    def start_gradient(self) -> Params:
        return self._gradient


def _stored(state: State) -> State:
    """A state as it is read back from a file: in name order, without empty branches."""
    return tree.unflatten(dict(sorted(tree.flatten(state).items())))


def _same_state(a: State, b: State) -> bool:
    return _same(tree.flatten(a), tree.flatten(b))


def _same_part(a: Part, b: Part, like: Params) -> bool:
    return _same(_flat(a.coverage(like)), _flat(b.coverage(like)))


def _flat(params: Params) -> Payload:
    return {name: tensor.reshape(-1) for name, tensor in params.items()}


def check_solver(solver: Solver, server: Server | None = None) -> None:
    """The plan holds real samples, steps are pure, and what is remembered and said is what was declared.

    ``server`` is the one that it goes with, where it reads sections that not every server writes.
    """
    check_value(solver)
    found = bound(compose(Full(), solver, server=server).training)
    solver = found.solver
    for samples in (1, 2, 17, 64):
        with _named(solver, "plan"):
            plan = solver.plan(samples, KEY)
        assert all(0 < len(set(b.tolist())) == len(b) and 0 <= b.min() <= b.max() < samples for b in plan), (
            f"{solver!r} plans an empty batch, a sample twice in a batch, or one that is not there"
        )
        with _named(solver, "batches"):
            assert solver.batches(samples) >= 1, f"{solver!r} has no batch for {samples} samples"
    start = found.context.network.initial()
    before = tree.clone(start)
    once, twice = (_two_steps(found, start) for _ in range(2))
    assert _same(_flat(once), _flat(twice)), f"{solver!r} steps elsewhere the second time"
    assert _same(_flat(start), _flat(before)), f"{solver!r} changed the model it started from"


def _two_steps(found: BoundExchange, start: Params) -> Params:
    solver, trained = found.solver, found.context.trained

    def gradient(params: Params) -> tuple[Params, Params]:
        return {name: params[name] * 3 for name in trained}, {}

    with _named(solver, "init"):
        memory = found.solver_memory.init(found.context)
    with _named(solver, "hyperparams"):
        hyperparams = solver.hyperparams(CLOCK)
    sections = found.server.download(found.server.init(start), found.home(0)).sections
    with _named(solver, "begin"):
        carry = solver.begin(start, sections, memory, 2)
    for _ in range(2):
        with _named(solver, "step"):
            carry = solver.step(gradient, start, carry, hyperparams)
    info = _Info(Full(), start, {}, 0)
    info.carry = {**info.carry, **carry}
    with _named(solver, "end"):
        after, said = solver.end(carry, info)
    declared = {section.name for section in solver.sections}
    assert said.keys() == declared, f"{solver!r} declares the sections {sorted(declared)}, and writes {sorted(said)}"
    assert all(isinstance(leaf, Tensor) for leaf in tree.flatten(after).values()), f"{solver!r} must remember tensors"
    for delivered in (True, False):
        with _named(solver, "settle"):
            settled = found.solver_memory.settle(after, delivered)
        with _named(solver, "begin, with what it remembers,"):
            solver.begin(start, sections, settled, 2)
        with _named(solver, "skipped_state"):
            kept = found.solver_memory.skipped_state(settled)
        assert tree.flatten(kept).keys() == tree.flatten(after).keys(), (
            f"{solver!r}.skipped_state must have the form of what end returns: {sorted(tree.flatten(after))}"
        )
        with _named(solver, "deploy"):
            own = found.solver_memory.deploy(settled)
        assert own is None or own.keys() == start.keys(), f"{solver!r}.deploy gives a model with other tensors"
    params: Params = carry["params"]
    return params


def check_server(server: Server, solver: Solver | None = None) -> None:
    """Nobody's arrival changes nothing, folding leaves the state alone, and the state is a nest of tensors.

    ``solver`` is the one that it goes with, where it reads sections that not every solver writes.
    """
    check_value(server)
    found = bound(compose(Full(), solver or SGD(), server=server).training)
    server, params = found.server, found.context.network.initial()
    cohort = [0, 2, 3]
    with _named(server, "init"):
        state = server.init(params)
    before = tree.clone(state)
    with _named(server, "assign"):
        assigned = server.assign(state, cohort, CLOCK, KEY)
    assert assigned is None or assigned.keys() <= {*cohort}, f"{server!r} assigns models to clients that are not there"
    assigned = assigned or {}
    with _named(server, "download"):
        down = server.download(state, found.home(0))
    declared = {section.name for section in server.sections}
    assert down.sections.keys() == declared, (
        f"{server!r} declares {sorted(declared)}, and writes {sorted(down.sections)}"
    )
    with _named(server, "begin"):
        acc, nothing = server.begin(state, assigned), server.begin(state, assigned)
    with _named(server, "finish"):
        still = server.finish(state, nothing, CLOCK)
    models = server.download(still, found.home(0)).models
    assert all(_same(_flat(a), _flat(b)) for a, b in zip(models, down.models, strict=True)), (
        f"{server!r} moves the model though nothing arrived"
    )
    if found.measured is not None:
        with _named(server, "measure, of a round in which nothing arrived,"):
            Ledger().measure(found.measured.measure(still, nothing))
    for client in cohort:
        with _named(server, "fold"):
            acc = server.fold(acc, _arrival(found, client, params))
    with _named(server, "finish"):
        after = server.finish(state, acc, CLOCK)
    assert _same_state(state, before), f"{server!r} changed the state that it must only read"
    if found.measured is not None:
        with _named(server, "measure"):
            Ledger().measure(found.measured.measure(after, acc))
    assert all(isinstance(leaf, Tensor) for leaf in tree.flatten(after).values()), (
        f"{server!r}: the state must be a nest of tensors"
    )
    with _named(server, "download, of a state that was stored,"):
        (first, *_), _ = server.download(tree.unflatten(tree.flatten(after)), found.home(0))
    assert first.keys() == params.keys(), f"{server!r} sends a model with other tensors"


def _arrival(found: BoundExchange, client: int, params: Params) -> Arrival:
    """One client's change of one everywhere, with whatever its solver would say."""
    change = {name: torch.ones_like(tensor) for name, tensor in params.items()}
    trained = {name: torch.ones_like(params[name]) for name in found.context.trained}
    said = {section.name: trained if section.shape == "model" else 1.0 for section in found.solver.sections}
    layout = Layout.of(change)
    vector = layout.flatten(change)

    def add(acc: Tensor, weight: float) -> None:
        acc.add_(vector * weight)

    owner = found.home(client).owner
    whole = (client, Part(), layout, 10.0, add, said, params, owner)
    return Arrival(*whole, batches=3.0, to_sum=lambda: vector, from_sum=lambda mean: mean)


def check_sampler(sampler: Sampler) -> None:
    """Who is drawn is there, nobody is drawn twice, and the same is drawn again."""
    check_value(sampler)
    for there in ({client: 5 + client for client in range(12)}, {3: 1, 7: 20, 8: 4, 11: 2}):
        for count in (1, 3, len(there)):
            pool = Pool(12, there, count)
            for number in range(4):
                with _named(sampler, "propose"):
                    drawn, again = (sampler.propose(pool, CLOCK._replace(round=number), KEY) for _ in range(2))
                assert drawn == again, f"{sampler!r} draws others the second time"
                assert drawn == sorted(set(drawn)), f"{sampler!r} draws a client twice, or not in client order"
                assert {*drawn} <= there.keys(), f"{sampler!r} draws clients that are not there"
                if sampler.probe is None:
                    assert len(drawn) == min(count, len(there)), f"{sampler!r} draws {len(drawn)} clients, not {count}"
                    continue
                names = [section.name for section in sampler.probe.solver.sections]
                said = [{name: float(uniform(fold(KEY, client), 1)) for name in names} for client in drawn]
                heard = [Outcome(c, 0, 0, True, words) for c, words in zip(drawn, said, strict=True)]
                with _named(sampler, "choose"):
                    chosen = sampler.choose(heard, count)
                assert {*chosen} <= {*drawn}, f"{sampler!r} chooses clients that it did not propose"
                assert len(chosen) == min(count, len(there)), f"{sampler!r} chooses {len(chosen)} clients, not {count}"
                lost = heard[0]._replace(folded=False, sections={}, reason="no reply")
                with _named(sampler, "choose, where a candidate did not answer,"):
                    assert {*sampler.choose([lost, *heard[1:]], count)} <= {*drawn}


def check_channel(channel: Channel) -> None:
    """The same message meets the same fate, the same work costs the same, and costs are not negative."""
    with _named(channel, "fit"):
        fitted = channel.fit(5, KEY)
    for one in (channel, fitted):
        check_value(one)
        for number in range(20):
            at, flops = fold(KEY, number), Flops(done=2 * number, useful=number)
            with _named(one, "send"):
                receipt = one.send(1000, CLOCK, at)
            with _named(one, "work"):
                cost = one.work(flops, CLOCK, at)
            assert receipt == one.send(1000, CLOCK, at), f"{one!r} decides otherwise the second time"
            assert cost == one.work(flops, CLOCK, at), f"{one!r} charges otherwise for the same work"
            assert min(receipt.seconds, cost.seconds) >= 0, f"{one!r} takes negative time"
            assert min(receipt.joules, cost.joules) >= 0, f"{one!r} takes negative energy"


# Methods.


def tiny_task(clients: int = 5, dtype: torch.dtype = torch.float32) -> Task:
    """Three noisy classes in six dimensions over a few clients of unequal size: trains in milliseconds."""

    def samples(n: int, at: Key) -> tuple[Tensor, Tensor]:
        y = (uniform(fold(at, "y"), n) * 3).long()
        noise = uniform(fold(at, "x"), n * 6, dtype=torch.float64).view(n, 6) - 0.5
        return (noise + nn.functional.one_hot(y, 6)).to(dtype), y

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)

    train, test = samples(30 * clients, fold(KEY, "train")), samples(60, fold(KEY, "test"))
    return Task.of(model, train, test, clients=clients, split="dirichlet:1")


def check_method(method: Method, folder: Path, task: Task | None = None, rounds: int = 3) -> None:
    """A method is a value; the same seed gives the same bits, also across an interruption; another seed others."""
    check_value(method)
    task = task or tiny_task()
    whole = _run(method, task, rounds, 1, out=folder / "whole")
    twin = _run(method, task, rounds, 1)
    assert _final(whole) == _final(twin), f"{method!r} ends elsewhere with the same seed"
    assert _final(whole) != _final(_run(method, task, rounds, 2)), (
        f"{method!r} ends in the same place with another seed"
    )
    broken = folder / "broken"
    with contextlib.suppress(KeyboardInterrupt):
        _run(method, task, rounds, 1, out=broken, watch=_stop_after(rounds - 1))
    resumed = _run(method, task, rounds, 1, out=broken, resume=True)
    assert _final(resumed) == _final(whole), f"{method!r} ends elsewhere after an interruption"
    assert _newest(broken) == _newest(folder / "whole"), f"{method!r} leaves another checkpoint after an interruption"


def _run(method: Method, task: Task, rounds: int, seed: int, **more: Any) -> Result:
    return simulate(method, task, rounds=rounds, per_round=3, seed=seed, **more)


def _stop_after(rounds: int) -> Callable[[dict[str, Any]], None]:
    def watch(record: dict[str, Any]) -> None:
        if record["round"] == rounds:
            raise KeyboardInterrupt

    return watch


def _final(result: Result) -> tuple[Any, ...]:
    """Everything a run says but for how long it took and how much memory it had."""
    rounds = [{k: v for k, v in r.items() if k not in ("seconds", "memory_bytes")} for r in result.metrics]
    try:
        modules = [result.model]
    except RunError:  # clients choose among several
        modules = [result.client_model(client) for client in range(result.about["task"]["clients"])]
    return rounds, [{name: tensor.tolist() for name, tensor in m.state_dict().items()} for m in modules]


def _newest(folder: Path) -> dict[str, bytes]:
    newest = max((path for path in (folder / "checkpoints").iterdir()), key=lambda path: int(path.name))
    clients = sorted((folder / "clients").iterdir())
    return {path.name: path.read_bytes() for path in (newest / "server.safetensors", *clients)}
