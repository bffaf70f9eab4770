"""The model as a function of its tensors: gradients, BatchNorm, what travels, operations counted."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer import ConfigError, LoRA, Task, fedavg, simulate
from gossamer.core.random import key
from gossamer.core.types import Flops
from gossamer.tasks.batch_norms import OfBatch
from gossamer.tasks.nets import build
from gossamer.tasks.nets.text import GPTSize
from gossamer.tasks.objective import Objective

KEY = key(3)


def images(n: int, side: int = 16) -> tuple[Tensor, Tensor]:
    torch.manual_seed(n)
    return torch.randn(n, 1, side, side), torch.arange(n) % 3


def objective(model: object, x: Tensor, y: Tensor) -> Objective:
    return Objective(Task.of(model, (x, y), (x, y), clients=2), "cpu", KEY)  # type: ignore[arg-type]


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))


def test_gradients_equal_backward_on_the_module_itself() -> None:
    x, y = images(8)
    ours = objective(lambda: build("cnn4", (1, 16, 16), 3), x, y)
    params = {**ours.initial(), **ours.local()}
    loss, grads, buffers = ours.gradient(params, x, y)
    module = ours.build().train()
    theirs = nn.functional.cross_entropy(module(x), y)
    theirs.backward()
    assert loss.item() == theirs.item()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(grads[name], parameter.grad)
    statistics = {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}
    assert buffers.keys() == statistics.keys()
    for name, buffer in statistics.items():
        assert torch.equal(buffers[name], buffer), f"{name} was updated otherwise than by the module"


class Tied(nn.Module):
    """Two layers that share one weight, behind an LSTM, which keeps a second list of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 5, batch_first=True)
        self.first, self.second, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.lstm(x[:, 0])[0][:, -1]
        out: Tensor = self.last(self.second(torch.relu(self.first(hidden))))
        return out


def test_tied_weights_and_recurrent_layers_follow_the_tensors_given() -> None:
    x, y = images(6)
    ours = objective(Tied, x, y)
    assert "second.weight" not in ours.initial()
    ours.gradient(ours.initial(), x, y)
    moved = {name: tensor + 0.1 for name, tensor in ours.initial().items()}
    _, grads, _ = ours.gradient(moved, x, y)
    module = ours.build(moved)
    nn.functional.cross_entropy(module(x), y).backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(grads[name], parameter.grad, rtol=0, atol=0)


def test_a_gradient_leaves_its_input_as_it_was() -> None:
    x, y = images(8)
    ours = objective(normed, x, y)
    params = {**ours.initial(), **ours.local()}
    before = {name: tensor.clone() for name, tensor in params.items()}
    ours.gradient(params, x, y)
    assert all(torch.equal(params[name], before[name]) for name in params)


def test_what_travels_is_what_is_trained_and_running_statistics() -> None:
    x, y = images(8)

    def half_frozen() -> nn.Module:
        module = normed()
        module.get_parameter("1.weight").requires_grad_(False)
        return module

    ours = objective(half_frozen, x, y)
    assert set(ours.initial()) == {
        "1.bias", "2.weight", "2.bias", "2.running_mean", "2.running_var", "4.weight", "4.bias",
    }  # fmt: skip
    assert not ours.local()


class Counting(nn.BatchNorm2d):
    """Counts on its own, before it normalizes."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return nn.functional.batch_norm(x, None, None, self.weight, self.bias, training=True)


def test_batches_are_counted_where_a_layer_or_its_statistics_depend_on_their_number() -> None:
    x, y = images(8)

    def own_count() -> nn.Module:
        module = normed()
        module[2] = Counting(module[2].num_features)  # type: ignore[operator, index]
        return module

    ours = objective(own_count, x, y)
    assert set(ours.local()) == {"2.num_batches_tracked"}
    _, _, buffers = ours.gradient({**ours.initial(), **ours.local()}, x, y)
    assert int(buffers["2.num_batches_tracked"]) == 1

    def plain_mean() -> nn.Module:
        module = normed()
        module.get_submodule("2").momentum = None  # type: ignore[assignment]
        return module

    assert set(objective(plain_mean, x, y).local()) == {"2.num_batches_tracked"}


def test_one_image_is_normalised_by_its_own_pixels_as_torch_does() -> None:
    x, y = images(8)

    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 14 * 14, 3))

    ours = objective(network, x, y)
    params = {**ours.initial(), **ours.local()}
    module = ours.build(ours.initial()).train()
    loss, grads, buffers = ours.gradient(params, x[:1], y[:1])
    wanted = nn.functional.cross_entropy(module(x[:1]), y[:1])
    assert torch.equal(loss, wanted.detach())
    wanted.backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(grads[name], parameter.grad)
    assert torch.equal(buffers["1.running_var"], module.get_buffer("1.running_var"))


def test_a_single_value_a_channel_uses_running_statistics_and_leaves_them() -> None:
    x, y = images(8)

    def plain() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(256, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    ours = objective(plain, x, y)
    params = {**ours.initial(), **ours.local()}
    params["2.running_mean"] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    loss, _, buffers = ours.gradient(params, x[:1], y[:1])
    still = ours.evaluate(params, x[:1], y[:1]).loss
    assert loss.item() == pytest.approx(still)
    assert torch.equal(buffers["2.running_mean"], params["2.running_mean"])
    by_itself = ours.gradient(params, x, y)[2]["2.running_mean"]
    assert not torch.equal(by_itself, params["2.running_mean"]), "the next batch is normalised by itself again"


def test_without_running_statistics_a_batch_of_one_needs_more_than_one_value_a_channel() -> None:
    x, y = images(4)
    untracked = nn.BatchNorm2d(1, track_running_stats=False)
    ours = objective(lambda: nn.Sequential(untracked, nn.Flatten(), nn.Linear(256, 3)), x, y)
    loss, _, _ = ours.gradient(ours.initial(), x[:1], y[:1])
    assert torch.isfinite(loss)


def test_the_same_seed_builds_the_same_model_and_leaves_torch_alone() -> None:
    x, y = images(4)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first, second = (objective(normed, x, y).initial() for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_operations_of_an_mlp_are_those_of_the_formula() -> None:
    """Forward 2 b in out a layer; backward the same for the weights, and again for all inputs but the first."""
    x, y = images(5, side=28)
    ours = objective(lambda: build("mlp", (1, 28, 28), 10), x, y)
    layers = [(784, 200), (200, 200), (200, 10)]
    forward = sum(2 * 5 * a * b for a, b in layers)
    done = 3 * forward - 2 * 5 * 784 * 200
    assert ours.flops(ours.initial(), torch.arange(5)) == Flops(done, done)


def test_operations_of_attention_are_those_of_its_products() -> None:
    """Per layer: 12 d^2 weights, and two products of T x T attention weights with d channels."""
    layers, width, length, samples, classes = 2, 8, 6, 3, 5
    x = torch.arange(samples * length).view(samples, length) % classes
    task = Task.of(lambda: GPTSize(layers, width, 2).build(torch.Size((length,)), classes), (x, x), (x, x), clients=1)
    ours = Objective(task, "cpu", key(0))
    weights = samples * length * (layers * 12 * width**2 + width * classes)
    attention = samples * layers * 2 * length**2 * width
    assert ours.flops(ours.initial(), torch.arange(samples)).done == 3 * 2 * (weights + attention)
    assert ours.forward_flops(ours.initial(), torch.arange(samples)) == 2 * (weights + attention)


def test_operations_of_a_recurrent_layer_are_those_of_its_products() -> None:
    """Four gates of 5 from 16 inputs and 5 states, for 4 samples of 16 steps; nothing goes back to the inputs."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.last = nn.LSTM(16, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.last(self.lstm(x[:, 0])[0][:, -1])
            return scores

    ours, rows = objective(Recurrent, *images(4)), torch.arange(4)
    inputs, states, scores = (2 * 4 * n for n in (16 * 20 * 16, 16 * 20 * 5, 5 * 3))
    step = states // 16  # the first state needs no gradient
    assert ours.forward_flops(ours.initial(), rows) == inputs + states + scores
    assert ours.flops(ours.initial(), rows).done == 2 * inputs + 3 * states - step + 3 * scores


def test_operations_of_one_sample_are_the_same_before_and_after_training() -> None:
    x, y = images(8)
    before, after = (objective(lambda: build("mlp", (1, 16, 16), 3), x, y) for _ in range(2))
    after.gradient({**after.initial(), **after.local()}, x[:1], y[:1])
    counted = before.flops(before.initial(), torch.arange(1))
    assert counted == after.flops(after.initial(), torch.arange(1))
    assert 4 * counted.done == before.flops(before.initial(), torch.arange(4)).done


@pytest.mark.parametrize("adapter", [{}, {"merges": True}, {"train": "B"}])
def test_operations_of_frozen_weights_beside_a_masked_adapter_are_useful(adapter: dict[str, Any]) -> None:
    """A trained entry has three products per sample, a frozen one two; the first layer has one less of each."""
    torch.manual_seed(0)
    (x, y), lora = images(5, side=4), LoRA(rank=2, targets=("3",), also=("1.*",), **adapter)
    ours = objective(
        lambda: lora.adapt(nn.Sequential(nn.Flatten(), nn.Linear(16, 7), nn.ReLU(), nn.Linear(7, 3))), x, y
    )
    down, up = ((2 if adapter.get("train") == "B" else 3), 3)
    done = 2 * 5 * (2 * 16 * 7 + 2 * 7 * 3 + down * 2 * 7 + up * 3 * 2)
    masks = {
        name: (torch.rand(ours.initial()[name].shape) < 0.5).float() for name in ours.trained if "bias" not in name
    }
    lost = {name: int((mask == 0).sum()) for name, mask in masks.items()}
    saved = 2 * 5 * (2 * lost["1.weight"] + 3 * lost.get("3.lora_A", 0) + 3 * lost["3.lora_B"])
    assert ours.flops(ours.initial(), torch.arange(5), masks) == Flops(done, done - saved)


def test_frozen_weights_that_two_layers_share_count_in_both() -> None:
    """Only the second layer is adapted, and the weight has the name of the first."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.second(self.first(x.flatten(1)).relu())
            return output

    lora, (x, y) = LoRA(rank=1, targets=("second",), also=("first.bias",)), images(5, side=4)
    ours = objective(lambda: lora.adapt(Shared()), x, y)
    nothing = {name: torch.zeros(1, 16).view(ours.initial()[name].shape) for name in ("second.lora_A", "second.lora_B")}
    counted = ours.flops(ours.initial(), torch.arange(5), nothing)
    assert counted.done - counted.useful == 2 * 5 * 3 * (16 + 16)


def test_a_mask_of_a_tensor_beside_layers_leaves_their_operations() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.layer = nn.Parameter(torch.zeros(1, 16)), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.layer(x.flatten(1) + self.places)
            return output

    ours = objective(Placed, *images(5, side=4))
    done = 3 * 2 * 5 * 16 * 3
    assert ours.flops(ours.initial(), torch.arange(5), {"places": torch.zeros(1, 16)}) == Flops(done, done)


def test_counting_operations_draws_no_randomness() -> None:
    x, y = images(4)
    ours = objective(normed, x, y)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    ours.flops(ours.initial(), torch.arange(4))
    assert torch.equal(torch.rand(1), expected)


def test_evaluation_in_chunks_equals_evaluation_at_once() -> None:
    x, y = images(10)
    ours = objective(normed, x, y)
    chunks = (replace(ours.task, statistics=OfBatch(size)) for size in (10, 3))
    whole, chunked = (Objective(task, "cpu", KEY).evaluate(ours.initial(), x, y) for task in chunks)
    assert whole.loss == pytest.approx(chunked.loss)
    assert whole.values() == chunked.values()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: nn.Linear(5, 3), "fails on a batch of samples of shape 1x16x16"),
        (lambda: nn.Flatten(), "no trainable parameters"),
        (lambda: "no module", "must build an nn.Module"),
    ],
)
def test_a_wrong_model_is_found_before_any_work(model: object, reason: str) -> None:
    x, y = images(4)
    with pytest.raises(ConfigError, match=reason):
        simulate(fedavg(), Task.of(model, (x, y), (x, y), clients=2), rounds=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_networks_of_half_precision_are_refused_once_and_by_name(dtype: torch.dtype) -> None:
    x, y = images(4)
    task = Task.of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 3)).to(dtype), (x, y), (x, y), clients=2)
    with pytest.raises(ConfigError, match=f"tensor 1.weight has type {dtype}: .* float32 or float64"):
        Objective(task, "cpu", KEY)
    with pytest.raises(ConfigError, match=r"test: x has type torch\.bfloat16"):
        Task.of(lambda: nn.Linear(256, 3), (x, y), (x.bfloat16(), y), clients=2)
    half = nn.BatchNorm2d(1).to(dtype)
    norm = Task.of(lambda: nn.Sequential(half, nn.Flatten(), nn.Linear(256, 3)), (x, y), (x, y), clients=2)
    with pytest.raises(ConfigError, match=f"tensor 0.weight has type {dtype}"):
        Objective(norm, "cpu", KEY)


def test_a_loss_that_is_not_one_number_is_refused() -> None:
    x, y = images(4)
    task = Task.of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 3)), (x, y), (x, y), clients=2,
                   loss=lambda out, y: out.sum() * torch.nan)  # fmt: skip
    ours = Objective(task, "cpu", KEY)
    with pytest.raises(ConfigError, match="one finite number"):
        ours.check(ours.initial())


def test_a_task_may_give_the_same_module_every_time_and_gets_it_back_as_it_was() -> None:
    x, y = images(6)
    module = nn.Sequential(nn.Flatten(), nn.Linear(256, 3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    ours = objective(lambda: module, x, y)
    assert all(torch.equal(ours.initial()[name], tensor) for name, tensor in before.items())
    simulate(fedavg(epochs=1), ours.task, rounds=1)
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in before.items())


def test_an_outline_takes_no_memory_and_has_all_shapes() -> None:
    x, y = images(4)
    ours = objective(normed, x, y)
    outline, initial = ours.outline(), ours.initial()
    assert {name: tensor.shape for name, tensor in outline.items()} == {n: t.shape for n, t in initial.items()}
    assert sum(tensor.untyped_storage().nbytes() for tensor in outline.values()) == 4 * len(outline)
