"""Networks: the papers' parameter counts, initial weights, and refusals."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from gossamer.core.errors import ConfigError
from gossamer.core.random import key
from gossamer.tasks import nets
from gossamer.tasks.nets.images import Block, resnet18
from gossamer.tasks.nets.text import LSTM
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task
from helpers.narrow import present

MNIST, SVHN, CIFAR, TEXT = (1, 28, 28), (3, 32, 32), (3, 32, 32), (80,)
IMAGE_NETS = sorted(name for name, net in nets.NETS.items() if net.min_side)


def size(network: nn.Module, *kinds: type[nn.Module]) -> int:
    return sum(p.numel() for m in network.modules() if isinstance(m, kinds) for p in m.parameters(recurse=False))


def seeded(seed: int, name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nets.build(name, shape, classes)


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
        ("resnet18", CIFAR, 10, 11_172_170),
        ("lenet5", MNIST, 26, 439_096),
        ("vgg11", CIFAR, 10, 9_231_114),
        ("resnet18-gn", CIFAR, 100, 11_220_132),
        ("mixer", CIFAR, 10, 64 * 49 + 4 * (4 * 64 + 2 * 64 * 32 + 96 + 2 * 64 * 128 + 192) + 128 + 650),
        ("lstm", TEXT, 80, 80 * 8 + 4 * 256 * (8 + 256) + 256 * 80),
        ("gpt", (64,), 80, (80 + 64 + 80) * 128 + 4 * (12 * 128**2 + 4 * 128) + 2 * 128),
        ("gpt:6,256,8", (64,), 80, (80 + 64 + 80) * 256 + 6 * (12 * 256**2 + 4 * 256) + 2 * 256),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, parameters: int) -> None:
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
def test_fedmrn_counts_and_starting_weights(
    name: str, shape: tuple[int, ...], classes: int, masked: int, affine: int
) -> None:
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


def test_fedspa_starting_weights() -> None:
    for name, classes in (("vgg11", 10), ("resnet18-gn", 100)):
        model = seeded(1, name, CIFAR, classes)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                out = module.weight[:, 0].numel()
                assert module.weight.std().item() == pytest.approx((2 / out) ** 0.5, rel=0.1)
            if isinstance(module, nn.Linear):
                assert module.weight.std().item() == pytest.approx(0.01, rel=0.1)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                assert (module.bias == 0).all()
            if isinstance(module, nn.GroupNorm):
                assert module.num_groups == 32


@pytest.mark.parametrize(
    ("width", "parameters"), [(1 / 2, 2_796_714), (1 / 4, 701_018), (1 / 8, 176_178), (1 / 16, 44_510)]
)
def test_narrower_residual_networks(width: float, parameters: int) -> None:
    model = resnet18(torch.Size(CIFAR), 10, width)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(2, *CIFAR)).shape == (2, 10)


def test_a_residual_block_is_activated_first_and_has_a_shortcut_where_the_shape_changes() -> None:
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    same, wider = Block(3, 3), Block(3, 5, stride=2)
    for block in (same, wider):
        active = nn.functional.relu(block.norm1(x))
        inner = block.conv2(nn.functional.relu(block.norm2(block.conv1(active))))
        shortcut = x if block.shortcut is None else block.shortcut(active)
        assert torch.equal(block(x), inner + shortcut)
    assert same.shortcut is None
    assert wider(x).shape == (4, 5, 4, 4)


def test_static_norms_keep_nothing_and_use_the_current_batch_also_in_evaluation() -> None:
    model = resnet18(torch.Size((1, 8, 8)), 3, 1 / 16).eval()
    assert list(model.buffers()) == []
    x = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    assert not torch.allclose(model(x)[:4], model(x[:4]))
    assert torch.equal(model(x), model.train()(x))


def test_cnn8_pools_after_every_second_convolution() -> None:
    kinds = [type(m).__name__ for m in nets.build("cnn8", CIFAR, 10).children()]
    block = ["Conv2d", "BatchNorm2d", "ReLU"]
    assert kinds == [*block, *block, "MaxPool2d"] * 4 + ["Flatten", "Linear"]


def test_cnn_gn_pools_after_every_second_convolution_and_has_eight_groups() -> None:
    model = nets.build("cnn-gn", MNIST, 10)
    block = ["Conv2d", "GroupNorm", "ReLU"]
    assert [type(m).__name__ for m in model.children()] == [*block, *block, "MaxPool2d"] * 2 + ["Flatten", "Linear"]
    assert {m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)} == {8}


def test_in_cnn_gn_the_output_of_a_sample_does_not_depend_on_its_batch() -> None:
    model = seeded(1, "cnn-gn", MNIST, 10).train()
    x = torch.randn(5, *MNIST)
    assert torch.allclose(model(x)[:1], model(x[:1]), atol=1e-5)


@pytest.mark.parametrize("name", IMAGE_NETS)
@pytest.mark.parametrize("side", [0, 1, 12, 16])
def test_networks_answer_for_every_side_they_take(name: str, side: int) -> None:
    side += max(16, nets.NETS[name].min_side)
    model = nets.build(name, (3, side, side + 3), 7)
    assert model(torch.zeros(2, 3, side, side + 3)).shape == (2, 7)
    assert nets.NETS[name].summary


# The LSTM.


def seeded_lstm() -> LSTM:
    model = seeded(1, "lstm", TEXT, 80)
    assert isinstance(model, LSTM)
    return model


def sentences(rows: int = 5, length: int = 80) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return torch.randint(80, (rows, length))


def test_lstm_is_pytorchs_with_the_same_weights() -> None:
    model = LSTM(80, dropout=0).double()
    theirs = nn.LSTM(8, 256, bias=False, batch_first=True).double()
    with torch.no_grad():
        theirs.get_parameter("weight_ih_l0").copy_(model.input.weight.normal_(std=0.3))
        theirs.get_parameter("weight_hh_l0").copy_(model.hidden.weight.normal_(std=0.1))
        x = model.embedding(sentences())
        assert torch.allclose(model.states(x), theirs(x)[0][:, -1], rtol=0, atol=1e-6)
        single, x = model.float(), x.float()
        assert torch.allclose(single.states(x), theirs.float()(x)[0][:, -1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("units", [256, 100])
def test_what_cudnn_is_handed_is_the_loop_over_time(units: int) -> None:
    """torch.lstm on the current device, with all units and with fewer, as in a narrower client's network."""
    model = LSTM(80).double()
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model.input = nn.Linear(8, 4 * units, bias=False).double()
        model.hidden = nn.Linear(units, 4 * units, bias=False).double()
        x = model.embedding(sentences(5, 12)).detach().requires_grad_()
        goal = torch.randn(5, units).double()
    inputs = (x, model.input.weight, model.hidden.weight)
    found, wanted = model._states_by_cudnn(x), model.states(x)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-12)
    grads = [torch.autograd.grad((states * goal).sum(), inputs) for states in (found, wanted)]
    for mine, theirs in zip(*grads, strict=True):
        assert theirs.abs().max() > 0.01
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("rows", "length"), [(3, 80), (5, 7)])
def test_flops_of_the_lstm_are_those_of_its_products(rows: int, length: int) -> None:
    """Forward, and backward for weights and for what they are applied to; nothing goes back to the first state."""
    x = sentences(rows, length)
    task = Task.of(lambda: LSTM(80), (x, x[:, 0]), (x, x[:, 0]), clients=1)
    objective = Objective(task, "cpu", key(0))
    gates = 4 * 256
    pushed, carried, scores = (2 * rows * n for n in (length * 8 * gates, 256 * gates, 256 * 80))
    wanted = 3 * pushed + (3 * length - 1) * carried + 3 * scores
    assert objective.flops(objective.initial(), torch.arange(rows)).done == wanted


def test_lstm_starts_small_and_has_no_biases() -> None:
    model = seeded_lstm()
    for linear in (model.input, model.hidden, model.output):
        assert linear.bias is None
        assert linear.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert model.embedding.weight.std().item() == pytest.approx(1, rel=0.1)
    assert size(model, nn.Linear, nn.Embedding) == sum(p.numel() for p in model.parameters())


def test_lstm_answers_for_text_of_any_length() -> None:
    for length in (1, 3, 80):
        assert nets.build("lstm", (length,), 80)(sentences(2, length)).shape == (2, 80)


def test_lstm_drops_out_half_of_its_last_state_in_training_alone() -> None:
    model, x = seeded_lstm(), sentences()
    assert model.drop.p == 0.5
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_lstm_without_dropout_can_be_stacked() -> None:
    models = [LSTM(80, dropout=0) for _ in range(3)]
    x, (stacked, _) = sentences(4, 10), stack_module_state(models)

    def loss(params: dict[str, Tensor]) -> Tensor:
        return functional_call(models[0], params, (x,)).square().mean()

    grads = vmap(grad(loss))(stacked)
    for number, model in enumerate(models):
        model(x).square().mean().backward()
        for name, param in model.named_parameters():
            assert torch.allclose(grads[name][number], present(param.grad), atol=1e-7)


@pytest.mark.slow
def test_lstm_learns_a_rhyme() -> None:
    """The character that follows is the last of the text: a few hundred samples are enough to find out."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = LSTM(80, dropout=0)
        for _ in range(120):
            x = torch.randint(10, (64, 6))
            grads = torch.autograd.grad(nn.functional.cross_entropy(model(x), x[:, -1]), list(model.parameters()))
            with torch.no_grad():
                for param, g in zip(model.parameters(), grads, strict=True):
                    param.sub_(3.0 * g)
        x = torch.randint(10, (200, 6))
        assert (model(x).argmax(1) == x[:, -1]).float().mean() > 0.9


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_lstm_refuses_dropout_out_of_range(dropout: float) -> None:
    with pytest.raises(ConfigError, match=rf"LSTM: dropout must be in \[0, 1\), got {dropout}"):
        LSTM(80, dropout=dropout)


# Starting and refusing.


def test_the_same_seed_starts_the_same_network() -> None:
    def weights(seed: int) -> Tensor:
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
        ("lstm", MNIST, 80, r"lstm needs text \(one row of characters\), got 1 x 28 x 28"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, shape: tuple[int, ...], classes: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nets.build(name, shape, classes)
