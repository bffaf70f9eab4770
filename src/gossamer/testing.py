"""The contract that each kind of part keeps, as functions to call from a test.

    def test_my_codec():
        check_codec(MyCodec(bits=2))

Each raises ``AssertionError`` with what was expected. A part that passes works with every other part, over every
channel, in every engine.
"""

import contextlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gossamer import tree, wire
from gossamer.channels import Channel
from gossamer.codecs import Codec
from gossamer.engines import Result, simulate
from gossamer.errors import PayloadError
from gossamer.method import Method
from gossamer.random import Key, fold, key, uniform
from gossamer.servers import Arrival, Server
from gossamer.solvers import Solver
from gossamer.tasks import Task
from gossamer.types import Clock, Flops, Layout, Params, Part, Payload, State
from gossamer.views import View

KEY = key(20)
CLOCK = Clock(round=1, rounds=4, client=2)


def check_value(part: Any) -> None:
    """A part is a value: it prints its fields, compares, hashes and pickles."""
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
) -> None:
    """A codec is pure, keeps what it promises, crosses the wire unharmed, and decodes no payload but its own.

    A vector with an entry above ``largest`` may be refused, with the reason; any other must be encoded.
    """
    check_value(codec)
    for dtype in dtypes:
        for x in awkward_vectors(dtype):
            _check_round_trip(codec, x, largest)
        _check_refusals(codec, dtype)
        _check_memory(codec, dtype)
        _check_fold(codec, dtype)
    if codec.unbiased:
        _check_mean(codec, dtypes[-1])


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
    assert torch.isfinite(decoded).all(), f"{codec!r} decoded values that are not finite from {x}"
    assert torch.equal(decoded, codec.decode(sent, layout, KEY)), f"{codec!r}.decode gives another vector each time"
    if codec.exact and torch.cuda.is_available():
        _check_gpu(codec, x, payload, decoded)


def _own(codec: Codec, payload: Payload, layout: Layout) -> Tensor:
    try:
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


def _check_refusals(codec: Codec, dtype: torch.dtype) -> None:
    """A payload with an array missing is refused; one that was altered is refused or decodes to finite values."""
    x = _ordinary(dtype)
    layout = _layout(x)
    payload = codec.encode(x, layout, KEY)
    for name in payload:
        assert not _decodes(codec, {n: t for n, t in payload.items() if n != name}, layout), (
            f"{codec!r}.decode accepts a payload without {name!r}: read it with gossamer.wire.expect"
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
        decoded = codec.decode(payload, layout, KEY)
    except PayloadError:
        return False
    assert decoded.shape == (layout.size,), f"{codec!r} decoded {tuple(decoded.shape)}, expected {layout.size} entries"
    assert torch.isfinite(decoded).all(), (
        f"{codec!r} decoded values that are not finite from a payload not its own: check it with gossamer.wire.finite"
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
    state = codec.init(layout)
    for number, delivered in enumerate((True, False, True)):
        at = fold(KEY, number)
        payload, kept = codec.encode_with(x, layout, state, at)
        again, _ = codec.encode_with(x, layout, tree.unflatten(tree.flatten(state)) or state, at)
        assert _same(payload, again), f"{codec!r} encodes otherwise once its memory was stored and read back"
        assert codec.decode(_over_the_wire(payload), layout, at).shape == x.shape
        state = codec.settle(kept, delivered)
        assert all(isinstance(leaf, Tensor) for leaf in tree.flatten(state).values()), f"{codec!r} must keep tensors"


def _check_fold(codec: Codec, dtype: torch.dtype) -> None:
    """To fold a payload into a sum is to decode it, weigh it and add it, and so it is if the sum lies in pieces."""
    x = _ordinary(dtype)
    layout = _layout(x)
    payload = codec.encode(x, layout, KEY)
    acc = torch.ones_like(x)
    codec.fold(acc, payload, layout, KEY, 0.5)
    wanted = 1 + codec.decode(payload, layout, KEY) * 0.5
    assert torch.allclose(acc, wanted, rtol=1e-5, atol=1e-5), (
        f"{codec!r}.fold adds something else than half of what it decodes"
    )
    pieces = [torch.ones_like(part) for part in (x[:3], x[3:])]
    codec.adding(payload, layout, KEY, 0.5, acc)(pieces)
    assert torch.allclose(torch.cat(pieces), wanted, rtol=1e-5, atol=1e-5), (
        f"{codec!r}.adding adds something else than {codec!r}.fold"
    )


# Views, solvers, servers, channels.


def check_view(view: View, like: Params) -> None:
    """Server and client see the same part; what is taken and put back covers exactly what it says."""
    check_value(view)
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
    if view.personal:
        _check_personal(view, like)


def _check_personal(view: View, like: Params) -> None:
    """What a client makes of its part, the server makes of what it is told, round after round."""
    mine = view.start(like, CLOCK.client)
    assert _same_part(view.part(like, CLOCK, KEY, mine), view.part(like, CLOCK, KEY), like), (
        f"{view!r}: a client that remembers nothing must hold what it starts with"
    )
    for number in range(CLOCK.rounds):
        clock, at, seen = CLOCK._replace(round=number), fold(KEY, number), _Seen(view, like, mine, number)
        before = tree.clone(mine)
        (then, said), (twin, again) = (view.revise(mine, seen, clock, at) for _ in range(2))
        assert _same(said, again), f"{view!r}.revise says something else the second time"
        assert _same_state(then, twin), f"{view!r}.revise comes to another part the second time"
        assert _same_state(mine, before), f"{view!r}.revise changed the part that it must only read"
        for known in (mine, _stored(mine) or mine):
            followed = view.follow(known, _over_the_wire(said), like)
            assert _same_state(followed, then), f"{view!r}.follow comes to another part than revise"
        assert _same_part(view.part(like, clock, at, then), view.part(like, clock, at, _stored(then)), like), (
            f"{view!r} gives another part once it was stored and read back"
        )
        for altered in _altered(said):
            with contextlib.suppress(PayloadError):
                view.part(like, clock, at, view.follow(mine, _over_the_wire(altered), like)).layout(like)
        mine = then


class _Seen:
    """Made-up evidence: what a client holds, and random numbers."""

    def __init__(self, view: View, like: Params, mine: State, number: int) -> None:
        def noise(label: str) -> Params:
            return {
                name: (uniform(fold(KEY, label, number, name), t.numel(), dtype=torch.float64) - 0.5).to(t).view_as(t)
                for name, t in like.items()
            }

        part = view.part(like, CLOCK, KEY, mine)
        self.weights, self.notes = part.take(noise("weights")), {"early": part.take(noise("early"))}
        self._gradient = noise("gradient")

    def accuracy(self, params: Params) -> float:
        return 1.0

    def gradient(self) -> Params:
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


def check_solver(solver: Solver) -> None:
    """The plan holds real samples, and a step is pure."""
    check_value(solver)
    for samples in (1, 2, 17, 64):
        plan = solver.plan(samples, KEY)
        assert plan, f"{solver!r} plans no step for {samples} samples"
        assert all(0 < len(set(b.tolist())) == len(b) and 0 <= b.min() <= b.max() < samples for b in plan), (
            f"{solver!r} plans an empty batch, a sample twice in a batch, or one that is not there"
        )
    start = {"w": torch.tensor([1.0, -2.0])}
    once, twice = (_two_steps(solver, start) for _ in range(2))
    assert torch.equal(once["w"], twice["w"]), f"{solver!r} steps elsewhere the second time"
    assert torch.equal(start["w"], torch.tensor([1.0, -2.0])), f"{solver!r} changed the model it started from"


def _two_steps(solver: Solver, start: Params) -> Params:
    def gradient(params: Params) -> tuple[Params, Params]:
        return {"w": params["w"] * 3}, {}

    carry = solver.begin(start, {}, 2)
    for _ in range(2):
        carry = solver.step(gradient, start, carry, solver.now(CLOCK))
    assert all(isinstance(leaf, Tensor) for leaf in tree.flatten(solver.end(carry)).values())
    params: Params = carry["params"]
    return params


def check_server(server: Server, params: Params) -> None:
    """Nobody's arrival changes nothing, folding leaves the state alone, and the state is a nest of tensors."""
    check_value(server)
    before = {name: tensor.clone() for name, tensor in params.items()}
    state = server.init(params)
    still = server.finish(state, server.empty(state), CLOCK)
    assert _same(_flat(server.model(still)), _flat(before)), f"{server!r} moves the model though nothing arrived"
    change = {name: torch.ones_like(tensor) for name, tensor in params.items()}
    acc = server.empty(state)
    for client in range(3):
        acc = server.fold(acc, Arrival.of(client, Part(), change, 1.0))
    assert _same(_flat(server.model(state)), _flat(before)), f"{server!r}.fold changed the state it must only read"
    stored = tree.unflatten(tree.flatten(server.finish(state, acc, CLOCK)))
    assert server.model(stored).keys() == params.keys(), f"{server!r}: the state must be a nest of tensors"
    assert server.weigh(10, 3) > 0, f"{server!r} weighs a client with nothing"


def check_channel(channel: Channel) -> None:
    """The same message meets the same fate, the same work costs the same, and costs are not negative."""
    for one in (channel, channel.fit(5, KEY)):
        check_value(one)
        for number in range(20):
            at, flops = fold(KEY, number), Flops(done=2 * number, useful=number)
            receipt, cost = one.send(1000, CLOCK, at), one.work(flops, CLOCK, at)
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
    state: State = dict(result.module.state_dict())
    return rounds, {name: tensor.tolist() for name, tensor in state.items()}


def _newest(folder: Path) -> dict[str, bytes]:
    newest = max((path for path in (folder / "checkpoints").iterdir()), key=lambda path: int(path.name))
    clients = sorted((folder / "clients").iterdir())
    return {path.name: path.read_bytes() for path in (newest / "server.safetensors", *clients)}
