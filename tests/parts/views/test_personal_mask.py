"""Personal masks: how they move and shrink, the sections that carry them, and that server and clients agree."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache

from gossamer import SGD, Clock, ConfigError, Method, Options, Task, compose, fedavg, fedspa, simulate, sub_fedavg
from gossamer.core import sections, tree, wire
from gossamer.core.errors import PayloadError
from gossamer.core.exchange import GLOBAL, Context
from gossamer.core.random import Key, fold, key, uniform
from gossamer.core.specs import parse
from gossamer.core.types import Params, Payload, State
from gossamer.core.wire import Frame
from gossamer.engines.client import Client, ClientResult, ClientTask, TrainingInfo
from gossamer.engines.inbox import ClientReply
from gossamer.engines.metrics import Ledger
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.parts.channels import Lossy
from gossamer.parts.codecs import CODECS, OnWeights
from gossamer.parts.samplers import Uniform
from gossamer.parts.solvers import SnapshotSGD
from gossamer.parts.views import PersonalMask, Pruned, masks
from gossamer.parts.views.personal_mask import moved
from gossamer.testing import check_method, check_solver, check_view
from helpers.codec_specs import SPECS
from helpers.compare import same
from helpers.mask_training import FakeTraining, batches, filled, masked_sgd, noise, slope
from helpers.runs import view_of, view_state

CLIENTS = 4
VARIANTS = {
    "erk": PersonalMask(),
    "uniform": PersonalMask(init="uniform", density=0.6),
    "uniform weights": PersonalMask(init="uniform-weights", density=0.6),
    "own": PersonalMask(own_init=True),
    "still": PersonalMask(moving=False),
    "random": PersonalMask(regrow="random", rate=1.0),
    "late": PersonalMask(last=False, rate=0.3),
    "whole": PersonalMask(density=1.0),
}


# What the parts are tried on.


def plain() -> nn.Module:
    """Names are not in order, and no mask fills its last byte."""
    return nn.Sequential(OrderedDict(z=nn.Linear(6, 7), relu=nn.ReLU(), a=nn.Linear(7, 3)))


def normed() -> nn.Module:
    """Smooth: where a unit holds no weight, its norm gives about 0, and a kink there would amplify rounding."""
    return nn.Sequential(OrderedDict(z=nn.Linear(6, 7), n=nn.BatchNorm1d(7), tanh=nn.Tanh(), a=nn.Linear(7, 3)))


def restless() -> nn.Module:
    return nn.Sequential(OrderedDict(z=nn.Linear(6, 9), n=nn.BatchNorm1d(9), d=nn.Dropout(0.5), a=nn.Linear(9, 3)))


def some_task(
    network: Callable[[], nn.Module] = plain, dtype: torch.dtype = torch.float32, clients: int = CLIENTS
) -> Task:
    def samples(n: int, label: str) -> tuple[Tensor, Tensor]:
        y = (uniform(fold(key(3), label, "y"), n) * 3).long()
        noise = uniform(fold(key(3), label, "x"), n * 6, dtype=torch.float64).view(n, 6) - 0.5
        return (noise + nn.functional.one_hot(y, 6)).to(dtype), y

    train, test = samples(24 * clients, "train"), samples(60, "test")
    return Task.of(lambda: network().to(dtype), train, test, clients=clients, split="dirichlet:1")


@dataclass
class Outline:
    """As much of a network as these views are bound to."""

    like: Params
    key: Key = key(0)
    metrics: tuple[str, ...] = ("accuracy",)

    @property
    def trained(self) -> list[str]:
        return list(self.like)

    def outline(self) -> Params:
        return self.like


def fit(view: Any, like: Params) -> Any:
    """A view that is bound to a network with such tensors."""
    network: Any = Outline(like)
    return view.bind(Context(network, compose(view, SGD()).training, Uniform()))


def ordered(run: Simulation, number: int, client: int) -> ClientTask:
    """What a client is to do in a round."""
    return run.client_task(Stage(run.method.training, number, {client: GLOBAL}), client, {})[0]


def bools(packed: Tensor, count: int) -> list[bool]:
    """A mask bit by bit."""
    flags = [bool(int(byte) >> bit & 1) for byte in packed.tolist() for bit in range(8)]
    assert not any(flags[count:]), "the filling is zero"
    return flags[:count]


def opened(state: State, like: Params) -> dict[str, Tensor]:
    """The masks of a state, laid out."""
    found = state["mask"]
    return {name: torch.tensor(bools(p, like[name].numel())).view(like[name].shape) for name, p in found.items()}


TASK = some_task()
LIKE = {name: t.detach() for name, t in plain().named_parameters()}


# The contract.


@pytest.mark.parametrize("name", VARIANTS)
def test_personal_views_keep_the_contract_of_views(name: str) -> None:
    check_view(VARIANTS[name], TASK)


def test_pruned_views_keep_the_contract_of_views() -> None:
    check_view(Pruned(share=0.2), TASK)


def test_a_solver_that_takes_notes_keeps_the_contract_of_solvers() -> None:
    check_solver(SnapshotSGD(epochs=2))


METHODS = {
    "fedspa": fedspa(epochs=1, batch=8, own_init=True),
    "random": fedspa(epochs=1, batch=8, regrow="random", distribution="uniform"),
    "rsm": fedspa(epochs=1, batch=8, mask="rsm"),
    "sub-fedavg": sub_fedavg(epochs=2, batch=8, share=0.2, accuracy=0.0),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_keep_the_contract_of_methods(name: str, tmp_path: Path) -> None:
    check_method(METHODS[name], tmp_path, some_task())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: PersonalMask(density=0.0), "density must be in"),
        (lambda: PersonalMask(density=1.1), "density must be in"),
        (lambda: PersonalMask(rate=-0.1), "rate must be in"),
        (lambda: PersonalMask(rate=1.1), "rate must be in"),
        (lambda: PersonalMask(init="er"), "init must be one of erk, uniform, uniform-weights"),  # type: ignore[arg-type]
        (lambda: PersonalMask(regrow="all"), "regrow must be gradient or random"),  # type: ignore[arg-type]
        (lambda: Pruned(target=0.0), "target must be in"),
        (lambda: Pruned(share=1.0), "share must be above"),
        (lambda: Pruned(distance=-1.0), "distance must not be negative"),
        (lambda: Pruned(accuracy=1.1), "accuracy must be in"),
        (lambda: fit(PersonalMask(density=0.1), LIKE), "entries of biases and norms are always kept"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()


# How a mask moves.


AWKWARD = st.sampled_from([0.0, 1e-45, 1e-38, 0.5, 0.5, 1.0, 2.0, 3e38])


Move = tuple[list[bool], list[float], list[float], float]
"""A mask, weights, gradients, and the share to move."""


@st.composite
def moves(draw: st.DrawFn) -> Move:
    size = draw(st.integers(1, 30))
    held = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    weight, wanted = (draw(st.lists(AWKWARD, min_size=size, max_size=size)) for _ in range(2))
    share = draw(st.sampled_from([0.0, 1e-6, 0.1, 0.25, 1 / 3, 0.5, 0.7, 1.0]))
    return held, weight, wanted, share


def slowly_moved(held: Sequence[bool], weight: Sequence[float], wanted: Sequence[float], share: float) -> list[bool]:
    active = [i for i, on in enumerate(held) if on]
    count = math.ceil(round(share * len(active), 9))
    dropped = sorted(active, key=lambda i: (weight[i], i))[:count]
    left = set(active) - set(dropped)
    free = [i for i in range(len(held)) if i not in left]
    grown = sorted(free, key=lambda i: (-wanted[i], i))[:count]
    return [i in left or i in grown for i in range(len(held))]


@given(moves())
@settings(max_examples=120)
def test_a_mask_moves_as_sorting_by_hand_does_it(case: Move) -> None:
    held, weight, wanted, share = case
    size = [float(value) for value in torch.tensor(weight)]  # as float32 has them
    count = math.ceil(share * sum(held) - 1e-9)
    found = moved(torch.tensor(held), torch.tensor(weight), torch.tensor(wanted), [len(held)], [count])
    assert found.tolist() == slowly_moved(held, size, [float(v) for v in torch.tensor(wanted)], share)


def test_what_was_just_dropped_may_be_taken_up_again() -> None:
    held, weight = torch.tensor([True, True, False, False]), torch.tensor([0.1, 5.0, 0.0, 0.0])
    for wanted, found in (
        ([9.0, 0.0, 1.0, 2.0], [True, True, False, False]),
        ([1.5, 0, 1, 2], [False, True, False, True]),
    ):
        assert moved(held, weight, torch.tensor(wanted), [4], [1]).tolist() == found


@given(st.lists(moves(), min_size=1, max_size=5))
@settings(max_examples=60)
def test_tensors_move_together_as_they_do_alone(
    cases: list[tuple[list[bool], list[float], list[float], float]],
) -> None:
    columns = [torch.cat([torch.tensor(case[which]) for case in cases]) for which in range(3)]
    sizes, counts = [len(held) for held, *_ in cases], [math.ceil(share * sum(held)) for held, *_, share in cases]
    together = moved(columns[0], columns[1], columns[2], sizes, counts)
    pieces = zip(*(column.split(sizes) for column in columns), sizes, counts, strict=True)
    alone = [moved(held, weight, wanted, [size], [count]) for held, weight, wanted, size, count in pieces]
    assert torch.equal(together, torch.cat(alone))


VALUES = st.sampled_from([0.0, 1.0, 2.0, -1.0, math.inf, -math.inf, 0.5])
PIECES = st.lists(st.lists(VALUES, min_size=1, max_size=12), min_size=1, max_size=6)


@given(PIECES, st.randoms(use_true_random=False))
@settings(max_examples=80)
def test_sorting_chooses_what_selecting_chooses(pieces: list[list[float]], draw: Random) -> None:
    """As a GPU does it, here on the CPU: the smallest values of each piece, the first among equals."""
    sizes, values = list(map(len, pieces)), torch.tensor([value for piece in pieces for value in piece])
    counts = [draw.randint(0, size) for size in sizes]
    found = masks.by_sorting(values, sizes, counts)
    assert torch.equal(found, masks.smallest_of_each(values, sizes, counts))
    slowly = [sorted(range(len(p)), key=lambda i, p=p: (p[i], i))[:k] for p, k in zip(pieces, counts, strict=True)]  # type: ignore[misc]
    assert [part.nonzero().view(-1).tolist() for part in found.split(sizes)] == [sorted(each) for each in slowly]


def test_sorting_takes_many_pieces() -> None:
    values = torch.arange(300.0).flip(0).repeat_interleave(2)
    found = masks.by_sorting(values, [2] * 300, [number % 3 for number in range(300)])
    assert [part.tolist() for part in found.split(2)] == [[True] * (n % 3) + [False] * (2 - n % 3) for n in range(300)]


@st.composite
def courses(draw: st.DrawFn) -> tuple[PersonalMask, Params, list[str]]:
    """A view bound to tensors of any size, and what gradients and weights are like in each of some rounds."""
    shapes = draw(st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=3), min_size=1, max_size=3))
    thin = draw(st.lists(st.integers(1, 9), max_size=2))
    like = {f"w{9 - i}": torch.ones(shape) for i, shape in enumerate(shapes)}
    like |= {f"b{i}": torch.ones(n) for i, n in enumerate(thin)}
    density = draw(st.sampled_from([0.2, 0.35, 0.5, 0.8, 0.99, 1.0]))
    assume(density * sum(t.numel() for t in like.values()) >= sum(thin))
    view = PersonalMask(
        density,
        draw(st.sampled_from(["erk", "uniform-weights"])),
        draw(st.booleans()),
        True,
        draw(st.sampled_from(["gradient", "random"])),
        draw(st.sampled_from([0.0, 0.01, 0.3, 0.5, 1.0])),
        draw(st.booleans()),
    )
    kinds = ["noise", "ties", "zeros", "huge", "equal", "infinite"]
    return fit(view, like), like, draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))


def values(kind: str, like: Params, number: int) -> Params:
    drawn = noise(like, kind, number)
    return {
        "noise": drawn,
        "ties": {name: t.mul(4).round() for name, t in drawn.items()},
        "zeros": {name: torch.zeros_like(t) for name, t in drawn.items()},
        "huge": {name: (2 * t) * 3e38 for name, t in drawn.items()},
        "equal": {name: torch.full_like(t, -3.0) for name, t in drawn.items()},
        "infinite": {name: torch.where(t > 0, torch.inf, t) for name, t in drawn.items()},
    }[kind]


@given(courses())
@settings(max_examples=60)
def test_how_much_of_each_tensor_is_held_never_changes(case: tuple[PersonalMask, Params, list[str]]) -> None:
    view, like, kinds = case
    mine = theirs = view.first(2)
    count = {name: masks.count(packed) for name, packed in mine["mask"].items()}
    assert all(0 <= count < like[name].numel() for name, count in count.items())
    for number, kind in enumerate(kinds):
        clock = Clock(number, len(kinds), 2)
        weights = view.part(like, clock, key(0), mine).take(values("ties" if kind == "infinite" else kind, like, 99))
        then, section = view.revise(
            mine, FakeTraining(weights, values(kind, like, number)), clock, fold(key(1), number)
        )
        theirs = view.follow(theirs, section, like)
        assert same(then, theirs)
        assert {name: sum(bools(p, like[name].numel())) for name, p in then["mask"].items()} == count
        if view.rate_at(clock) == 0:
            assert same(then, mine)
        mine = then


@given(courses())
@settings(max_examples=60)
def test_dense_tensors_have_no_mask(case: tuple[PersonalMask, Params, list[str]]) -> None:
    """Biases and norms never have one; others have one unless they keep all of their entries."""
    view, like, _ = case
    masked = view.first(0)["mask"]
    assert not [name for name in masked if name.startswith("b")]
    total = sum(t.numel() for t in like.values())
    held = sum(masks.count(masked[name]) if name in masked else t.numel() for name, t in like.items())
    assert held <= view.density * total + 1e-3
    assert held > view.density * total - len(masked) - 1e-3, "each mask is rounded down by less than one entry"


def test_a_single_number_is_held() -> None:
    like = {"w": torch.ones(8, 8), "temperature": torch.ones(())}
    for init in ("erk", "uniform-weights"):
        assert set(fit(PersonalMask(init=init), like).first(0)["mask"]) == {"w"}


@pytest.mark.parametrize("regrow", ["gradient", "random"])
def test_in_the_last_round_a_mask_stays(regrow: Any) -> None:
    for last in (True, False):
        view = fit(PersonalMask(regrow=regrow, last=last), LIKE)
        mine, clock = view.first(0), Clock(9, 10, 0)
        seen = FakeTraining(view.part(LIKE, clock, key(0), mine).take(noise(LIKE, "w")), noise(LIKE, "g"))
        assert same(view.revise(mine, seen, clock, key(0))[0], mine) == last


def test_the_rate_falls_by_a_cosine() -> None:
    for rounds in (2, 3, 10):
        to_last, beyond = (
            [fit(PersonalMask(rate=0.4, last=last), LIKE).rate_at(Clock(t, rounds, 0)) for t in range(rounds)]
            for last in (True, False)
        )
        assert to_last == pytest.approx([0.2 * (1 + math.cos(math.pi * t / (rounds - 1))) for t in range(rounds)])
        assert beyond == pytest.approx([0.2 * (1 + math.cos(math.pi * t / rounds)) for t in range(rounds)])
        assert to_last[0] == beyond[0] == 0.4
        assert to_last[-1] == 0
        assert beyond[-1] > 0
    for last in (True, False):
        assert fit(PersonalMask(rate=0.4, last=last), LIKE).rate_at(Clock(0, 1, 0)) == 0.4


def test_random_entries_are_taken_up_uniformly_and_without_a_gradient() -> None:
    """5 of 25 free entries (20 never held, 5 just dropped): each is regrown in a fifth of the draws."""
    like = {"w": torch.ones(5, 8)}
    view, draws = fit(PersonalMask(init="uniform", regrow="random", rate=0.25), like), 1500
    mine = view.first(0)
    held = opened(mine, like)["w"]
    seen = FakeTraining({"w": torch.arange(1.0, 41).view(5, 8) * held})
    taken = torch.zeros(5, 8)
    for draw in range(draws):
        taken += opened(view.revise(mine, seen, Clock(0, 9, 0), fold(key(7), draw))[0], like)["w"]
    kept = held & (torch.cumsum(held.view(-1), 0).view(5, 8) > 5)  # weights grow by index: the first five are dropped
    assert (taken[kept] == draws).all()
    free = taken[~kept] / draws
    assert len(free) == 25
    assert free.sub(0.2).abs().max() < 5 * math.sqrt(0.2 * 0.8 / draws)
    assert seen.asked == 0


def test_random_entries_are_taken_up_uniformly_in_any_precision() -> None:
    """One of 600 entries is regrown, on average the middle one, although bfloat16 cannot count to 600."""
    like = {"w": torch.ones(20, 30, dtype=torch.bfloat16)}
    view, draws = fit(PersonalMask(density=0.01, init="uniform", regrow="random", rate=0.1), like), 200
    mine = view.first(0)
    seen, old = FakeTraining({"w": like["w"]}), opened(mine, like)["w"]
    places = []
    for draw in range(draws):
        new = opened(view.revise(mine, seen, Clock(0, 9, 0), fold(key(7), draw))[0], like)["w"]
        places += (new & ~old).view(-1).nonzero().view(-1).tolist()
    assert len(places) > 0.95 * draws
    assert sum(places) / len(places) == pytest.approx(300, abs=5 * 600 / math.sqrt(12 * draws))


def test_clients_start_with_one_mask_or_with_their_own() -> None:
    one, other = (fit(PersonalMask(own_init=own_init), LIKE) for own_init in (False, True))
    assert same(one.first(0), one.first(3))
    assert not same(other.first(0), other.first(3))
    assert same(other.first(3), other.first(3))
    assert not same(one.first(0), fit(PersonalMask(seed=1), LIKE).first(0))
    counts = {client: [masks.count(p) for p in other.first(client)["mask"].values()] for client in range(9)}
    assert all(found == counts[0] for found in counts.values())


def test_each_entry_is_as_likely_to_be_held_at_the_start() -> None:
    like = {"w": torch.ones(5, 8)}
    view = fit(PersonalMask(init="uniform", own_init=True, density=0.3), like)
    held = torch.stack([opened(view.first(client), like)["w"].float() for client in range(800)]).mean(0)
    assert (held - 0.3).abs().max() < 5 * math.sqrt(0.3 * 0.7 / 800)


# What a mask moves by.


def trained(method: Method, task: Task, client: int = 1) -> tuple[Client, Any, Any]:
    """One client's first round: the client, its job, and the result."""
    run = Simulation(method, task, Options(rounds=4))
    client_task = ordered(run, 0, client)
    job = run.client.read_download(client_task)
    return run.client, job, run.client.train(client_task, job)


def test_the_gradient_is_that_of_all_entries_at_the_trained_weights_in_evaluation_mode() -> None:
    method, task = fedspa(epochs=2, batch=8, weight_decay=0.3, clip=0.1), some_task(restless)
    client, job, result = trained(method, task)
    info = TrainingInfo(client, job, result)
    before = tree.clone(info.weights)
    found = info.gradient()
    assert same(info.weights, before), "also the running statistics are as before"
    assert info.flops > 0
    module = client.objective.build(info.weights).eval()
    samples = task.split.train(1)
    rows = torch.from_numpy(samples[method.solver.plan(len(samples), fold(job.key, "screen"))[0]])
    assert len(rows) == 8
    task.loss(module(task.data.train.x[rows]), task.data.train.y[rows]).backward()
    parameters = dict(module.named_parameters())
    assert found.keys() == parameters.keys()
    for name, parameter in parameters.items():
        torch.testing.assert_close(found[name], parameter.grad)
    out = job.part.keep["z.weight"] == 0
    assert found["z.weight"][out].abs().sum() > 0, "entries that are not held have a gradient too"
    assert not torch.allclose(
        found["z.weight"],
        client.objective.gradient(
            {**info.weights, **client.objective.local()}, task.data.train.x[rows], task.data.train.y[rows]
        )[1]["z.weight"],
    )


def test_taking_the_gradient_does_not_disturb_training() -> None:
    method, task = fedspa(epochs=1, batch=8), some_task(restless)
    client, job, result = trained(method, task)
    TrainingInfo(client, job, result).gradient()
    client_task = ClientTask(job.clock, fold(key(0), "round", 0), Frame(b""), {}, task.split.train(1))
    assert same(client.train(client_task, job).change, result.change)


# Slow and obvious.


@pytest.mark.parametrize("regrow", ["gradient", "random"])
def test_a_round_of_fedspa_follows_the_paper(regrow: Any) -> None:
    """Train m w to v, send U = m w - v, w <- w - mean of U over the cohort; then move m."""
    task = some_task(dtype=torch.float64)
    method = fedspa(lr=0.3, epochs=2, batch=8, weight_decay=0.01, clip=0.7, decay=0.9, own_init=True, regrow=regrow)
    run = Simulation(method, task, Options(rounds=3))
    view = view_of(run)
    held = {client: opened(view.first(client), run.like) for client in range(CLIENTS)}
    w = {name: t.clone() for name, t in run.like.items()}
    for number in range(3):
        total = {name: torch.zeros_like(t) for name, t in w.items()}
        for client in range(CLIENTS):
            mask = filled(w, held[client])
            v = {name: w[name] * mask[name] for name in w}
            drawn, mine = batches(run, number, client)
            for x, y in drawn:
                g = {name: grad * mask[name] for name, grad in slope(run, v, x, y).items()}
                norm = math.sqrt(sum(float(t.square().sum()) for t in g.values()))
                shrink = min(1.0, 0.7 / (norm + 1e-6))
                v = {name: v[name] - 0.3 * 0.9**number * (g[name] * shrink + 0.01 * v[name]) for name in v}
            for name in total:
                total[name] += w[name] * mask[name] - v[name]
            samples = task.split.train(client)
            rows = samples[method.solver.plan(len(samples), fold(mine, "screen"))[0]]
            dense = slope(run, v, task.data.train.x[rows], task.data.train.y[rows])
            share = 0.25 * (1 + math.cos(math.pi * number / 2))
            for name, old in held[client].items():
                if regrow == "gradient":
                    new = slowly_moved(
                        old.view(-1).tolist(),
                        v[name].abs().view(-1).tolist(),
                        dense[name].abs().view(-1).tolist(),
                        share,
                    )
                    held[client][name] = torch.tensor(new).view(old.shape)
        run.round(number, None)
        w = {name: w[name] - total[name] / CLIENTS for name in w}
        for name in w:
            torch.testing.assert_close(run.model()[name], w[name])
        for client in range(CLIENTS):
            found = opened(run.clients.get(client)["view"], run.like)
            if regrow == "gradient":
                assert all(torch.equal(found[name], held[client][name]) for name in held[client])
            held[client] = found


def test_a_regrown_entry_starts_from_the_servers_value() -> None:
    run = Simulation(fedspa(epochs=1, batch=8), some_task(), Options(rounds=4))
    before = opened(view_of(run).first(1), run.like)
    run.round(0, None)
    after = opened(run.clients.get(1)["view"], run.like)
    job = run.client.read_download(ordered(run, 1, 1))
    for name, mask in after.items():
        grown = mask & ~before[name]
        assert grown.any()
        assert torch.equal(job.start[name][grown], run.model()[name][grown])
        assert (job.start[name][grown] != 0).all()
        assert (job.start[name][~mask] == 0).all()


@pytest.mark.parametrize("mask", ["rsm", "dst"])
def test_with_everything_held_it_is_federated_averaging(mask: Any) -> None:
    whole = fedspa(lr=0.2, epochs=2, batch=8, weight_decay=0.0, clip=None, decay=1.0, density=1.0, mask=mask)
    found, wanted = (
        simulate(m, some_task(), rounds=3) for m in (whole, fedavg(lr=0.2, epochs=2, batch=8, weights="uniform"))
    )
    assert same(dict(found.model.state_dict()), dict(wanted.model.state_dict()))
    for ours, theirs in zip(found.metrics, wanted.metrics, strict=True):
        assert all(ours[name] == theirs[name] for name in ("bytes_up", "bytes_down", "accuracy", "personal_accuracy"))


def test_one_mask_that_stays_is_federated_averaging_of_what_it_covers() -> None:
    method = fedspa(lr=0.2, epochs=2, batch=8, weight_decay=0.0, clip=None, decay=1.0, mask="rsm")
    run = Simulation(method, some_task(), Options(rounds=3))
    held = opened(view_of(run).first(0), run.like)
    mask = filled(run.like, held)
    other = Simulation(fedavg(lr=0.2, epochs=2, batch=8, weights="uniform"), some_task(), Options(rounds=3))
    other.server = other.method.training.server.init({name: t * mask[name] for name, t in other.like.items()})
    plain_step = other.client.objective.gradient

    def covered(*args: Any, **named: Any) -> Any:
        loss, grads, changed = plain_step(*args, **named)
        return loss, {name: g * mask[name] for name, g in grads.items()}, changed

    other.client.objective.gradient = covered  # type: ignore[method-assign]
    for number in range(3):
        run.round(number, None)
        other.round(number, None)
    for name, t in run.model().items():
        assert torch.equal(t * mask[name], other.model()[name])
        assert torch.equal(t[mask[name] == 0], run.like[name][mask[name] == 0])


# What a mask shrinks by.


def slowly_pruned(held: Tensor, weight: Tensor, share: float) -> Tensor:
    active = [i for i, on in enumerate(held.view(-1).tolist()) if on]
    sizes = weight.abs().view(-1).tolist()
    gone = sorted(active, key=lambda i: (sizes[i], i))[: int(share * len(active))]
    return torch.tensor([i in active and i not in gone for i in range(held.numel())]).view(held.shape)


def test_a_round_of_sub_fedavg_follows_the_paper() -> None:
    """Candidates after the first and last epoch, three thresholds, then each entry's mean over its holders."""
    rounds, task = 6, some_task(dtype=torch.float64)
    method = sub_fedavg(0.3, 2, batch=8, target=0.6, share=0.2, distance=1e-4, accuracy=0.7)
    run = Simulation(method, task, Options(rounds=rounds))
    names = ("z.weight", "a.weight")
    held = {client: {n: torch.ones_like(run.like[n]).bool() for n in names} for client in range(CLIENTS)}
    w, outcomes, orphans = {name: t.clone() for name, t in run.like.items()}, set(), 0
    for number in range(rounds):
        total, holders = ({name: torch.zeros_like(t) for name, t in w.items()} for _ in range(2))
        old = {client: dict(held[client]) for client in held}
        for client in range(CLIENTS):
            mask = filled(w, held[client])
            first, v = masked_sgd(run, number, client, w, mask)
            for name in w:
                total[name] += v[name]
                holders[name] += mask[name]
            early, late = ({n: slowly_pruned(held[client][n], p[n], 0.2) for n in names} for p in (first, v))
            size = sum(t.numel() for t in late.values())
            density = sum(int(t.sum()) for t in held[client].values()) / size
            apart = sum(int((early[n] != late[n]).sum()) for n in names) / size
            module = run.objective.build({name: v[name] * late[name] if name in late else v[name] for name in v}).eval()
            rows = torch.from_numpy(task.split.train(client))
            right = float((module(task.data.train.x[rows]).argmax(1) == task.data.train.y[rows]).double().mean())
            passed = (density > 0.6, apart > 1e-4, right > 0.7)
            outcomes.add(passed)
            if all(passed):
                held[client] = late
        run.round(number, None)
        orphans += sum(int((count == 0).sum()) for count in holders.values())
        w = {name: torch.where(holders[name] > 0, total[name] / holders[name].clamp(min=1), w[name]) for name in w}
        for name in w:
            torch.testing.assert_close(run.model()[name], w[name])
        for client in range(CLIENTS):
            state = run.clients.get(client)
            found = opened(state["view"], run.like) if "view" in state else old[client]
            for n in names:
                assert torch.equal(found[n], held[client][n])
                assert not (held[client][n] & ~old[client][n]).any(), "masks only shrink"
    reached = {tuple(part for part in outcome) for outcome in outcomes}
    assert (True, True, True) in reached
    assert any(not density for density, _, _ in reached), "a client must have come to the target"
    assert any(not right for _, _, right in reached), "a client must have been too bad"
    assert orphans > 0, "an entry must have lost its last holder"


PRUNING = {"w": torch.ones(5, 8), "b": torch.ones(5)}


def prune(view: Pruned, early: Tensor, late: Tensor, right: float = 1.0, mine: State | None = None) -> State:
    fitted = fit(view, PRUNING)
    before = mine or fitted.first(0)
    seen = FakeTraining({"w": late, "b": torch.ones(5)}, {}, {"w": early, "b": torch.ones(5)}, right)
    then, section = fitted.revise(before, seen, Clock(0, 5, 0), key(0))
    assert same(fitted.follow(before, section, PRUNING), then)
    assert (then is before) == (not section)
    if seen.tried is not None:
        pruned = slowly_pruned(opened(before, PRUNING)["w"], late, view.share)
        assert torch.equal(seen.tried["w"], late * pruned), "it is the pruned model that is tried"
        assert torch.equal(seen.tried["b"], torch.ones(5))
    return then


RISING = torch.arange(1.0, 41).view(5, 8)
FALLING = RISING.flip(0, 1)


def test_pruning_takes_the_smallest_weights_of_the_last_epoch() -> None:
    assert (
        opened(prune(Pruned(share=0.1), FALLING, RISING), PRUNING)["w"].view(-1).tolist() == [False] * 4 + [True] * 36
    )


def test_pruning_needs_masks_that_still_change() -> None:
    """Of 40 entries the candidates differ in 8: a distance of 0.2."""
    assert same(prune(Pruned(share=0.1), RISING, RISING), fit(Pruned(), PRUNING).first(0))
    for distance, pruned in ((0.2 - 1e-9, True), (0.2, False), (0.3, False)):
        then = prune(Pruned(share=0.1, distance=distance), FALLING, RISING)
        assert (masks.count(then["mask"]["w"]) == 36) == pruned


def test_pruning_needs_a_pruned_model_that_is_right_often_enough() -> None:
    for right, pruned in ((0.5, False), (0.5 + 1e-9, True), (0.0, False)):
        assert (masks.count(prune(Pruned(share=0.1), FALLING, RISING, right)["mask"]["w"]) == 36) == pruned


def test_pruning_ends_at_the_target() -> None:
    mine, counts = None, []
    for number in range(9):
        mine = prune(
            Pruned(target=0.5, share=0.2), noise(PRUNING, number)["w"], noise(PRUNING, -number - 1)["w"], 1.0, mine
        )
        counts.append(masks.count(mine["mask"]["w"]))
    assert counts == [32, 26, 21, 17, 17, 17, 17, 17, 17]
    first = prune(Pruned(target=0.8, share=0.2), FALLING, RISING)
    assert masks.count(first["mask"]["w"]) == 32
    assert same(prune(Pruned(target=0.8, share=0.2), FALLING, RISING, 1.0, first), first), "the target itself is enough"


def test_biases_and_norms_are_not_pruned() -> None:
    like = {name: t.detach() for name, t in normed().named_parameters()}
    assert set(fit(Pruned(), like).first(0)["mask"]) == {"z.weight", "a.weight"}


# A solver that takes notes.


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_note_is_of_the_weights_after_the_first_epoch(momentum: float) -> None:
    task = some_task(normed)
    solvers = [SnapshotSGD(0.3, 3, batch=8, momentum=momentum), SGD(0.3, 3, batch=8, momentum=momentum)]
    solvers.append(replace(solvers[1], epochs=1))
    noting, plainly, once = (trained(sub_fedavg().with_parts(solver=s), task) for s in solvers)
    assert same(noting[2].change, plainly[2].change)
    assert noting[2].loss == plainly[2].loss
    start, early = noting[1].start, noting[1].layout.full.unflatten(noting[2].carry["early"])
    assert same({name: early[name] - start[name] for name in start}, once[2].change)
    assert not same(once[2].change, noting[2].change)
    info: Any = None  # it asks for nothing
    assert noting[0].exchange.solver.end({}, info) == ({}, {})


def test_with_one_epoch_the_note_is_the_end_so_that_nothing_would_be_pruned() -> None:
    once = sub_fedavg(batch=8).with_parts(solver=SnapshotSGD(0.1, 1, batch=8))
    _, job, result = trained(once, some_task())
    early = job.layout.full.unflatten(result.carry["early"])
    assert same({name: early[name] - job.start[name] for name in job.start}, result.change)
    with pytest.raises(ConfigError, match="epochs must be at least 2"):
        sub_fedavg(epochs=1)


def test_judging_a_mask_takes_a_forward_pass_over_all_samples() -> None:
    client, job, result = trained(sub_fedavg(epochs=2, batch=8), some_task())
    info = TrainingInfo(client, job, result)
    info.accuracy(info.weights)
    products = sum(weight.numel() for weight in info.weights.values() if weight.dim() == 2)
    assert info.flops == 2 * products * len(job.samples)


def test_masks_follow_from_the_seed_of_the_run_unless_they_have_their_own() -> None:
    def first(run_seed: int, **view: Any) -> State:
        method = fedspa(mask="rsm").with_parts(view=PersonalMask(moving=False, **view))
        run = Simulation(method, TASK, Options(rounds=1, seed=run_seed))
        return view_of(run).first(0)

    assert same(first(1), first(1))
    assert not same(first(1), first(2))
    assert same(first(1, seed=5), first(2, seed=5))
    assert not same(first(1, seed=5), first(1))


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's compiler uses what torch deprecates
@pytest.mark.parametrize(
    ("name", "executor"),
    [(name, executor) for name in ("fedspa", "sub-fedavg") for executor in ("side-by-side", "stacked")]
    + [pytest.param("sub-fedavg", "compiled", marks=pytest.mark.slow)],
)
def test_executors_agree(name: str, executor: str) -> None:
    """Also on masks. The norm would show a mask that moves in training mode, or training in evaluation mode."""
    task = some_task(normed, torch.float64)
    runs = []
    for how in ("one-by-one", executor):
        run = Simulation(METHODS[name], task, Options(rounds=3, executor=how))
        with fresh_cache():
            run.run(None, lambda record: None)
        assert not any(record["failures"] for record in run.metrics)
        runs.append(run)
    wanted, found = runs
    for tensor, other in zip(wanted.model().values(), found.model().values(), strict=True):
        torch.testing.assert_close(other, tensor, rtol=0, atol=0 if executor == "side-by-side" else 1e-9)
    for client in range(CLIENTS):
        assert view_state(wanted, client) is not None
        assert same(view_state(found, client), view_state(wanted, client))
    for ours, theirs in zip(found.metrics, wanted.metrics, strict=True):
        assert all(ours[n] == theirs[n] for n in ("bytes_up", "bytes_down", "flops", "personal_accuracy", "figures"))


# How good it is, and what it costs.


@pytest.mark.parametrize("name", METHODS)
def test_personal_accuracy_is_of_what_each_clients_mask_covers(name: str) -> None:
    """With the newest mask that the server has, also for clients that never took part."""
    task = some_task(normed)
    run = Simulation(METHODS[name], task, Options(rounds=4, per_round=2, channel=Lossy(0.3), seed=2))
    seen: set[int] = set()
    for number in range(4):
        record = run.round(number, None)
        seen |= set(record["clients"])
        shares = []
        for client in range(CLIENTS):
            state = view_state(run, client) or view_of(run).first(client)
            mask = filled(run.model(), opened(state, run.like))
            module = run.objective.build({n: t * mask[n] for n, t in run.model().items()}).eval()
            rows = torch.from_numpy(task.split.test(client))
            right = module(task.data.test.x[rows]).argmax(1) == task.data.test.y[rows]
            shares.append(float(right.double().mean()))
        assert record["personal_accuracy"] == pytest.approx(sum(shares) / CLIENTS)
        if number == 0:
            assert len(seen) < CLIENTS
    assert any(record["lost"] for record in run.metrics)


@pytest.mark.parametrize("name", METHODS)
def test_bytes_are_those_of_held_values_and_of_what_changed(name: str) -> None:
    run = Simulation(METHODS[name], some_task(), Options(rounds=4, per_round=2))
    every = sum(t.numel() for t in run.like.values())
    for number in range(4):
        before = {c: view_state(run, c) or view_of(run).first(c) for c in range(CLIENTS)}
        record = run.round(number, None)
        held, change = 0, 0
        for client in record["clients"]:
            held += every - sum(int((~m).sum()) for m in opened(before[client], run.like).values())
            after = view_state(run, client)
            if after is not None and (name != "sub-fedavg" or not same(after, before[client])):
                sent = sum(array.nbytes for array in masks.difference(before[client]["mask"], after["mask"]).values())
                assert sent <= sum(len(packed) for packed in after["mask"].values()), "no more than a bitmap"
                change += sent
        down, up = (dict(record[way]) for way in ("bytes_down", "bytes_up"))
        assert 0 < down.pop("overhead") < 2 * 64
        assert 0 < up.pop("overhead") < 2 * 128
        assert down == {"down.values": 4 * held}
        assert up.pop("codec.values") == 4 * held
        assert up.keys() <= {"view.mask"}
        assert sum(up.values()) == change
        assert (change > 0) == (name != "rsm") or name == "sub-fedavg"


def test_a_change_is_coded_in_the_smaller_form() -> None:
    like = {"w": torch.ones(40, 20), "a": torch.ones(5, 5)}
    mine = fit(PersonalMask(init="uniform"), like).first(0)["mask"]
    for count, names in ((0, {"quotients", "remainders"}), (3, {"quotients", "remainders"}), (400, {"bitmap"})):
        stage = torch.randperm(800, generator=torch.Generator().manual_seed(1))[:count]
        flags = torch.tensor(bools(mine["w"], 800))
        flags[stage] = ~flags[stage]
        new = {**mine, "w": torch.from_numpy(np.packbits(flags.numpy(), bitorder="little"))}
        section = masks.difference(mine, new)
        assert set(section) == names
        assert same(masks.turned(mine, section, like), new)
        assert sum(array.nbytes for array in section.values()) <= min(104, 2 + 2 * count)


def test_masks_are_stored_as_bits() -> None:
    run = Simulation(METHODS["fedspa"], some_task(), Options(rounds=2))
    run.run(None, lambda record: None)
    for client in range(CLIENTS):
        state = tree.flatten(run.clients.get(client))
        assert {path: t.numel() for path, t in state.items()} == {"view/mask/z.weight": 6, "view/mask/a.weight": 3}
        assert all(t.dtype == torch.uint8 for t in state.values())


def test_clients_whose_masks_stay_store_nothing() -> None:
    run = Simulation(METHODS["rsm"], some_task(), Options(rounds=2, channel=Lossy(0.3)))
    run.run(None, lambda record: None)
    assert run.clients.known() == []


# Server and client have the same.


class Watched(Simulation):
    """A simulator with a second server, which keeps only the masks that arrive."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.received: dict[int, State] = {}
        self.arrivals: dict[int, State] = {}

    def settle_client(self, stage: Stage, client: int, reply: ClientReply, arrived: bool, known: State) -> None:
        super().settle_client(stage, client, reply, arrived, known)
        if arrived:
            self.arrivals[client] = known

    def train(self, number: int, ledger: Ledger) -> list[int]:
        before = {client: view_state(self, client) for client in range(CLIENTS)}
        for client in self.cohort(number, Ledger()):
            stage = Stage(self.method.training, number, {client: GLOBAL})
            clock, at = self.clock_and_key(stage, client)
            one, other = (
                stage.exchange.make_download(self.server, clock, at, GLOBAL, mask, None)
                for mask in (self.received.get(client), before[client])
            )
            assert bytes(one.data) == bytes(other.data)
        self.arrivals = {}
        cohort = super().train(number, ledger)
        missing = {failure["client"] for failure in ledger.failures} | set(ledger.lost)
        assert set(self.arrivals) == set(cohort) - missing
        self.received |= self.arrivals
        for client in range(CLIENTS):
            start = view_of(self).first(client)
            assert same(self.received.get(client) or start, view_state(self, client) or start)
            if client not in self.arrivals:
                assert same(view_state(self, client) or start, before[client] or start), (
                    "what did not arrive does not count"
                )
        return cohort


@pytest.mark.parametrize("name", METHODS)
@given(
    seed=st.integers(0, 50),
    loss=st.sampled_from([0.0, 0.3, 0.6]),
    failing=st.sampled_from([0.0, 0.4]),
    per_round=st.integers(1, 4),
    stop=st.integers(1, 3),
)
@settings(max_examples=5, phases=[Phase.generate])  # each is three runs: too slow to look for the least
def test_server_and_clients_agree_in_the_simulator(
    name: str, seed: int, loss: float, failing: float, per_round: int, stop: int, tmp_path_factory: Any
) -> None:
    """For any cohorts, any losses, and any point of interruption."""
    task = TASK
    options = Options(rounds=4, per_round=per_round, seed=seed, channel=Lossy(loss), failure_rate=failing)
    run = Watched(METHODS[name], task, options)
    run.run(None, lambda record: None)
    home = tmp_path_factory.mktemp("runs") / "run"
    first = Watched(METHODS[name], task, options)

    def cut(record: dict[str, Any]) -> None:
        if record["round"] == stop:
            raise KeyboardInterrupt

    folder = first.create(home)
    with pytest.raises(KeyboardInterrupt):
        first.run(folder, cut)
    folder.close()
    second = Watched(METHODS[name], task, options)
    folder = second.restore(home)
    second.received = {client: state for client in range(CLIENTS) if (state := view_state(second, client)) is not None}
    assert all(same(state, view_state(first, client)) for client, state in second.received.items())
    second.run(folder, lambda record: None)
    folder.close()
    assert same(second.server, run.server)
    assert all(same(second.clients.get(client), run.clients.get(client)) for client in range(CLIENTS))


@pytest.mark.parametrize("name", ["fedspa", "sub-fedavg"])
@pytest.mark.parametrize("spec", SPECS)
def test_every_codec_goes_with_masks_that_move_or_shrink(name: str, spec: str) -> None:
    codec = parse(spec, CODECS, "codec")
    for sent in (codec, OnWeights(codec, per_tensor=True)):
        run = Watched(METHODS[name].with_parts(codec=sent), TASK, Options(rounds=2, channel=Lossy(0.3)))
        run.run(None, lambda record: None)
        assert all(torch.isfinite(tensor).all() for tensor in run.model().values())


# Refused mask sections.


def retold(data: Frame | bytes, change: Callable[[Payload], Payload]) -> bytes:
    """A message with other arrays in its mask section."""
    message = wire.unpack(data)
    payload, section = sections.split(message.payload)
    arrays = sections.joined(payload, {**section, "mask": change(section.get("mask", {}))})
    return wire.pack(replace(message, payload=arrays))


def forged(run: Simulation, client: int, change: Callable[[Payload], Payload]) -> Frame:
    """A client's message of the first round, with other arrays in its mask section."""
    result = run.client.do(ordered(run, 0, client)).result
    assert isinstance(result, ClientResult)
    return Frame.of(retold(result.sent.data, change))


def turns(*places: int) -> Callable[[Payload], Payload]:
    """A bitmap with these bits turned over: a's 21 and 3 filling, then z's 42 and 6 filling."""

    def made(section: Payload) -> Payload:
        flags = np.zeros(72, dtype=bool)
        flags[list(places)] = True
        return {"bitmap": torch.from_numpy(np.packbits(flags, bitorder="little"))}

    return made


FORGED: dict[str, tuple[str, Callable[[Payload], Payload], str]] = {
    "one more of a": ("fedspa", turns(0), "changes the number of entries in its mask of a.weight"),
    "one more of z": ("fedspa", turns(24), "changes the number of entries in its mask of z.weight"),
    "one from a to z": ("fedspa", turns(0, 24), "changes the number of entries in its mask of a.weight"),
    "in the filling of a": ("fedspa", turns(0, 21), "after the last entry of a.weight"),
    "in the filling of z": ("fedspa", turns(24, 71), "after the last entry of z.weight"),
    "all": ("fedspa", turns(*range(21), *range(24, 66)), "changes the number of entries in its mask of"),
    "empty": ("fedspa", lambda section: {}, "expected a mask"),
    "half": ("fedspa", lambda section: {"quotients": torch.ones(1, dtype=torch.uint8)}, "expected a mask"),
    "too short": ("fedspa", lambda section: {"bitmap": torch.zeros(8, dtype=torch.uint8)}, "bitmap"),
    "another type": ("fedspa", lambda section: {"bitmap": torch.zeros(9, dtype=torch.int8)}, "bitmap"),
    "though it stays": ("rsm", turns(), "its mask is fixed"),
    "in the filling of the pruned": ("sub-fedavg", turns(22), "after the last entry of a.weight"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_change_of_a_mask_is_refused_and_changes_nothing(name: str) -> None:
    recipe, change, reason = FORGED[name]
    run = Simulation(METHODS[recipe], some_task(), Options(rounds=4))
    frame = forged(run, 1, change)
    mine = view_of(run).first(1)
    before = tree.clone(mine)
    with pytest.raises(PayloadError, match=reason):
        run.method.training.read_upload(frame, run.server, run.clock(0, 1), run.round_key(0), GLOBAL, mine)
    assert same(mine, before)
    assert _folded(run, {1: frame}, reason) == [0, 2, 3]


def _folded(run: Simulation, replaced: dict[int, Frame], reason: str) -> list[int]:
    """The clients folded in a round with some replaced messages, which are refused with a reason."""
    server = run.server
    send_upload = run.send_upload

    def swapped(client_task: ClientTask, result: Any, ledger: Any) -> ClientReply:
        reply = send_upload(client_task, result, ledger)
        return reply._replace(data=replaced.get(client_task.clock.client, reply.data))

    run.send_upload = swapped  # type: ignore[method-assign]
    record = run.round(0, None)
    assert [failure["client"] for failure in record["failures"]] == list(replaced)
    assert all(
        reason in failure["reason"] and failure["reason"].startswith("refused") for failure in record["failures"]
    )
    others = sorted(set(record["clients"]) - set(replaced))
    assert record["exchanges"][0]["folded"] == len(others)
    alone = Simulation(run.method.method, run.task, run.options)
    assert same(alone.server, server)
    alone.cohort = lambda number, ledger: others  # type: ignore[method-assign]
    alone.round(0, None)
    assert same(run.server, alone.server), "as if the others had been alone"
    return others


def test_what_was_pruned_is_not_taken_up_again() -> None:
    view = fit(Pruned(share=0.1), PRUNING)
    mine = prune(Pruned(share=0.1), FALLING, RISING)
    back = masks.difference(mine["mask"], view.first(0)["mask"])
    before = tree.clone(mine)
    with pytest.raises(PayloadError, match="adds pruned entries of w"):
        view.follow(mine, back, PRUNING)
    assert same(mine, before)


@pytest.mark.parametrize("name", ["fedspa", "sub-fedavg"])
@given(data=st.data())
@settings(max_examples=100)
def test_random_bytes_are_refused_or_leave_a_mask_that_may_be(name: str, data: st.DataObject) -> None:
    view = fit(METHODS[name].view, LIKE)
    mine = view.first(0)

    def array(label: str, most: int) -> Tensor:
        return torch.tensor(list(data.draw(st.binary(max_size=most), label=label)), dtype=torch.uint8)

    coded = {"quotients": array("quotients", 4), "remainders": array("remainders", 5)}
    section = data.draw(st.sampled_from([{"bitmap": array("bitmap", 9)}, coded]), label="form")
    try:
        then = view.follow(mine, section, LIKE)
    except PayloadError:
        return
    for flag, (mask, old) in {n: (opened(then, LIKE)[n], opened(mine, LIKE)[n]) for n in mine["mask"]}.items():
        if name == "fedspa":
            assert mask.sum() == old.sum(), flag
        else:
            assert not (mask & ~old).any(), flag


# Deployed.


@pytest.mark.parametrize("name", METHODS)
def test_deployed_it_is_the_same(name: str, flower: Any, tmp_path: Path) -> None:
    """Model, masks, messages and figures, also of clients that have not taken part yet."""
    method, task, options = METHODS[name], some_task(normed), {"rounds": 4, "per_round": 2, "seed": 1}
    grid = flower.LocalGrid(flower.nodes(method, task, tmp_path))
    run, deployed = flower.simulated(method, task, **options), flower.deploy(method, task, grid, **options)
    flower.agree(deployed, run, tmp_path)
    assert flower.messages(grid) == run.messages
    for ours, theirs in zip(deployed.metrics, run.metrics, strict=True):
        assert ours["failures"] == ours["evaluation_failures"] == []
        for figure in ("bytes_up", "bytes_down", "flops", "accuracy", "personal_accuracy", "figures"):
            assert ours[figure] == theirs[figure]
    for client in range(CLIENTS):
        assert same(view_state(deployed, client), view_state(run, client))


def settled(deployed: Any, flower: Any, home: Path, client: int) -> State:
    """The mask that a node will train with next, from its journal."""
    folded = int(deployed.clients.get(client).get(flower.FOLDED, flower.NEVER))
    journal = flower.Journal(home, deployed.about["id"], client)
    state = journal.recall(len(deployed.metrics), folded, deployed.method.training.settle)
    return state.get("view") or view_of(deployed).first(client)


def troubled(flower: Any, handle: Any, events: dict[int, str], journal: Callable[[], Any]) -> Any:
    """A node to which something happens, once, in some rounds: to its disk, or on the way."""
    from flwr.app import MessageType

    left = dict(events)

    def answer(message: Any) -> Any:
        number = flower.word(message, "round", int)
        if message.metadata.message_type != MessageType.TRAIN or number not in left:
            return handle(message)
        event = left.pop(number)
        if event == "disk":
            journal().forget()
            return handle(message)
        if event == "lost":
            handle(message)
        return None

    return answer


EVENTS = st.dictionaries(st.integers(0, 3), st.sampled_from(["lost", "idle", "disk"]), max_size=3)


@pytest.mark.parametrize("name", ["fedspa", "sub-fedavg"])
@given(events=st.lists(EVENTS, min_size=CLIENTS, max_size=CLIENTS), least=st.sampled_from([0.25, 1.0]))
@settings(
    max_examples=5, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # the fixture is the same for all
def test_server_and_nodes_agree(
    name: str, events: list[dict[int, str]], least: float, flower: Any, tmp_path_factory: Any
) -> None:
    """After replies that are lost or never made, rounds that do not count, and disks that are lost."""
    home, method, task = tmp_path_factory.mktemp("nodes"), METHODS[name], TASK
    deployed = flower.flower_run(method, task, flower.LocalGrid({}), rounds=4, min_replies=least)
    there = flower.nodes(method, task, home)
    for client in range(CLIENTS):
        number = flower.NUMBERS[client]
        there[number] = troubled(
            flower, there[number], events[client], partial(flower.Journal, home, deployed.about["id"], client)
        )
    deployed.fleet.grid.nodes |= there
    checked = []

    def watch(record: dict[str, Any]) -> None:
        for client in set(range(CLIENTS)) - deployed.anew:
            mine = view_state(deployed, client) or view_of(deployed).first(client)
            assert same(mine, settled(deployed, flower, home, client)), (record["round"], client)
            checked.append(client)
        failed = {failure["client"] for failure in record["failures"]}
        assert least < 1 or not failed, "a round that counts is whole"

    deployed.run(None, watch)
    assert len(checked) >= CLIENTS
    if least == 1 and not any("disk" in of.values() for of in events):
        flower.agree(deployed, flower.undisturbed(method, TASK, rounds=4), home)


def test_a_mask_that_the_server_did_not_get_does_not_take_effect(flower: Any, tmp_path: Path) -> None:
    """A reply that is lost, and one that is refused: the next round is sent and trained by the old mask."""
    method = fedspa(epochs=1, batch=8, rate=1.0)

    def spoil(reply: Any) -> Any:
        return flower.rewritten(reply, retold(flower.data(reply), turns(0)))

    there = flower.nodes(method, TASK, tmp_path)
    for client, change in ((1, spoil), (2, lambda reply: None)):
        number = flower.NUMBERS[client]
        there[number] = flower.altered(there[number], change, "train", [1])
    grid = flower.LocalGrid(there)
    deployed = flower.flower_run(method, TASK, grid, rounds=3)
    states: list[dict[int, State | None]] = []
    deployed.run(None, lambda record: states.append({c: view_state(deployed, c) for c in range(CLIENTS)}))
    failures = {failure["client"]: failure["reason"] for failure in deployed.metrics[1]["failures"]}
    assert "refused: the client changes the number of entries in its mask of a.weight" in failures[1]
    assert "no reply" in failures[2]
    for client in range(CLIENTS):
        assert same(states[1][client], states[0][client]) == (client in (1, 2))
    run = flower.simulated(method, TASK, lost={(1, 1), (1, 2)}, rounds=3)
    flower.agree(deployed, run, tmp_path)
    sent = flower.messages(grid)
    assert all(sent["up", 2, c] == run.messages["up", 2, c] for c in range(CLIENTS))


@pytest.mark.parametrize("name", ["fedspa", "sub-fedavg", "rsm"])
def test_a_server_that_died_resumes_with_the_masks_it_knew(name: str, flower: Any, tmp_path: Path) -> None:
    method, grid = METHODS[name], flower.LocalGrid(flower.nodes(METHODS[name], TASK, tmp_path))

    def die(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    first, out = flower.flower_run(method, TASK, grid, rounds=5, per_round=3), tmp_path / "run"
    folder = first.create(out)
    with pytest.raises(KeyboardInterrupt):
        first.run(folder, die)
    folder.close()
    grid.nodes = flower.restarted(method, TASK, tmp_path)
    second = flower.flower_run(method, TASK, grid, rounds=5, per_round=3)
    folder = second.restore(out)
    assert all(same(view_state(second, client), view_state(first, client)) for client in range(CLIENTS))
    second.run(folder, lambda record: None)
    folder.close()
    flower.agree(second, flower.simulated(method, TASK, rounds=5, per_round=3), tmp_path)
    for client in range(CLIENTS):
        start = view_of(second).first(client)
        assert same(view_state(second, client) or start, settled(second, flower, tmp_path, client))


def test_a_server_stores_no_masks_that_stay(flower: Any, tmp_path: Path) -> None:
    method = METHODS["rsm"]
    deployed = flower.deploy(method, TASK, flower.LocalGrid(flower.nodes(method, TASK, tmp_path)))
    assert [set(deployed.clients.get(client)) for client in range(CLIENTS)] == [{flower.FOLDED}] * CLIENTS
