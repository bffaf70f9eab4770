"""Networks: the papers' parameter counts, initial weights, and refusals."""

import pytest
import torch
from torch import nn

from gossamer import nets
from gossamer.errors import ConfigError

MNIST, SVHN, CIFAR = (1, 28, 28), (3, 32, 32), (3, 32, 32)


def size(modules, *kinds):
    return sum(p.numel() for m in modules.modules() if isinstance(m, kinds) for p in m.parameters(recurse=False))


def seeded(seed, *args):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nets.build(*args)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("logistic", (60,), 2, 122),
        ("logistic", MNIST, 10, 7_850),
        ("mlp", MNIST, 10, 199_210),
        ("mlp", (1, 8, 8), 10, 55_210),
        ("cnn2", CIFAR, 10, 672_212),
        ("cnn2", MNIST, 10, 520 + 25_050 + (800 * 512 + 512) + 5_130),
        ("cnn-gn", MNIST, 10, (320 + 9_248 + 18_496 + 36_928) + 2 * (32 + 32 + 64 + 64) + 31_370),
        ("cnn-gn", (1, 8, 8), 10, 64_992 + 384 + 2_570),
    ],
)
def test_parameter_counts(name, shape, classes, parameters):
    assert sum(p.numel() for p in nets.build(name, shape, classes).parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "shape", "classes", "masked", "affine"),
    [
        ("cnn4", SVHN, 10, 398_176, 960),
        ("cnn4", MNIST, 10, 389_920, 960),
        ("cnn8", CIFAR, 10, 1_181_536, 1_920),
        ("cnn8", CIFAR, 100, 1_273_696, 1_920),
    ],
)
def test_fedmrn_counts_and_starting_weights(name, shape, classes, masked, affine):
    model = seeded(1, name, shape, classes)
    assert size(model, nn.Conv2d, nn.Linear) == masked
    assert size(model, nn.BatchNorm2d) == affine
    assert sum(p.numel() for p in model.parameters()) == masked + affine
    assert all(m.bias is None for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.01, rel=0.15)
            assert abs(module.weight.mean().item()) < 0.002
        if isinstance(module, nn.BatchNorm2d):
            assert (module.eps, module.momentum) == (1e-5, 0.1)
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


def test_cnn8_pools_after_every_second_convolution():
    kinds = [type(m).__name__ for m in nets.build("cnn8", CIFAR, 10).children()]
    block = ["Conv2d", "BatchNorm2d", "ReLU"]
    assert kinds == [*block, *block, "MaxPool2d"] * 4 + ["Flatten", "Linear"]


def test_cnn_gn_pools_after_every_second_convolution_and_has_eight_groups():
    model = nets.build("cnn-gn", MNIST, 10)
    block = ["Conv2d", "GroupNorm", "ReLU"]
    assert [type(m).__name__ for m in model.children()] == [*block, *block, "MaxPool2d"] * 2 + ["Flatten", "Linear"]
    assert {m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)} == {8}


def test_in_cnn_gn_a_sample_does_not_feel_the_rest_of_its_batch():
    model = seeded(1, "cnn-gn", MNIST, 10).train()
    x = torch.randn(5, *MNIST)
    assert torch.allclose(model(x)[:1], model(x[:1]), atol=1e-5)


@pytest.mark.parametrize("name", sorted(nets.NETS))
@pytest.mark.parametrize("side", [16, 17, 28, 32])
def test_networks_answer_for_every_side_they_take(name, side):
    model = nets.build(name, (3, side, side + 3), 7)
    assert model(torch.zeros(2, 3, side, side + 3)).shape == (2, 7)
    assert nets.NETS[name].summary


def test_the_same_seed_starts_the_same_network():
    def weights(seed):
        return torch.cat([p.detach().flatten() for p in seeded(seed, "cnn4", MNIST, 10).parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("cnn", MNIST, 10, "unknown model 'cnn': did you mean cnn"),
        ("cnn4", (1, 8, 8), 10, r"cnn4 needs images of at least 16 x 16, got 8 x 8: use mlp or logistic"),
        ("cnn2", (1, 15, 40), 10, r"cnn2 needs images of at least 16 x 16, got 15 x 40"),
        ("cnn8", (60,), 2, r"cnn8 needs images \(channels x height x width\), got 60: use mlp or logistic"),
        ("cnn8", (), 2, r"got single numbers"),
        ("mlp", MNIST, 0, r"classes must be >= 1, got 0"),
    ],
)
def test_what_does_not_fit_is_refused(name, shape, classes, message):
    with pytest.raises(ConfigError, match=message):
        nets.build(name, shape, classes)
