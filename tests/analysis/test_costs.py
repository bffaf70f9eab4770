"""Costs as FedSpa's paper counts them: its tables come out."""

import math
from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from gossamer.analysis.theory.costs import paper_bytes, paper_forward_flops, paper_round_flops
from gossamer.core.errors import ConfigError
from gossamer.parts.views.sparsity import erk, kept, uniform
from gossamer.tasks.nets import build

DENSITY, COHORT, EPOCHS, BATCH = 0.5, 10, 5, 128


class Setting(NamedTuple):
    """A network with its data set in the paper: 100 clients with equally many training samples."""

    model: str
    shape: tuple[int, ...]
    classes: int
    samples: int
    rounds: int


LENET = Setting("lenet5", (1, 28, 28), 26, 1248, 400)
VGG = Setting("vgg11", (3, 32, 32), 10, 500, 1000)
RESNET = Setting("resnet18-gn", (3, 32, 32), 100, 500, 1000)


@cache
def network(setting: Setting) -> nn.Module:
    return build(setting.model, setting.shape, setting.classes)


@cache
def sizes(setting: Setting) -> tuple[int, int]:
    """Entries of the whole network, and of one with half of them."""
    shapes = {name: parameter.shape for name, parameter in network(setting).named_parameters()}
    half = kept(shapes, erk(shapes, DENSITY))
    return sum(shape.numel() for shape in shapes.values()), sum(half.values())


@cache
def forward(setting: Setting) -> tuple[int, int]:
    """Operations of a forward pass of the whole network, and of one with half of its entries."""
    shapes = {name: parameter.shape for name, parameter in network(setting).named_parameters()}
    half, x = kept(shapes, erk(shapes, DENSITY)), torch.zeros(setting.shape)
    return paper_forward_flops(network(setting), x), paper_forward_flops(network(setting), x, half)


# The paper's figures.


@pytest.mark.parametrize(
    ("setting", "operations"), [(LENET, 4_617_246), (VGG, 305_690_634), (RESNET, 1_110_937_700)], ids=lambda s: str(s)
)
def test_the_forward_pass_of_the_papers_networks(setting: Setting, operations: int) -> None:
    assert forward(setting)[0] == operations


@pytest.mark.parametrize(
    ("setting", "whole", "half", "subsampling"),
    [(VGG, 738.5, 369.2, 553.9), (RESNET, 897.6, 448.8, 673.2), (LENET, 14.1, 7.0, 10.5)],
)
def test_the_communication_of_the_papers_table(setting: Setting, whole: float, half: float, subsampling: float) -> None:
    everything, some = sizes(setting)
    for down, up, gigabytes in (
        (everything, everything, whole),
        (some, some, half),
        (everything, everything / 2, subsampling),
    ):
        assert round(paper_bytes(down, up, COHORT, setting.rounds) / 1e9, 1) == gigabytes


@pytest.mark.parametrize(
    ("setting", "fedavg", "fedspa"), [(VGG, 229.3, 172.9), (RESNET, 833.2, 705.0), (LENET, 3.5, 2.0)]
)
def test_the_operations_of_the_papers_table(setting: Setting, fedavg: float, fedspa: float) -> None:
    dense, sparse = forward(setting)
    for operations, found in (
        (paper_round_flops(dense, setting.samples, EPOCHS), fedavg),
        (paper_round_flops(sparse, setting.samples, EPOCHS, BATCH, dense), fedspa),
    ):
        assert round(operations * COHORT * setting.rounds / 1e14, 1) == found


def test_the_operations_of_uniform_densities_in_table_4() -> None:
    """4.6 x 10^16 in the paper, which counts a batch of dense gradients for every client of a round."""
    shapes = {name: parameter.shape for name, parameter in network(RESNET).named_parameters()}
    half, dense = kept(shapes, uniform(shapes, DENSITY)), forward(RESNET)[0]
    sparse = paper_forward_flops(network(RESNET), torch.zeros(RESNET.shape), half)
    operations = paper_round_flops(sparse, RESNET.samples, EPOCHS, BATCH, dense) * COHORT * RESNET.rounds
    assert round(operations / 1e14, 1) == 459.3
    some = sum(half.values())
    assert round(paper_bytes(some, some, COHORT, RESNET.rounds) / 1e9, 1) == 448.8


# The rules.


def by_hand(layer: nn.Linear | nn.Conv1d | nn.Conv2d, positions: int, held: int) -> int:
    bias = 0 if layer.bias is None else len(layer.bias)
    return (2 * held + bias) * positions


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_charged_wherever_it_is_applied(bias: bool) -> None:
    conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=bias)
    assert paper_forward_flops(conv, torch.zeros(3, 7, 5)) == by_hand(conv, 4 * 3, 4 * 3 * 9)
    grouped = nn.Conv1d(4, 6, 3, groups=2, bias=bias)
    assert paper_forward_flops(grouped, torch.zeros(4, 9)) == by_hand(grouped, 7, 6 * 2 * 3)
    linear = nn.Linear(5, 3, bias=bias)
    assert paper_forward_flops(linear, torch.zeros(5)) == by_hand(linear, 1, 15)
    assert paper_forward_flops(linear, torch.zeros(6, 5)) == by_hand(linear, 6, 15)


def test_a_layer_that_is_used_twice_is_charged_twice_under_any_of_its_names() -> None:
    linear = nn.Linear(4, 4)
    once, twice = nn.Sequential(linear, nn.ReLU()), nn.Sequential(linear, nn.ReLU(), linear)
    x = torch.zeros(4)
    assert paper_forward_flops(twice, x) == 2 * paper_forward_flops(once, x)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    assert paper_forward_flops(tied, x, {"0.weight": 3}) == 2 * (2 * 3 + 4)


def test_norms_activations_and_pooling_are_free() -> None:
    conv = nn.Conv2d(1, 4, 3)
    others = [nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    x = torch.zeros(1, 6, 6)
    assert paper_forward_flops(nn.Sequential(conv, *others), x) == paper_forward_flops(conv, x)


def test_only_held_weights_are_charged_but_all_outputs_of_a_convolution_have_their_bias() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 3))
    held = {"0.weight": 7, "0.bias": 0, "2.weight": 11, "2.bias": 2}
    assert paper_forward_flops(module, torch.zeros(1, 5, 5), held) == (2 * 7 + 2) * 9 + 2 * 11 + 2


class Recurrent(nn.Module):
    """A linear layer that is applied at every step of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[:, 0])
        for column in x.unbind(1):
            state = torch.tanh(self.step(state) + column)
        return state


def test_counting_leaves_the_network_as_it_was() -> None:
    module = Recurrent().train()
    weight = module.step.weight.detach().clone()
    assert paper_forward_flops(module, torch.ones(5, 3)) == 5 * (2 * 9 + 3)
    assert module.training
    assert not module.step._forward_hooks
    assert torch.equal(module.step.weight, weight)
    norm = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1))
    paper_forward_flops(norm, torch.ones(1, 2, 2))
    assert int(norm.get_buffer("1.num_batches_tracked")) == 0


def test_static_norms_that_need_more_than_one_sample_are_counted_too() -> None:
    shape = (1, 8, 8)
    alike = paper_forward_flops(build("resnet18", shape, 10), torch.zeros(shape))
    # Stem, four stages of two blocks (3 x 3 convolutions, a 1 x 1 one where channels change), and the linear layer.
    stem, last = 2 * 9 * 64 * 64, 2 * 512 * 10 + 10
    stages = [(64, 64, 64), (64, 128, 16), (128, 256, 4), (256, 512, 1)]
    blocks = sum(2 * at * (9 * (a * b + 3 * b * b) + (a * b if a != b else 0)) for a, b, at in stages)
    assert alike == stem + blocks + last


def test_a_round_is_its_samples_and_a_screening() -> None:
    assert paper_round_flops(10, samples=7, epochs=2) == 3 * 2 * 7 * 10
    assert paper_round_flops(10, samples=7, epochs=2, screened=4, dense=100) == 3 * (2 * 7 * 10 + 4 * 100)


def test_every_held_value_is_four_bytes_each_way() -> None:
    assert paper_bytes(3, 2, clients=10, rounds=7) == 4 * 5 * 70
    assert math.isclose(
        paper_bytes(9_231_114, 9_231_114 / 2, 10, 1000), 0.75 * paper_bytes(9_231_114, 9_231_114, 10, 1000)
    )


@pytest.mark.parametrize(
    ("nonzeros", "message"),
    [
        ({"weigth": 3}, "no parameter 'weigth'"),
        ({"weight": 13}, "weight has 12 entries, 13 cannot be held"),
        ({"weight": -1}, "-1 cannot be held"),
    ],
)
def test_counts_that_cannot_be_are_refused(nonzeros: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        paper_forward_flops(nn.Linear(4, 3), torch.zeros(4), nonzeros)
