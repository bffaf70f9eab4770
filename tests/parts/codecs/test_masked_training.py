"""Training through a codec with a straight-through estimator, and training of mask scores."""

from functools import partial
from typing import Any

import pytest
import torch

from gossamer import (
    Adam,
    Average,
    MaskAverage,
    MaskedNoise,
    OnWeights,
    Params,
    PruningSGD,
    SampledMask,
    Supermask,
    fedavg,
    fedavg_pruned,
    fedmrn,
    fedpm,
    simulate,
)
from gossamer.core.codec import Coding
from gossamer.core.exchange import GLOBAL, Arrival
from gossamer.core.random import draws, fold, key, tensor, uniform
from gossamer.core.random import streams as random
from gossamer.core.types import Clock, Layout, Part, State
from gossamer.engines.run import CodecWarning
from gossamer.parts.codecs.masked_noise import DenseMaskedNoise, clipped, probability
from gossamer.testing import check_codec, check_server, check_solver, tiny_task
from helpers.gradients import Named
from helpers.vectors import on

KEY, CPU = key(9), torch.device("cpu")
N = 40_000
LEARNED = partial(MaskedNoise, learn_masks=True)


def count(number: int) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.int64)


# Draws by step


def test_draws_at_step_0_are_the_keys_uniform_noise() -> None:
    assert torch.equal(draws(tensor(KEY), count(0), 1001), uniform(KEY, 1001))


def test_draws_of_a_step_are_those_of_the_tensor_operations() -> None:
    words = random._philox(torch.arange(3) + 1, tensor(KEY), count(77), 0, 0)
    slow = random._fractions(random._pairs(words)[:21] >> 8, 24, torch.float32)
    assert torch.equal(draws(tensor(KEY), count(77), 21), slow)


def test_draws_can_be_stacked() -> None:
    keys, steps = torch.stack([tensor(key(n)) for n in range(3)]), torch.tensor([4, 5, 6])
    stacked = torch.vmap(lambda k, s: draws(k, s, 9))(keys, steps)
    assert torch.equal(stacked, torch.stack([draws(k, s, 9) for k, s in zip(keys, steps, strict=True)]))
    one_key = torch.vmap(lambda s: draws(keys[0], s, 9))(steps)
    assert torch.equal(one_key[2], draws(keys[0], steps[2], 9))


# The straight-through estimator


def surrogate_of(codec: MaskedNoise, u: torch.Tensor, step_index: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the forward pass uses in place of ``u``, and the noise."""
    layout = Layout.of({"w": u})
    context = codec.surrogate_context(Coding(layout, KEY), steps, CPU)
    return codec.surrogate({"w": u}, context, count(step_index))["w"], context["noise"]["w"]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("step_index", [0, 4, 9])
def test_progressive_stochastic_masking_is_as_written(signed: bool, step_index: int) -> None:
    """With u = n / 4 everywhere: n with probability p q, the other value with p (1 - q), else u itself."""
    codec = MaskedNoise(signed, "bernoulli", 0.01)
    noise = codec.surrogate_context(Coding(Layout.of({"w": torch.zeros(N)}), KEY), 10, CPU)["noise"]["w"]
    surrogate, _ = surrogate_of(codec, noise / 4, step_index, 10)
    p, q = (step_index + 1) / 10, 0.625 if signed else 0.25
    low = -noise if signed else torch.zeros(N)
    for value, chance in ((noise, p * q), (low, p * (1 - q)), (noise / 4, 1 - p)):
        share = torch.isclose(surrogate, value, rtol=1e-6, atol=0).float().mean().item()
        assert share == pytest.approx(chance, abs=4 * (chance * (1 - chance) / N) ** 0.5 + 1e-9)


@pytest.mark.parametrize("signed", [False, True])
def test_the_surrogate_is_the_clipped_change_on_average(signed: bool) -> None:
    codec, u = MaskedNoise(signed, alpha=0.01), 0.02 * (uniform(fold(KEY, 1), N) - 0.5)
    mean = torch.stack([surrogate_of(codec, u, step_index, 400)[0] for step_index in range(400)]).mean(0)
    wanted = clipped(u, surrogate_of(codec, u, 0, 400)[1], signed)
    assert (mean - wanted).abs().mean() < 4 * 0.01 / 400**0.5


def test_the_last_step_masks_everything_and_every_step_draws_new_noise() -> None:
    codec, u = MaskedNoise(alpha=0.01), 0.01 * uniform(fold(KEY, 2), N)
    last, noise = surrogate_of(codec, u, 9, 10)
    assert bool(((last == 0) | (last == noise)).all())
    assert not torch.equal(last, surrogate_of(MaskedNoise(alpha=0.01, progressive=False), u, 8, 10)[0])


def test_without_stochastic_masking_signs_decide() -> None:
    u = 0.01 * (uniform(fold(KEY, 3), N) - 0.5)
    surrogate, noise = surrogate_of(MaskedNoise(alpha=0.01, stochastic=False, progressive=False), u, 0, 10)
    assert torch.equal(surrogate, torch.where(u.sign() == noise.sign(), noise, 0))


def test_the_change_itself_is_never_clipped() -> None:
    """The straight-through gradient goes on moving u outside of what the noise spans."""
    codec, u = MaskedNoise(alpha=0.01), torch.full((N,), 5.0)
    surrogate, noise = surrogate_of(codec, u, 0, 100)
    assert bool(((surrogate == 0) | (surrogate == noise)).all()), "the forward pass is clipped"
    method = fedavg(lr=5.0, steps=20).with_parts(codec=OnWeights(MaskedNoise(noise="bernoulli", alpha=1e-4)))
    with pytest.warns(CodecWarning, match="clipped"):
        result = simulate(method, tiny_task(), rounds=1)
    assert result.metrics[0]["failures"] == []


# Magnitudes from the updates


@pytest.mark.parametrize("signed", [False, True])
def test_the_surrogate_has_the_scale_that_is_sent(signed: bool) -> None:
    """In the last step all entries are masked: 0 or the noise of the message, or both signs of it."""
    codec, u = LEARNED(signed), {"a": 0.01 * uniform(fold(KEY, 5), 500), "b": 3 * uniform(fold(KEY, 6), 300) - 1}
    layout = Layout.of(u)
    a, rest, b, end = codec.encode(layout.flatten(u), Coding(layout, KEY))["scales"].float()
    scales = (torch.cat([a.repeat(256), rest.repeat(244)]), torch.cat([b.repeat(256), end.repeat(44)]))
    noise = layout.unflatten(codec.draw(Coding(layout, KEY)))
    context = codec.surrogate_context(Coding(layout, KEY), 10, CPU)
    last = codec.surrogate(u, context, count(9))
    for (name, value), scale in zip(last.items(), scales, strict=True):
        n = noise[name] * scale
        low = -n if signed else torch.zeros_like(n)
        assert bool((torch.isclose(value, n, rtol=2**-8) | torch.isclose(value, low, rtol=2**-8, atol=0)).all())


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("size", [1e-18, 1e-6, 1.0, 1e6, 1e18])
def test_the_surrogate_is_as_long_as_the_update(signed: bool, size: float) -> None:
    codec, u = LEARNED(signed), size * (uniform(fold(KEY, 7), N) - 0.5)
    for step in (0, 9):
        surrogate, _ = surrogate_of(codec, u, step, 10)
        own, other = u.double(), surrogate.double()  # of which the squares neither underflow nor overflow
        assert float(other @ own / (own @ own)) == pytest.approx(1, abs=0.05)


def test_an_update_of_zeros_has_a_surrogate_of_zeros() -> None:
    for signed in (False, True):
        surrogate, _ = surrogate_of(LEARNED(signed), torch.zeros(50), 9, 10)
        assert float(surrogate.abs().max()) < 1e-20


def test_entries_that_a_client_does_not_hold_change_no_scale() -> None:
    """The layout of a mask: a client trains every third entry of a tensor. Blocks would be those of all entries."""
    u, keep = 0.01 * uniform(fold(KEY, 8), 600), torch.arange(600) % 3 == 0
    layout, codec = Layout.of({"w": u}, {"w": keep.float()}), LEARNED(progressive=False, block=None)
    held = u * keep
    scale = codec.encode(layout.flatten({"w": held}), Coding(layout, KEY))["scales"]
    found = codec.surrogate({"w": held}, codec.surrogate_context(Coding(layout, KEY), 10, CPU), count(0))["w"]
    noise = layout.unflatten(codec.draw(Coding(layout, KEY)))["w"] * scale
    assert torch.allclose(found[keep & (found != 0)], noise[keep & (found != 0)], rtol=2**-8)


def test_training_with_measured_noise_does_not_need_a_magnitude() -> None:
    """Where a fixed magnitude is a hundred times too small, the measured one learns as FedAvg does."""
    task = tiny_task()
    auto, plain = (simulate(each(lr=0.3), task, rounds=8, executor="one-by-one") for each in (fedmrn, fedavg))
    with pytest.warns(CodecWarning, match=r"Use alpha=auto"):
        small = simulate(fedmrn(lr=0.3, alpha=1e-4), task, rounds=8, executor="one-by-one")
    assert auto.accuracy >= plain.accuracy - 0.1
    assert small.accuracy < plain.accuracy - 0.2


def test_the_record_has_the_share_of_clipped_entries_and_a_run_warns_once() -> None:
    result = simulate(fedmrn(), tiny_task(), rounds=2)
    assert all(0 < record["figures"]["clipped"] < 0.5 for record in result.metrics)
    with pytest.warns(CodecWarning) as shown:
        simulate(fedmrn(alpha=1e-6), tiny_task(), rounds=3, executor="one-by-one")
    assert len(shown) == 1


@pytest.mark.parametrize(("block", "bits"), [(1, "16"), (31, "0.52")])
def test_a_run_warns_of_blocks_whose_scales_outweigh_the_masks(block: int, bits: str) -> None:
    with pytest.warns(CodecWarning, match=f"block={block} is small: the scales take {bits} bits per weight") as shown:
        simulate(fedmrn(block=block), tiny_task(), rounds=2, executor="one-by-one")
    assert len(shown) == 1
    simulate(fedmrn(block=32), tiny_task(), rounds=1)
    simulate(fedmrn(block=1, alpha=0.1), tiny_task(), rounds=1)  # without scales


# The authors' code for Shakespeare


def test_with_a_trained_base_the_dense_sum_of_update_and_masked_noise_is_sent() -> None:
    masks, x = MaskedNoise(alpha=0.01), 0.01 * (uniform(fold(KEY, 9), 300) - 0.5)
    codec, layout = DenseMaskedNoise(masks), Layout.of({"w": x})
    check_codec(codec)
    payload = codec.encode(x, Coding(layout, KEY))
    assert payload["values"].numel() == 300
    assert torch.equal(
        codec.decode(payload, Coding(layout, KEY)),
        x + masks.decode(masks.encode(x, Coding(layout, KEY)), Coding(layout, KEY)),
    )
    contexts = [each.surrogate_context(Coding(layout, KEY), 3, CPU) for each in (codec, masks)]
    found, masked = (
        each.surrogate({"w": x}, context, count(1))["w"] for each, context in zip((codec, masks), contexts, strict=True)
    )
    assert torch.equal(found, x + masked)
    magnitudes: list[Any] = [0.003, "auto"]
    for alpha in magnitudes:
        wanted = OnWeights(DenseMaskedNoise(MaskedNoise(alpha=alpha, learn_masks=True)))
        assert fedmrn(train_base=True, alpha=alpha).codec == wanted


def test_probability_and_clip_agree() -> None:
    u, n = uniform(KEY, 1000) - 0.5, uniform(fold(KEY, 4), 1000) - 0.5
    assert torch.allclose(probability(u, n, False) * n, clipped(u, n, False), atol=1e-7)
    assert torch.allclose((2 * probability(u, n, True) - 1) * n, clipped(u, n, True), atol=1e-6)


@pytest.mark.parametrize(("alpha", "learns"), [("auto", False), (0.01, True)])
def test_masks_are_learned_by_default_with_a_fixed_magnitude_only(alpha: Any, learns: bool) -> None:
    layout = Layout.of({"w": torch.zeros(9)})
    found = [
        bool(MaskedNoise(alpha=alpha, learn_masks=asked).surrogate_context(Coding(layout, KEY), 3, CPU))
        for asked in (None, True, False)
    ]
    assert found == [learns, True, False]


def test_the_ablations_differ_from_each_other() -> None:
    task = tiny_task()
    switches: list[dict[str, Any]] = [{}, {"stochastic": False}, {"progressive": False}, {"learn_masks": False}]
    losses = [simulate(fedmrn(alpha=0.05, **s), task, rounds=2).metrics[-1]["loss"] for s in switches]
    assert len(set(losses)) == len(switches)


# FedPM


def scores() -> Params:
    return {"w": torch.linspace(-3, 3, 12).view(3, 4), "b": torch.tensor([1.0, 2.0, 3.0])}


def test_the_supermask_keeps_weights_with_the_probability_of_their_scores() -> None:
    built = {"w": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), "b": torch.zeros(3)}
    parametrization = Supermask(scale=2.0)
    context = parametrization.context(built, KEY)
    assert torch.equal(context["on"]["w"], built["w"].sign())  # 2 / sqrt(4) = 1
    kept = (
        torch.stack([parametrization.network(scores(), context, count(t))["w"] != 0 for t in range(2000)])
        .float()
        .mean(0)
    )
    assert torch.allclose(kept, torch.sigmoid(scores()["w"]), atol=0.05)
    assert torch.equal(parametrization.network(scores(), context, count(0))["b"], scores()["b"])
    assert torch.allclose(
        parametrization.deploy(scores(), built)["w"], built["w"].sign() * torch.sigmoid(scores()["w"])
    )


def test_the_gradient_goes_straight_through_the_draw() -> None:
    """As if the network's weights were frozen weights times sigmoid(scores)."""
    built = {"w": torch.randn(3, 4, generator=torch.Generator().manual_seed(1))}
    parametrization, s = Supermask(), {"w": scores()["w"].clone().requires_grad_()}
    weights, grads = parametrization.frozen(built)["on"]["w"] * torch.sigmoid(s["w"]), torch.randn(3, 4)
    (wanted,) = torch.autograd.grad(weights, s["w"], grads)
    found = parametrization.pull({"w": grads}, {"w": s["w"].detach()}, parametrization.context(built, KEY))["w"]
    assert torch.allclose(found, wanted, atol=1e-6)


def test_scores_are_the_logit_of_the_mean_mask() -> None:
    server = MaskAverage("uniform")
    check_server(server)
    state = server.init(scores())
    acc = server.begin(state, {})
    for client in range(4):
        mask = {"w": (torch.arange(12).view(3, 4) % 4 <= client).float(), "b": torch.full((3,), float(client))}
        acc = server.fold(acc, Arrival.of(client, Part(), mask, 1.0))
    after = server.download(server.finish(state, acc, Clock(0, 1, -1)), GLOBAL).models[0]
    share = torch.tensor([1.0, 0.75, 0.5, 0.25])
    assert torch.allclose(torch.sigmoid(after["w"][0]), 0.01 + 0.98 * share, atol=1e-6)
    assert after["b"].tolist() == [1.5, 1.5, 1.5]


def test_a_sampled_mask_keeps_the_contract() -> None:
    check_codec(SampledMask())


def test_fedpm_learns() -> None:
    result = simulate(fedpm(lr=0.3), tiny_task(), rounds=8)
    assert result.accuracy > 0.6
    assert result.metrics[-1]["bytes_up"]["codec.mask"] > 0


# FedSparsify and solvers


def test_a_round_ends_with_the_sparsity_asked_for() -> None:
    start = {"w": torch.randn(100, 10), "b": torch.ones(100)}
    solver, layout, vector = on(PruningSGD(sparsity=0.9), start)
    carry, shares = solver.begin(vector, {}, {}, 4), []
    gradient = Named(layout, lambda at: {n: torch.full_like(t, 0.01) for n, t in at.items()})
    for _ in range(4):
        carry = solver.step(gradient, vector, carry, {"rate": 0.1})
        shares.append((layout.unflatten(carry["params"])["w"] == 0).float().mean().item())
    assert shares == pytest.approx([0.9 * (1 - (1 - t / 4) ** 3) for t in (1, 2, 3, 4)], abs=0.001)
    after = layout.unflatten(carry["params"])
    assert bool(after["b"].all())
    largest = start["w"].abs().flatten().topk(50).values.min()
    assert bool((after["w"][start["w"].abs() > largest] != 0).all())


def test_pruning_within_a_round_sends_what_is_left() -> None:
    result = simulate(fedavg_pruned(sparsity=0.8), tiny_task(clients=4), rounds=2, per_round=4)
    weights = sum(t.numel() for t in result.model.parameters() if t.dim() > 1)
    sent = result.metrics[-1]["bytes_up"]["codec.values"] / 4 / 4
    assert sent == pytest.approx(0.2 * weights, abs=1)


def test_adam_is_torchs() -> None:
    start = {"w": torch.randn(5, 3, dtype=torch.float64)}
    solver, layout, vector = on(Adam(0.05), start)
    weight = start["w"].clone().requires_grad_()
    optimiser = torch.optim.Adam([weight], lr=0.05)
    carry: State = solver.begin(vector, {}, {}, 7)
    cubes = Named(layout, lambda at: {"w": at["w"] ** 3 - 1})
    for _ in range(7):
        weight.grad = weight.detach() ** 3 - 1
        optimiser.step()
        carry = solver.step(cubes, vector, carry, {"rate": 0.05})
    assert torch.allclose(layout.unflatten(carry["params"])["w"], weight.detach(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("solver", [Adam(0.1), PruningSGD(0.1, sparsity=0.5), PruningSGD(0.1, momentum=0.9)], ids=repr)
def test_solvers_keep_their_contract(solver: Adam | PruningSGD) -> None:
    check_solver(solver)


def test_an_average_of_models_is_fedavg() -> None:
    """Sending models and averaging them is sending changes and averaging those."""
    task = tiny_task(dtype=torch.float64)
    by_change = simulate(fedavg(), task, rounds=3).model.state_dict()
    by_model = simulate(fedavg().with_parts(send="model", server=Average()), task, rounds=3).model.state_dict()
    assert all(torch.allclose(by_change[n], by_model[n], atol=1e-12) for n in by_change)
