"""The number of entries of each tensor that a sparse model keeps."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Size

from gossamer.core.errors import ConfigError
from gossamer.parts.views.sparsity import DENSITIES, Densities, Shapes, erk, kept, uniform, uniform_weights
from gossamer.tasks.nets import build

RULES = pytest.mark.parametrize("rule", DENSITIES.values(), ids=DENSITIES)
WHOLE = pytest.mark.parametrize("rule", [erk, uniform_weights])
"""The rules that keep biases and norms whole."""
Rule = Callable[[Shapes, float], Densities]


def shapes_of(model: str, shape: tuple[int, ...], classes: int) -> dict[str, Size]:
    return {name: parameter.shape for name, parameter in build(model, shape, classes).named_parameters()}


LENET = shapes_of("lenet5", (1, 28, 28), 26)
VGG = shapes_of("vgg11", (3, 32, 32), 10)
RESNET = shapes_of("resnet18-gn", (3, 32, 32), 100)
NETWORKS = pytest.mark.parametrize("shapes", [LENET, VGG, RESNET], ids=["lenet5", "vgg11", "resnet18-gn"])


def matrices(shapes: Shapes) -> list[str]:
    return [name for name, shape in shapes.items() if len(shape) > 1]


def size(shapes: Shapes) -> int:
    return sum(shape.numel() for shape in shapes.values())


# The densities that FedSpa's networks have at one half.


def test_lenet5_at_one_half() -> None:
    found = erk(LENET, 0.5)
    assert [round(found[name], 3) for name in matrices(LENET)] == [1, 0.476, 0.484, 1]


def test_vgg11_at_one_half() -> None:
    found = erk(VGG, 0.5)
    assert [round(found[name], 3) for name in matrices(VGG)] == [1, 1, 1, 0.848, 0.634, 0.422, 0.422, 0.422, 1]


def test_resnet18_at_one_half() -> None:
    """By shape, as blocks have numbers for names: the third stage's later convolutions, then those of the last."""
    found = erk(RESNET, 0.5)
    sparse: dict[tuple[int, ...], float] = {(256, 256, 3, 3): 0.716, (512, 256, 3, 3): 0.535, (512, 512, 3, 3): 0.356}
    for name in matrices(RESNET):
        assert round(found[name], 3) == sparse.get(tuple(RESNET[name]), 1), name
    counts = [sum(tuple(RESNET[name]) == shape for name in RESNET) for shape in sparse]
    assert counts == [3, 1, 3]


# What the rules promise.


@NETWORKS
@RULES
@pytest.mark.parametrize("density", [0.05, 0.3, 0.5, 0.9, 1.0])
def test_the_budget_is_kept_to_one_entry_a_tensor(rule: Rule, shapes: Shapes, density: float) -> None:
    count = sum(kept(shapes, rule(shapes, density)).values())
    assert density * size(shapes) - len(shapes) < count <= density * size(shapes) + 1e-3


@NETWORKS
@WHOLE
def test_biases_and_norms_are_whole(rule: Rule, shapes: Shapes) -> None:
    found = kept(shapes, rule(shapes, 0.5))
    small = {name: shape.numel() for name, shape in shapes.items() if len(shape) < 2}
    assert small
    assert {name: found[name] for name in small} == small


@NETWORKS
@pytest.mark.parametrize("density", [0.2, 0.7])
def test_uniform_thins_every_tensor_alike(shapes: Shapes, density: float) -> None:
    assert set(uniform(shapes, density).values()) == {density}
    counts = kept(shapes, uniform(shapes, density))
    assert all(counts[name] == int(density * shape.numel() + 1e-6) for name, shape in shapes.items())


def test_a_tensor_too_small_for_a_uniform_density_keeps_one_entry() -> None:
    shapes = {"w": Size([8, 8]), "bias": Size([3]), "temperature": Size([])}
    assert kept(shapes, uniform(shapes, 0.25)) == {"w": 16, "bias": 1, "temperature": 1}


@pytest.mark.parametrize("density", [0.2, 0.7])
def test_uniform_weights_are_uniform_in_what_is_not_whole(density: float) -> None:
    shares = {uniform_weights(VGG, density)[name] for name in matrices(VGG)}
    (share,) = shares
    small = size(VGG) - sum(VGG[name].numel() for name in matrices(VGG))
    assert share == pytest.approx((density * size(VGG) - small) / (size(VGG) - small))


def test_erk_is_in_proportion_to_sizes_over_entries_in_what_is_not_whole() -> None:
    found = erk(RESNET, 0.3)
    part = [name for name in RESNET if found[name] < 1]
    scale = [found[name] * RESNET[name].numel() / sum(RESNET[name]) for name in part]
    assert len(part) > 5
    assert max(scale) == pytest.approx(min(scale))
    whole = [sum(RESNET[name]) / RESNET[name].numel() for name in RESNET if found[name] == 1]
    assert min(whole) * scale[0] > 1, "a tensor is whole because it would exceed 1, or is as small as one that would"


@RULES
def test_a_density_of_one_keeps_everything(rule: Rule) -> None:
    assert kept(VGG, rule(VGG, 1.0)) == {name: shape.numel() for name, shape in VGG.items()}


# Any network.

SIDES = st.lists(st.integers(2, 12), min_size=2, max_size=4)
SHAPES = st.lists(st.one_of(SIDES, st.lists(st.integers(1, 12), min_size=1, max_size=1)), min_size=1, max_size=6)
NETS = SHAPES.map(lambda sides: {f"t{number}": Size(shape) for number, shape in enumerate(sides)})
SHARES = st.floats(0.01, 1.0)


def room(shapes: Shapes, density: float) -> bool:
    """Whether there is more than room for biases and norms, where there is anything else."""
    small = sum(shape.numel() for shape in shapes.values() if len(shape) < 2)
    return density * size(shapes) >= small + (size(shapes) > small)


@WHOLE
@settings(max_examples=50)
@given(shapes=NETS, density=SHARES)
def test_densities_are_above_0_and_up_to_1_and_sum_to_the_budget(rule: Rule, shapes: Shapes, density: float) -> None:
    assume(room(shapes, density))
    found = rule(shapes, density)
    assert list(found) == list(shapes)
    assert all(0 < share <= 1 for share in found.values())
    assert sum(found[name] * shapes[name].numel() for name in shapes) == pytest.approx(density * size(shapes))
    counts = kept(shapes, found)
    assert all(0 <= counts[name] <= shapes[name].numel() for name in shapes)
    assert density * size(shapes) - len(shapes) - 1e-6 < sum(counts.values()) <= density * size(shapes) + 1e-5


@RULES
@settings(max_examples=50)
@given(shapes=NETS, densities=st.tuples(SHARES, SHARES))
def test_no_tensor_loses_when_the_model_gets_denser(rule: Rule, shapes: Shapes, densities: tuple[float, float]) -> None:
    low, high = sorted(densities)
    assume(room(shapes, low))
    less, more = rule(shapes, low), rule(shapes, high)
    assert all(less[name] <= more[name] + 1e-12 for name in shapes)


@RULES
@settings(max_examples=50)
@given(shapes=NETS, density=SHARES, draw=st.randoms(use_true_random=False))
def test_the_order_of_tensors_does_not_matter(rule: Rule, shapes: Shapes, density: float, draw: Random) -> None:
    assume(room(shapes, density))
    names = list(shapes)
    draw.shuffle(names)
    assert rule({name: shapes[name] for name in names}, density) == pytest.approx(rule(shapes, density))


@WHOLE
@settings(max_examples=50)
@given(shapes=NETS, density=SHARES)
def test_biases_and_norms_are_whole_in_any_network(rule: Rule, shapes: Shapes, density: float) -> None:
    assume(room(shapes, density))
    found = rule(shapes, density)
    assert all(found[name] == 1 for name, shape in shapes.items() if len(shape) < 2)


# Mistakes.


@RULES
@pytest.mark.parametrize("density", [0.0, -0.1, 1.01, float("nan")])
def test_a_density_that_is_no_share_is_refused(rule: Rule, density: float) -> None:
    with pytest.raises(ConfigError, match=r"density must be in \(0, 1\], got"):
        rule(VGG, density)


@WHOLE
def test_no_room_for_biases_and_norms_is_refused_with_their_number(rule: Rule) -> None:
    shapes = {"w": Size([10, 10]), "b": Size([50])}
    with pytest.raises(ConfigError, match=r"density 0\.3 of 150 entries is too small: the 50 entries of biases"):
        rule(shapes, 0.3)
