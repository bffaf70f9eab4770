"""Random layers draw from the run's keys: the right law, the right numbers, and nothing else."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gossamer import SGD, ConfigError, Task, fedavg, simulate
from gossamer.core.random import draws, fold, key, tensor, uniform
from gossamer.core.random.streams import _philox
from gossamer.runs.report.tables import executor as executor_text
from gossamer.tasks.objective import Objective
from gossamer.tasks.random_layers import Layers, Numbers, Recorded, drawing, trial
from gossamer.tasks.random_layers.rules import RULES
from gossamer.tasks.widths.elastic import stretch

ONES = torch.ones(100, 200)


def numbers(client: int = 0, step: int = 0) -> Numbers:
    return Numbers(tensor(fold(key(1), "client", client)), torch.tensor(step))


def drawn(function: Callable[..., Tensor], *args: Any, by: Numbers | None = None, **named: Any) -> Tensor:
    """The result of an operation in the mode; torch's generator must not move."""
    before = torch.get_rng_state()
    with Layers(numbers() if by is None else by):
        result = function(*args, **named)
    assert torch.equal(torch.get_rng_state(), before)
    return result


# The numbers.


def test_the_counter_has_step_layer_and_evaluation() -> None:
    """Against NumPy's generator with the counter written out, and against tensor operations."""
    words = fold(key(3), "layers")
    bits = np.random.Philox(key=np.array(words, dtype=np.uint64), counter=np.array([0, 7, 2, 5], dtype=np.uint64))
    raw = bits.random_raw(9)
    halves = np.stack([raw & 0xFFFFFFFF, raw >> 32], 1).reshape(-1)
    wanted = torch.from_numpy((halves >> 8).astype(np.float32)) / 2**24
    found = draws(tensor(words), torch.tensor(7), 17, layer=2, evaluation=5)
    assert torch.equal(found, wanted[:17])
    by_tensors = _philox(torch.arange(3) + 1, tensor(words), torch.tensor(7), 2, 5)[:9]
    assert torch.equal(by_tensors, torch.from_numpy(raw.view(np.int64)))
    assert torch.equal(draws(tensor(words), torch.tensor(0), 17), uniform(words, 17))


def test_draws_do_not_depend_on_earlier_ones_of_the_same_key() -> None:
    """The generator of a key is kept between draws, with words left over if their number is not a multiple of four."""
    words, steps = fold(key(3), "layers"), (0, 1, 1, 0, 2)
    for step, n in zip(steps, (5, 0, 8, 13, 6), strict=True):
        bits = np.random.Philox(
            key=np.array(words, dtype=np.uint64), counter=np.array([0, step, 1, 0], dtype=np.uint64)
        )
        wanted = torch.from_numpy((bits.random_raw(7) & 0xFFFFFFFF) >> 8).float() / 2**24
        assert torch.equal(draws(tensor(words), torch.tensor(step), n, layer=1)[::2], wanted[: -(-n // 2)])


def test_each_layer_and_evaluation_draws_in_the_order_of_calls() -> None:
    found = Recorded(numbers().root, torch.tensor(0))

    def evaluate(x: Tensor) -> Tensor:
        with drawing(found):
            return F.dropout(F.dropout2d(x.view(2, 3, 4, 5)), 0.2) + torch.rand(2, 1, 1, 1)

    first, second = evaluate(torch.ones(120)), evaluate(torch.ones(120))
    assert found.sizes == [(6, 0, 0), (120, 1, 0), (2, 2, 0), (6, 0, 1), (120, 1, 1), (2, 2, 1)]
    assert not torch.equal(first, second)


def test_masks_of_clients_steps_layers_and_evaluations_are_independent() -> None:
    """Two independent masks of 20,000 entries agree in half of them, up to 5 standard deviations."""

    def masks(by: Numbers) -> list[Tensor]:
        found = []
        for _ in range(2):  # evaluations
            with Layers(by):
                found += [F.dropout(ONES), F.dropout(ONES)]
        return found

    every = [mask > 0 for client in range(2) for step in range(2) for mask in masks(numbers(client, step))]
    assert len(every) == 16
    for number, one in enumerate(every):
        assert abs(one.double().mean() - 0.5) < 5 * 0.5 / math.sqrt(one.numel())
        for other in every[:number]:
            assert abs((one == other).double().mean() - 0.5) < 5 * 0.5 / math.sqrt(one.numel())


# The rules.


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_has_its_rate_and_scale(p: float) -> None:
    found = drawn(F.dropout, ONES, p)
    share = (found == 0).double().mean()
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / ONES.numel())
    torch.testing.assert_close(found[found > 0], torch.full_like(found[found > 0], 1 / (1 - p)))


DROPOUTS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "dropout": (F.dropout, (4, 5), (4, 5)),
    "dropout1d": (F.dropout1d, (4, 5, 6), (4, 5, 1)),
    "dropout1d, one sample": (F.dropout1d, (4, 5), (4, 1)),
    "dropout2d": (F.dropout2d, (4, 5, 6, 7), (4, 5, 1, 1)),
    "dropout3d": (F.dropout3d, (4, 5, 2, 3, 2), (4, 5, 1, 1, 1)),
    "dropout3d, one sample": (F.dropout3d, (4, 5, 2, 3), (4, 1, 1, 1)),
    "alpha_dropout": (F.alpha_dropout, (4, 5), (4, 5)),
    "feature_alpha_dropout": (F.feature_alpha_dropout, (4, 5, 6, 7), (4, 5, 1, 1)),
    "torch.dropout": (torch.dropout, (4, 5), (4, 5)),
    "torch.feature_dropout": (torch.feature_dropout, (4, 5, 6), (4, 5, 1)),
    "torch.alpha_dropout": (torch.alpha_dropout, (4, 5), (4, 5)),
    "torch.feature_alpha_dropout": (torch.feature_alpha_dropout, (4, 5, 6), (4, 5, 1)),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropouts_are_torchs_with_the_streams_mask(name: str) -> None:
    """Entries that share a mask value share their fate, and kept and dropped values are those of torch's operation."""
    function, shape, mask = DROPOUTS[name]
    x = torch.rand(shape, dtype=torch.float64) + 1
    by = Recorded(numbers().root, torch.tensor(0))
    found = drawn(function, x, 0.3, True, by=by)
    assert by.sizes == [(math.prod(mask), 0, 0)]
    keep = (draws(by.root, by.step, math.prod(mask)) >= 0.3).view(mask).double()
    if "alpha" in name:
        limit = 1.0507009873554805 * 1.6732632423543772  # SELU
        a = ((1 - 0.3) * (1 + 0.3 * limit**2)) ** -0.5  # mean and variance stay: Klambauer et al.
        wanted = a * (x * keep - limit * (1 - keep)) + a * limit * 0.3
    else:
        wanted = x * keep / 0.7
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropouts_do_nothing_in_evaluation_and_at_rate_zero_and_all_at_one(name: str) -> None:
    function, shape, _ = DROPOUTS[name]
    x = torch.rand(shape)
    by = Recorded(numbers().root, torch.tensor(0))
    assert torch.equal(drawn(function, x, 0.3, False, by=by), x)
    assert torch.equal(drawn(function, x, 0.0, True, by=by), x)
    assert not drawn(function, x, 1.0, True, by=by).any()
    assert by.sizes == []


@pytest.mark.parametrize("function", [F.dropout, F.alpha_dropout, F.dropout2d, F.feature_alpha_dropout, F.rrelu])
def test_in_place_variants_give_the_same_and_change_their_input(function: Callable[..., Tensor]) -> None:
    x = torch.randn(4, 5, 3, 3)
    rest: tuple[Any, ...] = (1 / 8, 1 / 3, True) if function is F.rrelu else (0.4, True)
    wanted, changed = drawn(function, x, *rest), x.clone()
    found = drawn(function, changed, *rest, True)
    assert found is changed
    torch.testing.assert_close(found, wanted)


LAWS: dict[str, tuple[Callable[[], Tensor], float, float]] = {
    "rand": (lambda: torch.rand(100, 200), 1 / 2, 1 / 12),
    "rand_like": (lambda: torch.rand_like(ONES.double()), 1 / 2, 1 / 12),
    "randn": (lambda: torch.randn(size=(100, 200)), 0, 1),
    "randn_like": (lambda: torch.randn_like(ONES), 0, 1),
    "randint": (lambda: torch.randint(5, (100, 200)), 2, 2),
    "randint, two bounds": (lambda: torch.randint(-1, 4, (100, 200)), 1, 2),
    "randint_like": (lambda: torch.randint_like(ONES, 1, 6), 3, 2),
    "randperm": (lambda: torch.randperm(20_000), 9999.5, (20_000**2 - 1) / 12),
    "normal": (lambda: torch.normal(2.0, 3.0, (100, 200)), 2, 9),
    "normal of tensors": (lambda: torch.normal(2 * ONES, 3 * ONES), 2, 9),
    "bernoulli": (lambda: torch.bernoulli(0.2 * ONES), 0.2, 0.16),
    "bernoulli with p": (lambda: torch.bernoulli(ONES, 0.2), 0.2, 0.16),
    "x.bernoulli": (lambda: (0.2 * ONES).bernoulli(), 0.2, 0.16),
    "bernoulli_": (lambda: torch.empty(100, 200).bernoulli_(0.2), 0.2, 0.16),
    "bernoulli_ of a tensor": (lambda: torch.empty_like(ONES).bernoulli_(0.2 * ONES), 0.2, 0.16),
    "uniform_": (lambda: ONES.new_empty(100, 200).uniform_(-1, 3), 1, 16 / 12),
    "normal_": (lambda: torch.empty(100, 200).normal_(1, 2), 1, 4),
    "normal_, with a format": (
        lambda: torch.empty_like(ONES, memory_format=torch.contiguous_format, requires_grad=False).normal_(1, 2),
        1,
        4,
    ),
    "exponential_": (lambda: torch.empty(100, 200).exponential_(2), 1 / 2, 1 / 4),
}


@pytest.mark.parametrize("name", LAWS)
def test_numbers_have_the_law_of_torchs_operation(name: str) -> None:
    """Mean and variance, up to 6 standard deviations of a bell curve; type and shape as without the mode."""
    function, mean, variance = LAWS[name]
    found, plain = drawn(function), function()
    assert (found.dtype, found.shape) == (plain.dtype, plain.shape)
    assert abs(float(found.double().mean()) - mean) < 6 * math.sqrt(variance / found.numel())
    assert float(found.double().var()) == pytest.approx(variance, rel=0.1)


def test_randperm_is_a_permutation() -> None:
    assert sorted(drawn(torch.randperm, 100).tolist()) == list(range(100))


def test_slopes_of_rrelu_are_between_its_bounds() -> None:
    found = drawn(F.rrelu, torch.tensor([-1.0, 2.0]).repeat(5000), 0.2, 0.4, True)
    assert torch.equal(found[1::2], torch.full((5000,), 2.0))
    assert -0.4 <= float(found[::2].min()) < -0.39 < -0.21 < float(found[::2].max()) <= -0.2


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_attention_without_dropped_weights_is_torchs(mask: str) -> None:
    """A rate of 1e-9 drops nothing here, and takes the explicit softmax."""
    q, k, v = torch.randn(3, 2, 4, 5, 6, dtype=torch.float64)
    bars = torch.rand(5, 5) < 0.7
    bars[:, 0] = True
    added = torch.randn(5, 5, dtype=torch.float64)
    masks: dict[str, dict[str, Any]] = {
        "none": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": bars},
        "float": {"attn_mask": added},
    }
    options = masks[mask]
    found = drawn(F.scaled_dot_product_attention, q, k, v, dropout_p=1e-9, **options)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, k, v, **options))


def test_grouped_attention_repeats_keys_and_values() -> None:
    q, k, v = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4)
    found = drawn(F.scaled_dot_product_attention, q, k, v, dropout_p=1e-9, enable_gqa=True)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_split_at_their_dropout(kind: type[nn.Module], first: bool, both: bool) -> None:
    """Three layers against three networks of one layer, with the dropped outputs of one as the input of the next."""
    whole = kind(3, 4, num_layers=3, dropout=0.4, batch_first=first, bidirectional=both).double()
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    with Layers(numbers()):
        found, states = whole(x)
    rows, ends = x, []
    for layer in range(3):
        one = kind(rows.shape[-1], 4, batch_first=first, bidirectional=both).double()
        one.load_state_dict({
            name.replace(f"_l{layer}", "_l0"): t for name, t in whole.state_dict().items() if f"_l{layer}" in name
        })  # fmt: skip
        rows, last = one(rows)
        ends.append(last if isinstance(last, tuple) else (last,))
        if layer < 2:
            rows = rows * (numbers().take(rows.numel(), layer, 0).view(rows.shape) >= 0.4) / 0.6
    torch.testing.assert_close(found, rows)
    for one, parts in zip(states if isinstance(states, tuple) else (states,), zip(*ends, strict=True), strict=True):
        torch.testing.assert_close(one, torch.cat(parts))


def test_packed_sequences_are_split_too() -> None:
    rnn = nn.GRU(3, 4, num_layers=2, dropout=0.5)
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 3), torch.randn(2, 3)])
    by = Recorded(numbers().root, torch.tensor(0))
    with Layers(by):
        out, _ = rnn(packed)
    assert by.sizes == [(6 * 4, 0, 0)]
    assert out.data.shape == (6, 4)


# How a network draws.


class Drawing(nn.Module):
    """A linear network that adds what a function draws."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.draw = nn.Linear(6, 3), draw
        self.own = np.random.default_rng(3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.linear(x)
        return scores + self.draw(scores) if self.training else scores


OTHERS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "poisson": (lambda x: torch.poisson(torch.ones_like(x)), "torch.poisson"),
    "multinomial": (lambda x: torch.multinomial(x.softmax(1), 3).to(x.dtype), "torch.multinomial"),
    "gumbel": (lambda x: F.gumbel_softmax(x), "torch.nn.functional.gumbel_softmax"),
    "generator": (lambda x: torch.rand(3, generator=torch.default_generator), "torch.rand"),
    "numpy": (lambda x: x * float(np.random.rand()), "numpy.random"),
    "python": (lambda x: x * random.random(), "Python's random"),
}


def small(model: Callable[[], nn.Module], samples: int = 12) -> Task:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(samples, 6, generator=generator), torch.arange(samples) % 3
    return Task.of(model, (x, y), (x, y), clients=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n if n in ("multinomial", "numpy") else pytest.param(n, marks=pytest.mark.slow) for n in OTHERS]
)
def test_other_ways_to_draw_are_named_and_only_slow_executors_accept_them(name: str) -> None:
    draw, operation = OTHERS[name]
    task = small(lambda: Drawing(draw))
    for executor in ("stacked", "compiled"):
        with pytest.raises(ConfigError, match=f"the network draws random numbers by {operation}: it cannot be stacked"):
            simulate(fedavg(), task, rounds=1, executor=executor)
    chosen = simulate(fedavg().with_parts(solver=SGD(steps=1)), task, rounds=1, executor="auto")
    assert set(chosen.about["left_out"]) == {"stacked", "compiled"}
    assert all(operation in reason for reason in chosen.about["left_out"].values())
    said = executor_text(chosen.summary())
    assert f"without stacked, compiled: the network draws random numbers by {operation}" in said


def test_a_generator_of_the_networks_own_is_named() -> None:
    def draw(module: Drawing) -> Callable[[Tensor], Tensor]:
        return lambda x: x * float(module.own.random())

    module = Drawing(lambda x: x)
    module.draw = draw(module)
    _, found = trial(module, torch.device("cpu"), lambda: module(torch.ones(2, 6)))
    assert found == (False, "the generator own")


class Twice(nn.Sequential):
    """Layers whose forward pass is repeated in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return scores


class Attention(nn.Module):
    """Attention of a sample's six numbers among each other, without dropout."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.view(-1, 1, 3, 2)
        return F.scaled_dot_product_attention(heads, heads, heads).reshape(x.shape)


def test_attention_without_dropout_draws_nothing_in_the_backward_pass() -> None:
    """Torch marks its operations as random, and on a GPU their gradients too."""
    made = Objective(small(lambda: Twice(nn.Linear(6, 6), Attention(), nn.Linear(6, 3))), "cpu", key(0))
    assert made.random == (False, "")


def test_a_checkpoint_with_dropout_trains_with_torchs_generator() -> None:
    """Its layers run twice, and must draw the same numbers both times, which torch's checkpoint arranges."""
    objective = Objective(small(lambda: Twice(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3))), "cpu", key(0))
    assert not objective.random.layers
    assert "torch.utils.checkpoint" in objective.random.other


@pytest.mark.parametrize(
    ("model", "draws_numbers"),
    [
        (lambda: nn.Linear(6, 3), False),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.0)), False),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.1)), True),
        (lambda: Drawing(lambda x: torch.rand_like(x)), True),
    ],
)
def test_a_network_is_random_if_it_draws(model: Callable[[], nn.Module], draws_numbers: bool) -> None:
    assert Objective(small(model), "cpu", key(0)).random == (draws_numbers, "")


def test_attention_with_dropout_is_torchs_where_it_drops_nothing() -> None:
    layer = nn.MultiheadAttention(8, 2, dropout=1e-9, batch_first=True).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    wanted = layer(x, x, x, need_weights=False)[0]
    found = stretch(layer)(x, x, x, need_weights=False)[0]
    torch.testing.assert_close(found, wanted)
    assert F.multi_head_attention_forward not in RULES
