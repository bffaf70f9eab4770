"""Contract tests for parts and methods, as functions to call from a test.

    def test_my_codec():
        check_codec(MyCodec(bits=2))

Each function binds the part to a small network and checks the contract of its kind. It raises ``AssertionError`` with
the expected behaviour. An unexpected exception in the part is reported with the name of the method that raised it. A
part that passes works with every other part, over every channel and in every engine.
"""

import contextlib
import copy
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core import tree, wire
from gossamer.core.adapter import Adapter
from gossamer.core.bound import BoundExchange
from gossamer.core.channel import Channel
from gossamer.core.codec import Codec, Coding, rows_of
from gossamer.core.errors import ConfigError, PayloadError, RunError
from gossamer.core.exchange import Arrival, Outcome, Sections
from gossamer.core.method import Exchange, Method
from gossamer.core.random import Key, fold, fold_each, key, seeded, uniform
from gossamer.core.random import tensor as key_tensor
from gossamer.core.sampler import Pool, Sampler
from gossamer.core.secure import SecureAggregation
from gossamer.core.server import Server
from gossamer.core.solver import Gradient, Gradients, Move, Solver, StepKeys
from gossamer.core.types import Clock, Flops, Layout, Params, Part, Payload, State
from gossamer.core.view import CHANGE, PART, View
from gossamer.engines import simulate
from gossamer.engines.control import Callback
from gossamer.engines.metrics import Ledger
from gossamer.engines.result import Result
from gossamer.methods.composition import compose
from gossamer.parts.samplers.draws import Uniform
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.entries import Full
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task

KEY = key(20)
CLOCK = Clock(round=1, rounds=4, client=2)


@contextlib.contextmanager
def _named(part: object, member: str) -> Iterator[None]:
    """Turn an unexpected exception of a part into an ``AssertionError`` with the name of the called method."""
    try:
        yield
    except (AssertionError, PayloadError, ConfigError):
        raise
    except Exception as error:
        raise AssertionError(f"{part!r}.{member} crashes: {type(error).__name__}: {error}") from error


def bound(exchange: Exchange, task: Task | None = None, *, secure_noise: bool = False) -> BoundExchange:
    """Return the exchange bound to a task, by default ``tiny_task()``. All checks work with bound exchanges.

    With ``secure_noise``, parts draw the noise of differential privacy from the operating system.
    """
    objective = Objective(task or tiny_task(), "cpu", KEY, secure_noise=secure_noise)
    with _named(exchange, "bind"):
        return Method((exchange,), Uniform()).bind(objective).training


def check_value(part: Any) -> None:
    """Check that a part is a value: ``repr`` shows its fields, and it can be compared, hashed and pickled."""
    with _named(part, "__reduce__ (it must be picklable)"):
        twin = pickle.loads(pickle.dumps(part))
    assert twin == part, f"{part!r} is not equal to its copy: make it a frozen dataclass"
    assert hash(twin) == hash(part), f"{part!r} does not hash by value: make it a frozen dataclass"
    assert repr(twin) == repr(part), f"{part!r} does not show its fields: make it a frozen dataclass"
    assert " at 0x" not in repr(part), f"{part!r} shows a memory address: make it a frozen dataclass"


# Codecs.


def check_codec(
    codec: Codec,
    *,
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64),
    largest: float = 1e30,
    size: float = 1.0,
    server: Server | None = None,
    secure: SecureAggregation | None = None,
) -> None:
    """Check that a codec is deterministic and accurate, survives serialization, and refuses invalid payloads.

    Args:
        codec: the codec to check
        dtypes: data types of the vectors
        largest: vectors with an entry above this value may be refused with ``PayloadError``
        size: magnitude of the entries of an ordinary vector, for codecs with a fixed scale
        server: the server to pair it with, if the codec needs a specific server
        secure: secure aggregation, if the codec needs it
    """
    check_value(codec)
    codec = bound(replace(compose(Full(), SGD(), codec, server).training, secure=secure)).codec
    for dtype in dtypes:
        for x in awkward_vectors(dtype):
            _check_round_trip(codec, x, largest)
        _check_refusals(codec, dtype)
        _check_memory(codec, dtype)
        _check_fold(codec, dtype)
        _check_rows(codec, dtype)
    if codec.unbiased:
        _check_mean(codec, dtypes[-1])
    else:
        _check_direction(codec, dtypes[-1], size)


def awkward_vectors(dtype: torch.dtype = torch.float32) -> Iterator[Tensor]:
    """Yield edge cases for codecs: tiny, huge, constant, sparse, badly scaled and ordinary vectors."""
    for n in (1, 2, 7, 64, 1000):
        noise = uniform(fold(KEY, n), n, dtype=torch.float64) * 2 - 1
        yield from (vector.to(dtype) for vector in (noise, torch.zeros(n), torch.ones(n), noise * 1e-30, noise * 1e15))
        yield torch.where(noise > 0.8, noise, 0).to(dtype)
        yield torch.cat([noise[:1] * 1e15, noise[1:] * 1e-15]).to(dtype)
        yield (noise * torch.finfo(dtype).max).to(dtype)


def _layout(x: Tensor) -> Layout:
    """Return a layout with two tensors, or with one for a very short vector."""
    first = len(x) // 3
    pieces = {"a": x[:first], "b": x[first:].view(-1, 1)} if first else {"a": x}
    return Layout.of(pieces)


def _ordinary(dtype: torch.dtype) -> Tensor:
    return (uniform(KEY, 100, dtype=torch.float64) - 0.5).to(dtype)


def _check_round_trip(codec: Codec, x: Tensor, largest: float) -> None:
    ctx, before = Coding(_layout(x), KEY), x.clone()
    try:
        with _named(codec, "encode"):
            payload = codec.encode(x, ctx)
    except PayloadError as error:
        if x.abs().max() > largest:
            return
        raise AssertionError(f"{codec!r} refuses a vector that it must encode: {error}") from error
    assert torch.equal(x, before), f"{codec!r}.encode changed its input"
    again = codec.encode(x, ctx)
    sent = _over_the_wire(payload)
    assert _same(sent, payload), f"{codec!r}: serialization changed the payload"
    assert _same(again, payload), f"{codec!r}.encode returns a different payload for the same key"
    strided = torch.stack([x, x + 1], 1)[:, 0]
    assert _same(codec.encode(strided, ctx), payload), f"{codec!r} encodes a strided vector differently"
    decoded = _own(codec, sent, ctx)
    assert decoded.shape == x.shape, f"{codec!r} decoded {tuple(decoded.shape)}, expected {tuple(x.shape)}"
    assert decoded.dtype == x.dtype, f"{codec!r} decoded {decoded.dtype} from a vector of {x.dtype}"
    assert torch.isfinite(decoded).all(), f"{codec!r} decoded non-finite values from {x}"
    assert torch.equal(decoded, codec.decode(sent, ctx)), f"{codec!r}.decode is not deterministic"
    if codec.exact and torch.cuda.is_available():
        _check_gpu(codec, x, payload, decoded)


def _own(codec: Codec, payload: Payload, ctx: Coding) -> Tensor:
    try:
        with _named(codec, "decode"):
            return codec.decode(payload, ctx)
    except PayloadError as error:
        raise AssertionError(f"{codec!r}.decode refuses a payload of encode: {error}") from error


def _over_the_wire(payload: Payload) -> Payload:
    return wire.unpack(wire.pack(wire.Message("up", 0, 0, 0, 1.0, payload))).payload


def _same(a: Payload, b: Payload) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def _check_gpu(codec: Codec, x: Tensor, payload: Payload, decoded: Tensor) -> None:
    """Check that bytes and decoded values do not depend on the device."""
    ctx = Coding(_layout(x), KEY)
    there = codec.encode(x.cuda(), ctx)
    assert _same(_over_the_wire(there), payload), (
        f"{codec!r} encodes differently on a GPU: fix it, or set exact = False"
    )
    back = codec.decode({name: tensor.cuda() for name, tensor in payload.items()}, ctx)
    assert torch.equal(back.cpu(), decoded), f"{codec!r} decodes differently on a GPU: fix it, or set exact = False"


def _check_mean(codec: Codec, dtype: torch.dtype) -> None:
    """Check that the mean of decoded vectors over many keys is the encoded vector, within its standard error.

    The error is measured twice: as the root mean square over all entries, and along the vector, where a wrong scale is
    most visible.
    """
    x = uniform(fold(KEY, "mean"), 48, dtype=torch.float64).to(dtype) * 2 - 1
    each = [Coding(_layout(x), fold(KEY, draw)) for draw in range(300)]
    decoded = torch.stack([codec.decode(codec.encode(x, ctx), ctx) for ctx in each]).double()
    for errors in (decoded - x.double(), (decoded - x.double()) @ x.double().view(-1, 1) / x.double().square().sum()):
        off = errors.mean(0).square().mean().sqrt()
        scatter = (errors.var(0).mean() / len(each)).sqrt()
        assert off <= 4 * scatter + 1e-6, (
            f"{codec!r} declares itself unbiased, but its bias is {off:.2g}, with a standard error of {scatter:.2g}"
        )


def _check_direction(codec: Codec, dtype: torch.dtype, size: float) -> None:
    """Check that decoded vectors correlate with the encoded ones, and that the codec keeps the length of vectors.

    A biased codec may lose much of a vector. On average over many vectors, the rest must still have a positive cosine
    with them. The length is the norm when a decoded vector is encoded again, or that along the encoded vector: random
    codecs keep the latter.
    """
    cosines, ratios, lengths = [], [], []
    for draw in range(48):
        at = fold(KEY, "direction", draw)
        x = (size * (uniform(fold(at, "x"), 257, dtype=torch.float64) * 2 - 1)).to(dtype)
        ctx = Coding(_layout(x), at)
        once = codec.decode(codec.encode(x, ctx), ctx)
        twice = codec.decode(codec.encode(once, ctx), ctx)
        cosines.append(float(once @ x / (once.norm() * x.norm()).clamp(min=1e-30)))
        ratios.append(float(twice.norm() / once.norm().clamp(min=1e-30)))
        lengths.append(float(once @ x / (x @ x)))
    cosine, ratio = sum(cosines) / len(cosines), sorted(ratios)[len(ratios) // 2]
    length = sum(lengths) / len(lengths)
    assert cosine > 0.05, f"{codec!r} decodes vectors in another direction than the encoded ones: cosine {cosine:.3f}"
    assert 0.8 < ratio < 1.25 or 0.8 < length < 1.25, (
        f"{codec!r} changes the norm of vectors: encoding and decoding a decoded vector again multiplies its norm by "
        f"{ratio:.2f}, and the length along the encoded vector is {length:.2f} times its norm"
    )


def _check_refusals(codec: Codec, dtype: torch.dtype) -> None:
    """Check that incomplete payloads are refused, and that altered ones are refused or decode to finite values."""
    x = _ordinary(dtype)
    ctx = Coding(_layout(x), KEY)
    payload = codec.encode(x, ctx)
    for name in payload:
        assert not _decodes(codec, {n: t for n, t in payload.items() if n != name}, ctx), (
            f"{codec!r}.decode accepts a payload without {name!r}: read it with gossamer.core.wire.expect"
        )
    for altered in _altered(payload):
        _decodes(codec, _over_the_wire(altered), ctx)
    for bad in (torch.nan, torch.inf, -torch.inf):
        poisoned = x.clone()
        poisoned[3] = bad
        with contextlib.suppress(PayloadError):
            _decodes(codec, codec.encode(poisoned, ctx), ctx)


def _decodes(codec: Codec, payload: Payload, ctx: Coding) -> bool:
    try:
        with _named(codec, "decode"):
            decoded = codec.decode(payload, ctx)
    except PayloadError:
        return False
    assert decoded.shape == (ctx.layout.size,), (
        f"{codec!r} decoded {tuple(decoded.shape)}, expected {ctx.layout.size} entries"
    )
    assert torch.isfinite(decoded).all(), (
        f"{codec!r} decoded non-finite values from an altered payload: check them with gossamer.core.wire.finite"
    )
    return True


def _altered(payload: Payload) -> Iterator[Payload]:
    """Yield payloads with one array truncated, extended, of another type, with flipped bits or with random bytes."""
    for name, tensor in payload.items():
        for other in (tensor[:-1], tensor[:1], tensor[:0], torch.cat([tensor, tensor]), tensor.to(torch.int64)):
            yield {**payload, name: other}
        raw = tensor.contiguous().view(torch.uint8)
        for other in (*_flipped(raw), torch.zeros_like(raw), torch.full_like(raw, 0xFF), *_garbage(raw)):
            yield {**payload, name: other.view(tensor.dtype)}


def _flipped(raw: Tensor) -> Iterator[Tensor]:
    """Yield the bytes with all bits, or with one bit, of some bytes flipped."""
    for number, index in enumerate(range(0, len(raw), max(1, len(raw) // 16))):
        for bits in (0xFF, 1 << number % 8, 0x80 >> number % 8):
            flipped = raw.clone()
            flipped[index] ^= bits
            yield flipped


def _garbage(raw: Tensor) -> Iterator[Tensor]:
    for draw in range(16):
        yield (uniform(fold(KEY, "garbage", draw), len(raw)) * 256).to(torch.uint8)


def _check_memory(codec: Codec, dtype: torch.dtype) -> None:
    """Check that a codec's client state is a nested dict of tensors and can be stored between rounds."""
    x = _ordinary(dtype)
    layout = _layout(x)
    memory = codec.init(layout)
    for number, delivered in enumerate((True, False, True)):
        ctx = Coding(layout, fold(KEY, number), client=number)
        with _named(codec, "encode_with"):
            payload, kept = codec.encode_with(x, memory, ctx)
            again, _ = codec.encode_with(x, tree.unflatten(tree.flatten(memory)) or memory, ctx)
        assert _same(payload, again), f"{codec!r} encodes differently after its state was stored and read back"
        assert codec.decode(_over_the_wire(payload), Coding(layout, ctx.key)).shape == x.shape
        with _named(codec, "settle"):
            memory = codec.settle(kept, delivered)
        with _named(codec, "skipped"):
            skipped = codec.skipped(memory)
        _check_tensors(codec, memory)
        assert tree.flatten(skipped).keys() == tree.flatten(kept).keys(), (
            f"{codec!r}.skipped must have the keys of the state that encode_with returns: {sorted(tree.flatten(kept))}"
        )


def _check_tensors(part: object, state: State) -> None:
    leaves = tree.flatten(state).values()
    assert all(isinstance(leaf, Tensor) for leaf in leaves), f"{part!r}: the state must consist of tensors"


def _check_fold(codec: Codec, dtype: torch.dtype) -> None:
    """Check that ``fold`` and ``fold_into`` add the decoded vector times its weight, also to a sum in pieces."""
    x = _ordinary(dtype)
    ctx = Coding(_layout(x), KEY)
    payload = codec.encode(x, ctx)
    acc = torch.ones_like(x)
    with _named(codec, "fold"):
        codec.fold(acc, payload, ctx, 0.5)
    wanted = 1 + codec.decode(payload, ctx) * 0.5
    assert torch.allclose(acc, wanted, rtol=1e-5, atol=1e-5), (
        f"{codec!r}.fold does not add the decoded vector times the weight 0.5"
    )
    acc = torch.ones_like(x)
    codec.fold(acc, payload, ctx, 1 / 3)
    assert not codec.folds_decoded or torch.equal(acc, 1 + codec.decode(payload, ctx) * (1 / 3)), (
        f"{codec!r}.fold rounds in another way than the sum with the decoded vector: folds_decoded must be False"
    )
    pieces = [torch.ones_like(part) for part in (x[:3], x[3:])]
    with _named(codec, "fold_into"):
        codec.fold_into(payload, ctx, 0.5, acc)(pieces)
    assert torch.allclose(torch.cat(pieces), wanted, rtol=1e-5, atol=1e-5), (
        f"{codec!r}.fold_into does not add the same as fold"
    )


def _check_rows(codec: Codec, dtype: torch.dtype) -> None:
    """Check that three rows at once have the arrays and values of the three rows one by one."""
    rows = torch.stack([_ordinary(dtype), _ordinary(dtype).flip(0), torch.zeros_like(_ordinary(dtype))])
    own, shared, clients = fold_each(KEY, "row", range(3)), fold(KEY, "row"), (4, 0, 2)
    group = Coding(_layout(rows[0]), shared if codec.common else own, client=clients)
    with _named(codec, "encode, with three rows at once,"):
        found = codec.encode(rows, group)
        made = rows_of(found)
    each = [codec.encode(row, group.row(number)) for number, row in enumerate(rows)]
    assert all(map(_same, made or [{}] * len(rows), each)), (
        f"{codec!r}.encode gives other arrays for three rows at once than for each of them: write it over the last "
        "dimension, or use gossamer.core.codec.each_row"
    )
    known = replace(group, client=None)
    for member, method in (("decode", codec.decode), ("to_sum", codec.to_sum)):
        with _named(codec, f"{member}, with three rows at once,"):
            values = method(found, known)
        alone = torch.stack([method(sent, known.row(number)) for number, sent in enumerate(each)])
        assert torch.equal(values, alone), f"{codec!r}.{member} gives other values for three rows at once than for each"
    states = []
    for number, row in enumerate(rows):
        _, kept = codec.encode_with(row, codec.init(group.layout), group.row(number))
        states.append(codec.settle(kept, delivered=number == 1))
    memory = _stacked(states)
    with _named(codec, "encode_with, with three rows at once,"):
        found, after = codec.encode_with(rows, memory, group)
    again = [codec.encode_with(row, states[number], group.row(number)) for number, row in enumerate(rows)]
    made = rows_of(found) or [{}] * len(rows)
    assert all(_same(one, payload) for one, (payload, _) in zip(made, again, strict=True)), (
        f"{codec!r}.encode_with gives other arrays for three rows at once than for each"
    )
    assert _same_state(after, _stacked([kept for _, kept in again])), (
        f"{codec!r}.encode_with gives another state for three rows at once than for each"
    )


def _stacked(states: Sequence[State]) -> State:
    """Return the states of a group: their tensors as rows."""
    flat = [tree.flatten(state) for state in states]
    return tree.unflatten({name: torch.stack([each[name] for each in flat]) for name in flat[0]})


# Views, solvers, servers, channels.


def check_view(view: View, task: Task | None = None) -> None:
    """Check that a view is deterministic and that its parts are consistent: taken, put back, spread and sent."""
    check_value(view)
    found = bound(compose(view, SGD()).training, task)
    view, like = found.view, found.context.network.initial()
    with _named(view, "part"):
        part, twin = view.part(like, CLOCK, KEY), view.part(like, CLOCK, KEY)
    held = part.take(like)
    assert _same(_flat(held), _flat(twin.take(like))), f"{view!r} returns a different part for the same clock and key"
    assert held.keys() == like.keys(), f"{view!r} must hold a part of every tensor"
    ones = {name: torch.ones_like(tensor) for name, tensor in held.items()}
    cover = part.coverage(like)
    for name, tensor in part.spread(ones, like).items():
        assert tensor.shape == like[name].shape, f"{view!r} spreads {name} to {tuple(tensor.shape)}"
        assert torch.equal(tensor, cover[name]), f"{view!r} spreads {name} to other entries than it covers"
        assert ((cover[name] == 0) | (cover[name] == 1)).all(), f"{view!r}: the mask of {name} must be 0 or 1"
    assert _same(_flat(part.put(like, held)), _flat(like)), f"{view!r} puts back other values than it took"
    layout = part.layout(like)
    assert _same(_flat(layout.unflatten(layout.flatten(held))), _flat(held)), f"{view!r}: flattening loses entries"
    with _named(view, "sent"):
        sent = view.sent(like, CLOCK, KEY)
        other = view.sent(like, CLOCK._replace(client=CLOCK.client + 1), fold(KEY, "other"))
    assert sent.whole or _same_part(sent, part, like), f"{view!r}.sent must return the whole model or the client's part"
    assert not view.common or _same_part(sent, other, like), f"{view!r} is not common: clients receive different parts"
    if view.predictable:
        blank = view.part({name: torch.zeros_like(tensor) for name, tensor in like.items()}, CLOCK, KEY)
        assert _same_part(blank, part, like), f"{view!r} is not predictable: its part depends on the model's values"
    if view.section == PART and not part.whole:
        _check_described_view(view, part, like)
    if view.section == CHANGE:
        _check_view_memory(view, like)


def _check_described_view(view: View, part: Part, like: Params) -> None:
    """Check that ``restore`` on the client gives the part that the server described, and survives altered arrays."""
    outline = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
    with _named(view, "describe"):
        payload = view.describe(part, like)
    with _named(view, "restore"):
        restored = view.restore(_over_the_wire(payload), outline)
    assert _same_part(restored, part, like), f"{view!r}.restore returns another part than was described"
    for altered in _altered(payload):
        with contextlib.suppress(PayloadError), _named(view, "restore"):
            view.restore(_over_the_wire(altered), outline).layout(like)


def _check_view_memory(view: View, like: Params) -> None:
    """Check that ``follow`` on the server gives the same state as ``revise`` on the client, round after round."""
    with _named(view, "first"):
        memory = view.first(CLOCK.client)
    assert _same_part(view.part(like, CLOCK, KEY, memory), view.part(like, CLOCK, KEY), like), (
        f"{view!r}: without a state, part must use the state of first"
    )
    for number in range(CLOCK.rounds):
        clock, at, info = CLOCK._replace(round=number), fold(KEY, number), _Info(view, like, memory, number)
        before = tree.clone(memory)
        with _named(view, "revise"):
            (then, payload), (twin, again) = (view.revise(memory, info, clock, at) for _ in range(2))
        assert _same(payload, again), f"{view!r}.revise is not deterministic: the second call returns another payload"
        assert _same_state(then, twin), f"{view!r}.revise is not deterministic: the second call returns another state"
        assert _same_state(memory, before), f"{view!r}.revise changed the state, which is read-only"
        for known in (memory, _stored(memory) or memory):
            with _named(view, "follow"):
                followed = view.follow(known, _over_the_wire(payload), like)
            assert _same_state(followed, then), f"{view!r}.follow returns another state than revise"
        assert _same_part(view.part(like, clock, at, then), view.part(like, clock, at, _stored(then)), like), (
            f"{view!r} returns another part after its state was stored and read back"
        )
        for altered in _altered(payload):
            with contextlib.suppress(PayloadError), _named(view, "follow"):
                view.part(like, clock, at, view.follow(memory, _over_the_wire(altered), like)).layout(like)
        with _named(view, "measure"):
            view.measure({0: memory}, {0: then}, like)
        memory = then


class _Info:
    """Artificial result of local training, with random weights and gradients."""

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
    """Return a state as it is read back from a file: in name order, without empty branches."""
    return tree.unflatten(dict(sorted(tree.flatten(state).items())))


def _same_state(a: State, b: State) -> bool:
    return _same(tree.flatten(a), tree.flatten(b))


def _same_part(a: Part, b: Part, like: Params) -> bool:
    return _same(_flat(a.coverage(like)), _flat(b.coverage(like)))


def _flat(params: Params) -> Payload:
    return {name: tensor.reshape(-1) for name, tensor in params.items()}


def check_solver(
    solver: Solver, server: Server | None = None, codec: Codec | None = None, *, secure_noise: bool = False
) -> None:
    """Check that a solver plans valid batches, steps deterministically, and writes its declared state and sections.

    Args:
        solver: the solver to check
        server: the server to pair it with, if the solver reads sections of a specific server
        codec: the codec to pair it with, if the server needs a specific codec
        secure_noise: whether noise comes from the operating system; what it gives is then not compared
    """
    check_value(solver)
    found = bound(compose(Full(), solver, codec, server).training, secure_noise=secure_noise)
    solver = found.solver
    for samples in (1, 2, 17, 64):
        with _named(solver, "plan"):
            plan = solver.plan(samples, KEY)
        assert all(0 < len(set(b.tolist())) == len(b) and 0 <= b.min() <= b.max() < samples for b in plan), (
            f"{solver!r} plans an empty batch, a sample twice in a batch, or a sample index out of range"
        )
        with _named(solver, "batches"):
            assert solver.batches(samples) >= 1, f"{solver!r}.batches must be at least 1 for {samples} samples"
    start = solver.layout.flatten(found.context.network.initial())
    before = start.clone()
    once, twice = (_two_steps(found, start) for _ in range(2))
    assert torch.equal(once, twice), f"{solver!r}.step is not deterministic"
    assert torch.equal(start, before), f"{solver!r} changed the received model, which is read-only"
    if solver.uses != "losses":
        rows = torch.stack([start, 2 * start])  # [2, n]
        with _named(solver, "step, of the rows of a group,"):
            found_rows = _walked(found, rows, torch.as_tensor)["params"]
        apart = torch.stack([_walked(found, row, torch.as_tensor)["params"] for row in rows])
        alike = found_rows.shape == rows.shape and torch.allclose(found_rows, apart, rtol=1e-5, atol=1e-6)
        assert alike, (
            f"{solver!r} must work over the last dimension: the rows of a group move otherwise than its clients alone"
        )
    if solver.uses == "samples":
        _check_per_sample(solver, start)


def _check_per_sample(solver: Solver, grads: Tensor) -> None:
    """Check that a solver makes a gradient of the same kind, and that rows that are not drawn are few."""
    for samples in (1, 2, 17, 64):
        with _named(solver, "draw"):
            drawn = solver.draw(samples, KEY)
        assert all(0 <= each.drawn <= len(each.rows) for each in drawn), f"{solver!r} draws more samples than rows"
        assert 0 < solver.expected(samples) <= solver.rows(samples) <= samples, (
            f"{solver!r}: the expected size of a batch, its rows and the {samples} samples must not decrease"
        )
    with _named(solver, "weight"):
        weight = solver.weight(torch.stack([grads, 2 * grads]))
    assert weight.shape == (2,), f"{solver!r}.weight must be one number per row, got shape {tuple(weight.shape)} for 2"
    total, step = grads * weight[0], torch.zeros((), dtype=torch.int64)
    with _named(solver, "release"):
        once, twice = (solver.release(total, torch.tensor(2.0), key_tensor(KEY), step) for _ in range(2))
    assert solver.eager or torch.equal(once, twice), f"{solver!r}.release is not deterministic"
    assert (once.shape, once.dtype) == (total.shape, total.dtype), (
        f"{solver!r}.release must keep the shape and the type of the gradient"
    )


class _Slope(Gradient):
    """The gradient of a quadratic loss."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver

    def __call__(self, params: Tensor) -> Gradients:
        return self.solver.where_trained(params * 3, 0.0), params


class _Bowl:
    """The quadratic loss."""

    def __init__(self, found: BoundExchange, step: int) -> None:
        self.layout, self.trained = found.solver.layout, found.context.trained
        self.keys = StepKeys(key_tensor(KEY), key_tensor(fold(KEY, "own")), torch.tensor(step))

    def __call__(self, params: Tensor, move: Move | None = None) -> Tensor:
        held = self.layout.unflatten(params)
        at = [move(name, held[name]) if move else held[name] for name in self.trained]
        return torch.stack([1.5 * tensor.square().sum() for tensor in at]).sum()


def _walked(found: BoundExchange, start: Tensor, number: Callable[[float], Any] = float) -> State:
    """Return the carry after two steps of a client, or of the rows of a group; ``number`` makes hyperparameters."""
    solver, rows = found.solver, start.shape[:-1]

    def repeated(nest: State) -> State:
        return {
            name: repeated(value) if isinstance(value, dict) else value.expand(*rows, *value.shape)
            for name, value in nest.items()
        }

    with _named(solver, "init"):
        memory = solver.init(found.context)
    assert solver.stateful or not memory, f"{solver!r}.init returns client state: declare stateful = True"
    with _named(solver, "hyperparams"):
        hyperparams = {name: number(value) for name, value in solver.hyperparams(CLOCK).items()}
    with _named(solver, "begin"):
        carry = solver.begin(start, _sections(found), repeated(memory), 2)
    span = solver.span
    for index in range(2):
        given = _Bowl(found, index) if solver.uses == "losses" else _Slope(solver)
        with _named(solver, "step"):
            carry = solver.step(given, start, carry, hyperparams)
        assert span is None or carry["scalars"].shape == (span.size,), f"{solver!r} must carry {span.size} scalars"
    return carry


def _sections(found: BoundExchange) -> Sections:
    """Return the sections of the server before the first round, as the solver reads them."""
    state = found.server.init(found.context.network.initial())
    return found.solver_sections(found.server.download(state, found.home(0)).sections, found.solver)


def _two_steps(found: BoundExchange, start: Tensor) -> Tensor:
    solver, carry = found.solver, _walked(found, start)
    assert carry["params"].shape == start.shape, f"{solver!r}.step must keep the shape of params"
    info = _Info(Full(), solver.layout.unflatten(start), {}, 0)
    with _named(solver, "end"):
        after, written = solver.end(carry, info)
    assert solver.stateful or not after, f"{solver!r}.end returns client state: declare stateful = True"
    declared = {section.name for section in solver.sections}
    assert written.keys() == declared, (
        f"{solver!r} declares the sections {sorted(declared)}, but writes {sorted(written)}"
    )
    _check_tensors(solver, after)
    for delivered in (True, False):
        with _named(solver, "settle"):
            settled = solver.settle(after, delivered)
        with _named(solver, "begin, with the state of an earlier round,"):
            solver.begin(start, _sections(found), settled, 2)
        with _named(solver, "skipped"):
            kept = solver.skipped(settled)
        assert tree.flatten(kept).keys() == tree.flatten(after).keys(), (
            f"{solver!r}.skipped must have the keys of the state that end returns: {sorted(tree.flatten(after))}"
        )
        with _named(solver, "deploy"):
            own = solver.deploy(settled)
        assert own is None or own.shape == start.shape, f"{solver!r}.deploy must return all parameters of the model"
    params: Tensor = carry["params"]
    return params


def check_server(
    server: Server,
    solver: Solver | None = None,
    codec: Codec | None = None,
    task: Task | None = None,
    *,
    secure_noise: bool = False,
) -> None:
    """Check that a server keeps the model without arrivals, never changes its input state, and returns tensors.

    A ``private`` server must add noise to the model instead, with or without arrivals.

    Args:
        server: the server to check
        solver: the solver to pair it with, if the server reads sections of a specific solver
        codec: the codec to pair it with, if the server needs a specific codec
        task: the task, if the server needs a specific network; by default ``tiny_task()``
        secure_noise: whether noise comes from the operating system
    """
    check_value(server)
    found = bound(compose(Full(), solver or SGD(), codec, server).training, task, secure_noise=secure_noise)
    server, params = found.server, found.context.network.initial()
    cohort = [0, 2, 3]
    with _named(server, "init"):
        state = server.init(params)
    before = tree.clone(state)
    with _named(server, "assign"):
        assigned = server.assign(state, cohort, CLOCK, KEY)
    assert assigned is None or assigned.keys() <= {*cohort}, f"{server!r} assigns models to clients outside the cohort"
    assigned = assigned or {}
    with _named(server, "download"):
        down = server.download(state, found.home(0))
    declared = {section.name for section in server.sections}
    assert down.sections.keys() == declared, (
        f"{server!r} declares the sections {sorted(declared)}, but writes {sorted(down.sections)}"
    )
    with _named(server, "begin"):
        acc, nothing = server.begin(state, assigned), server.begin(state, assigned)
    with _named(server, "finish"):
        still = server.finish(state, nothing, CLOCK)
    models = server.download(still, found.home(0)).models
    kept, noisy = all(map(_same, map(_flat, models), map(_flat, down.models))), server.private
    assert kept or noisy, f"{server!r} changes the model without arrivals"
    assert not (kept and noisy), f"{server!r} adds no noise without arrivals, which reveals that there are none"
    with _named(server, "measure, of a round without arrivals,"):
        Ledger().measure(server.measure(still, nothing))
    for client in cohort:
        with _named(server, "fold"):
            acc = server.fold(acc, _arrival(found, client, params))
    with _named(server, "finish"):
        after = server.finish(state, acc, CLOCK)
    assert _same_state(state, before), f"{server!r} changed the state, which is read-only"
    with _named(server, "measure"):
        Ledger().measure(server.measure(after, acc))
    _check_tensors(server, after)
    with _named(server, "download, of a stored state,"):
        (first, *_), _ = server.download(tree.unflatten(tree.flatten(after)), found.home(0))
    assert first.keys() == params.keys(), f"{server!r}.download must return all tensors of the model"


def _arrival(found: BoundExchange, client: int, params: Params) -> Arrival:
    """Return an arrival with an update of all ones and the sections of the solver."""
    change = {name: torch.ones_like(tensor) for name, tensor in params.items()}
    trained = {name: torch.ones_like(params[name]) for name in found.context.trained}
    sections = {section.name: trained if section.shape == "model" else 1.0 for section in found.solver.sections}
    layout = Layout.of(change)
    vector = layout.flatten(change)

    def add(acc: Tensor, weight: float) -> None:
        acc.add_(vector * weight)

    def from_sum(mean: Tensor) -> Tensor:
        return found.codec.from_sum(mean, Coding(layout, KEY)) if found.carried else mean

    coded = vector.new_ones(found.codec.sum_size(layout)) if found.carried else vector
    owner = found.home(client).owner
    whole = (client, Part(), layout, 10.0, add, sections, params, owner)
    return Arrival(*whole, batches=3.0, to_sum=lambda: coded, from_sum=from_sum)


def check_sampler(sampler: Sampler) -> None:
    """Check that a sampler is deterministic and draws the required number of distinct, available clients."""
    check_value(sampler)
    for there in ({client: 5 + client for client in range(12)}, {3: 1, 7: 20, 8: 4, 11: 2}):
        for count in (1, 3, len(there)):
            pool = Pool(12, there, count)
            for number in range(4):
                with _named(sampler, "propose"):
                    drawn, again = (sampler.propose(pool, CLOCK._replace(round=number), KEY) for _ in range(2))
                assert drawn == again, f"{sampler!r}.propose is not deterministic"
                assert drawn == sorted(set(drawn)), f"{sampler!r} draws a client twice, or not in client order"
                assert {*drawn} <= there.keys(), f"{sampler!r} draws clients that are not available"
                if sampler.scheme == "poisson":
                    continue
                if sampler.probe is None:
                    assert len(drawn) == min(count, len(there)), f"{sampler!r} draws {len(drawn)} clients, not {count}"
                    continue
                names = [section.name for section in sampler.probe.solver.sections]
                sections = [{name: float(uniform(fold(KEY, client), 1)) for name in names} for client in drawn]
                outcomes = [Outcome(c, 0, 0, True, sent) for c, sent in zip(drawn, sections, strict=True)]
                with _named(sampler, "choose"):
                    chosen = sampler.choose(outcomes, count)
                assert {*chosen} <= {*drawn}, f"{sampler!r} chooses clients that it did not propose"
                assert len(chosen) == min(count, len(there)), f"{sampler!r} chooses {len(chosen)} clients, not {count}"
                lost = outcomes[0]._replace(folded=False, sections={}, reason="no reply")
                with _named(sampler, "choose, with a client that did not reply,"):
                    assert {*sampler.choose([lost, *outcomes[1:]], count)} <= {*drawn}


def check_adapter(adapter: Adapter, module: nn.Module | None = None, x: Tensor | None = None) -> None:
    """Check that an adapter freezes some tensors, changes nothing at the start, and can be merged into the network.

    Args:
        adapter: the adapter to check
        module: a network that it can adapt; by default that of ``tiny_task()``
        x: a batch of its inputs
    """
    check_value(adapter)
    with seeded(KEY):
        plain = (module or tiny_task().model()).eval()
        x = torch.randn(4, 6) if x is None else x
    adapted, twin = (_adapted(adapter, plain) for _ in range(2))
    assert _same(adapted.state_dict(), twin.state_dict()), f"{adapter!r}.adapt must draw from torch's generator alone"
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    assert trained, f"{adapter!r} trains nothing"
    assert len(trained) < len(list(adapted.parameters())), f"{adapter!r} freezes nothing"
    torch.testing.assert_close(adapted(x), plain(x), msg=f"{adapter!r} changes what the network computes at the start")
    with torch.no_grad(), seeded(KEY):
        for parameter in trained:
            parameter.add_(torch.randn_like(parameter), alpha=0.125)
    wanted, tensors = adapted(x), list(plain.state_dict())
    with _named(adapter, "merge"):
        merged = adapter.merge(adapted)
    names = list(merged.state_dict())
    assert names == tensors, f"{adapter!r}.merge must return a network with the tensors {tensors}, got {names}"
    torch.testing.assert_close(merged(x), wanted, msg=f"{adapter!r}.merge changes what the network computes")


def _adapted(adapter: Adapter, plain: nn.Module) -> nn.Module:
    """Return an adapted copy of a network."""
    with _named(adapter, "adapt"), seeded(KEY):
        return adapter.adapt(copy.deepcopy(plain)).eval()


def check_channel(channel: Channel) -> None:
    """Check that a channel is deterministic, and that its times and energies are not negative."""
    with _named(channel, "fit"):
        fitted = channel.fit(5, KEY)
    for one in (channel, fitted):
        check_value(one)
        for number in range(20):
            at, flops = fold(KEY, number), Flops(done=2 * number, useful=number)
            with _named(one, "send"):
                receipt = one.send(1000, CLOCK, at)
            with _named(one, "receive"):
                download = one.receive(1000, CLOCK, at)
            with _named(one, "work"):
                cost = one.work(flops, CLOCK, at)
            assert receipt == one.send(1000, CLOCK, at), f"{one!r}.send is not deterministic"
            assert download == one.receive(1000, CLOCK, at), f"{one!r}.receive is not deterministic"
            assert cost == one.work(flops, CLOCK, at), f"{one!r}.work is not deterministic"
            assert min(receipt.seconds, download.seconds, cost.seconds) >= 0, f"{one!r} returns a negative time"
            assert min(receipt.joules, download.joules, cost.joules) >= 0, f"{one!r} returns a negative energy"


# Methods.


def tiny_task(clients: int = 5, dtype: torch.dtype = torch.float32) -> Task:
    """Return a small task: three noisy classes in six dimensions, a few clients of unequal size."""

    def samples(n: int, at: Key) -> tuple[Tensor, Tensor]:
        y = (uniform(fold(at, "y"), n) * 3).long()
        noise = uniform(fold(at, "x"), n * 6, dtype=torch.float64).view(n, 6) - 0.5
        return (noise + nn.functional.one_hot(y, 6)).to(dtype), y

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)

    train, test = samples(30 * clients, fold(KEY, "train")), samples(60, fold(KEY, "test"))
    return Task.of(model, train, test, clients=clients, split="dirichlet:1")


def check_method(method: Method, folder: Path, task: Task | None = None, rounds: int = 3) -> None:
    """Check that a method is a value, and that runs are reproducible by seed, also after an interruption.

    Args:
        method: the method to check
        folder: an empty folder for run folders
        task: the task to train; by default ``tiny_task()``
        rounds: number of rounds
    """
    check_value(method)
    task = task or tiny_task()
    whole = _run(method, task, rounds, 1, out=folder / "whole")
    twin = _run(method, task, rounds, 1)
    assert _final(whole) == _final(twin), f"{method!r} gives another result with the same seed"
    assert _final(whole) != _final(_run(method, task, rounds, 2)), f"{method!r} gives the same result with another seed"
    broken = folder / "broken"
    with contextlib.suppress(KeyboardInterrupt):
        _run(method, task, rounds, 1, out=broken, callbacks=[_stop_after(rounds - 1)])
    resumed = _run(method, task, rounds, 1, out=broken, resume=True)
    assert _final(resumed) == _final(whole), f"{method!r} gives another result after an interruption"
    assert _newest(broken) == _newest(folder / "whole"), f"{method!r} writes another checkpoint after an interruption"


def _run(method: Method, task: Task, rounds: int, seed: int, **more: Any) -> Result:
    return simulate(method, task, rounds=rounds, per_round=3, seed=seed, **more)


def _stop_after(rounds: int) -> Callback:
    def stop(record: dict[str, Any], run: Any) -> None:
        if record["round"] == rounds:
            raise KeyboardInterrupt

    return stop


def _final(result: Result) -> tuple[Any, ...]:
    """Return the metrics and models of a run, without times and memory."""
    rounds = [{k: v for k, v in r.items() if k not in ("seconds", "memory_bytes")} for r in result.metrics]
    try:
        modules = [result.model]
    except RunError:  # there is no single global model
        modules = [result.client_model(client) for client in range(result.about["task"]["clients"])]
    return rounds, [{name: tensor.tolist() for name, tensor in m.state_dict().items()} for m in modules]


def _newest(folder: Path) -> dict[str, bytes]:
    newest = max((path for path in (folder / "checkpoints").iterdir()), key=lambda path: int(path.name))
    clients = sorted((folder / "clients").iterdir())
    return {path.name: path.read_bytes() for path in (newest / "server.safetensors", *clients)}
