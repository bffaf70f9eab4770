"""The width rule: which channels are the same, derived from networks; a narrower network is the masked whole one."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from gossamer import Clock, ConfigError, Task, compose
from gossamer.core.random import fold, key, permutation
from gossamer.core.types import Params, Part
from gossamer.fleet.capacity import held
from gossamer.parts.solvers import SGD
from gossamer.parts.views import View, WidthSlice
from gossamer.tasks.nets import NETS, build
from gossamer.tasks.nets.images import resnet18
from gossamer.tasks.objective import Objective
from gossamer.tasks.widths import Axis, Factor, Widths, derive, ties
from gossamer.tasks.widths.elastic import opened, stretch
from helpers.narrow import present

SHAPES = {
    name: {0: (4,), 1: (1, 4, 4)}.get(net.min_side, (2, net.min_side, net.min_side)) for name, net in NETS.items()
}
LARGE = ("resnet18", "resnet18-gn", "vgg11")
CLASSES = 5
CPU = torch.device("cpu")


def samples(*shape: int) -> Tensor:
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def words(length: int) -> Tensor:
    return torch.randint(CLASSES, (3, length), generator=torch.Generator().manual_seed(7))


def travels(module: nn.Module) -> Params:
    """What goes to clients: trained parameters and buffers of numbers."""
    buffers = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
    return {**{name: p for name, p in module.named_parameters() if p.requires_grad}, **buffers}


def stirred(module: nn.Module) -> nn.Module:
    """In double precision, with values that no entry shares with another."""
    module, draw = module.double(), torch.Generator().manual_seed(11)
    with torch.no_grad():
        for tensor in travels(module).values():
            noise = torch.rand(tensor.shape, generator=draw, dtype=torch.float64)
            tensor.copy_(noise + 0.5 if tensor.dim() == 1 else (noise - 0.5) * (12 / tensor[0].numel()) ** 0.5)
    return module.eval()


def rule(module: nn.Module, x: Tensor, streams: bool = True) -> Widths:
    own = copy.deepcopy(module).train()
    return derive(own, travels(own), x[:2], streams)


def placed(widths: Widths) -> dict[str, list[str]]:
    return {group: sorted(widths.members(group)) for group, _ in widths.sizes}


@functools.cache
def zoo(name: str) -> tuple[nn.Module, Tensor, Widths]:
    shape = SHAPES[name]
    x = samples(*shape) if NETS[name].min_side else words(*shape)
    module = stirred(build(name, shape, CLASSES))
    return module, x, rule(module, x)


# The slow, obvious version: the whole network with zeros wherever a client holds nothing.


def draw(widths: Widths, share: float, seed: int) -> dict[str, Tensor]:
    chosen = {}
    for group, size in widths.sizes:
        drawn = permutation(fold(key(seed), group), size)[: held(size, share)]
        chosen[group] = torch.from_numpy(drawn).sort().values
    return chosen


def masked(module: nn.Module, cover: Params) -> nn.Module:
    """The whole network, in which norms over channels and attention's scale look at those alone that are held."""
    module = copy.deepcopy(module)
    for name, part in module.named_modules():
        here = cover.get(f"{name}.weight")
        if isinstance(part, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm):
            part.__dict__["forward"] = functools.partial(over_held, part, present(here))
        if isinstance(part, nn.MultiheadAttention):
            size = int(cover[f"{name}.out_proj.weight"].amax(0).sum()) // part.num_heads
            part.__dict__["forward"] = functools.partial(attended, part, size)
    return module


def attended(layer: Any, size: int, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> tuple[Tensor, None]:
    """Attention with ``size`` held channels per head, head by head."""
    if layer.in_proj_weight is None:
        weights = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    else:
        weights = layer.in_proj_weight.split(layer.embed_dim)
    sides = [
        F.linear(x, w, b) for x, w, b in zip((q, k, v), weights, layer.in_proj_bias.split(layer.embed_dim), strict=True)
    ]
    found = []
    for one, two, three in zip(*(side.split(layer.head_dim, -1) for side in sides), strict=True):
        found.append((one @ two.transpose(-1, -2) / size**0.5).softmax(-1) @ three)
    return layer.out_proj(torch.cat(found, -1)), None


def over_held(norm: Any, here: Tensor, x: Tensor) -> Tensor:
    groups = norm.num_groups if isinstance(norm, nn.GroupNorm) else 1
    ahead = x if groups > 1 or isinstance(norm, nn.GroupNorm) else x.reshape(-1, x.shape[-1])
    cut = ahead.reshape(len(ahead), groups, -1, *ahead.shape[2:])
    mask = here.view(1, groups, -1, *[1] * (ahead.dim() - 2)).expand_as(cut)
    over = tuple(range(2, cut.dim()))
    count = mask.sum(over, keepdim=True).clamp(min=1)
    mean = 0 if isinstance(norm, nn.RMSNorm) else (cut * mask).sum(over, keepdim=True) / count
    square = ((cut - mean).square() * mask).sum(over, keepdim=True) / count
    eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    scaled = ((cut - mean) / (square + eps).sqrt()).reshape(ahead.shape)
    shape = (1, -1, *[1] * (ahead.dim() - 2))
    shifted = scaled * norm.weight.view(shape)
    return (shifted if isinstance(norm, nn.RMSNorm) else shifted + norm.bias.view(shape)).reshape(x.shape)


def outcome(module: nn.Module, tensors: Params, x: Tensor) -> tuple[Tensor, Params]:
    """What a network gives, and the gradients of a number that depends on all of it."""
    leaves = {name: t.detach().clone().requires_grad_("running" not in name) for name, t in tensors.items()}
    out = functional_call(module, leaves, (x,))
    loss = (out * torch.arange(1, out.numel() + 1).view(out.shape)).sin().sum()
    wanted = [name for name, leaf in leaves.items() if leaf.requires_grad]
    grads = torch.autograd.grad(loss, [leaves[name] for name in wanted], allow_unused=True)
    return out.detach(), {
        n: torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(wanted, grads, strict=True)
    }


def agree(module: nn.Module, x: Tensor, part: Part, training: bool = False) -> None:
    """A narrower network gives what the masked whole one gives, and so do its gradients."""
    whole = {name: tensor.detach() for name, tensor in travels(module).items()}
    cover = part.coverage(whole)
    narrow = stretch(copy.deepcopy(module)).train(training)
    found, grads = outcome(narrow, part.take(whole), x)
    other = masked(module, cover).train(training)
    wanted, whole_grads = outcome(other, {name: t * cover[name] for name, t in whole.items()}, x)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    spread = part.spread(grads, whole)
    for name, grad in whole_grads.items():
        torch.testing.assert_close(spread[name], grad * cover[name], rtol=1e-9, atol=1e-9)


def check(module: nn.Module, x: Tensor, streams: bool = True) -> Widths:
    """Derive the rule of a network, and try it with random channels, half and a third of them."""
    module = stirred(module)
    widths = rule(module, x, streams)
    for number, share in enumerate((1 / 2, 1 / 3, 1.0)):
        agree(module, x, widths.part(draw(widths, share, number), CPU))
    return widths


# The networks by name.


OTHERS = ("logistic", "linear", "gpt", "gpt2")
SMALL = [name for name in NETS if name not in (*LARGE, *OTHERS)]  # narrower transformers: tests/tasks/test_gpt.py


@pytest.mark.parametrize(
    ("name", "share"),
    [(name, share) for name in SMALL for share in (1 / 2, 1 / 4, 1 / 16)] + [(n, 1 / 16) for n in LARGE],
)
def test_a_narrower_network_is_the_masked_whole_one(name: str, share: float) -> None:
    module, x, widths = zoo(name)
    part = widths.part(draw(widths, share, 3), CPU)
    agree(module, x, part)
    narrow, whole = (sum(t.numel() for t in p.values()) for p in (part.take(travels(module)), travels(module)))
    assert narrow < whole * {1 / 2: 0.6, 1 / 4: 0.35, 1 / 16: 0.35}[share]


@pytest.mark.parametrize("name", ["cnn4", "cnn8"])
def test_batch_norms_agree_in_training_too(name: str) -> None:
    module, x, widths = zoo(name)
    agree(module, x, widths.part(draw(widths, 1 / 4, 5), CPU), training=True)


def test_residual_networks_agree_at_every_width() -> None:
    """Scalers are for training alone: see tests/parts/views/test_width_slice.py."""
    module, x = stirred(resnet18(torch.Size(SHAPES["resnet18"]), CLASSES, 1 / 8)), samples(*SHAPES["resnet18"])
    widths = rule(module, x)
    for number, share in enumerate((1 / 2, 1 / 3, 1 / 8)):
        agree(module, x, widths.part(draw(widths, share, number), CPU))


@settings(max_examples=15, deadline=None)
@given(name=st.sampled_from(["mlp", "cnn-gn", "mixer"]), share=st.floats(0.001, 1), seed=st.integers(0, 99))
def test_any_channels_of_any_capacity_agree(name: str, share: float, seed: int) -> None:
    module, x, widths = zoo(name)
    agree(module, x, widths.part(draw(widths, share, seed), CPU))


def test_groups_may_hold_unequal_shares() -> None:
    module, x, widths = zoo("mixer")
    chosen = {
        group: draw(widths, (number % 3 + 1) / 4, number)[group] for number, (group, _) in enumerate(widths.sizes)
    }
    agree(module, x, widths.part(chosen, CPU))


def test_a_narrower_residual_network_has_the_published_sizes() -> None:
    module = resnet18(torch.Size((3, 32, 32)), 10)
    widths = rule(module, torch.zeros(2, 3, 32, 32))
    for share, size in ((1 / 2, 2_796_714), (1 / 4, 701_018), (1 / 8, 176_178), (1 / 16, 44_510)):
        part = widths.part(draw(widths, share, 0), CPU)
        assert sum(tensor.numel() for tensor in part.take(travels(module)).values()) == size


# Groups worked out by hand.


def test_the_groups_of_a_perceptron() -> None:
    widths = zoo("mlp")[2]
    assert dict(widths.sizes) == {"1": 200, "3": 200}
    assert placed(widths) == {
        "1": ["1.bias[0]", "1.weight[0]", "3.weight[1]"],
        "3": ["3.bias[0]", "3.weight[0]", "5.weight[1]"],
    }
    assert widths.labels == (("5.weight", 0), ("5.bias", 0))


def test_flattened_channels_have_an_entry_for_each_position() -> None:
    module = build("cnn2", (1, 28, 28), 10)
    widths = rule(module, torch.zeros(2, 1, 28, 28))
    assert placed(widths) == {
        "0": ["0.bias[0]", "0.weight[0]", "3.weight[1]"],
        "3": ["3.bias[0]", "3.weight[0]", "7.weight[1] x 16"],
        "7": ["7.bias[0]", "7.weight[0]", "9.weight[1]"],
    }
    part = widths.part({"3": torch.tensor([1, 4])}, CPU)
    assert part.take(travels(module))["7.weight"].shape == (512, 32)
    assert present(part.index["7.weight"][1]).tolist() == [*range(16, 32), *range(64, 80)]


def test_group_norms_lose_the_same_of_each_of_their_groups() -> None:
    widths = zoo("cnn-gn")[2]
    assert dict(widths.sizes) == {"0": 4, "3": 4, "7": 8, "10": 8}
    assert placed(widths)["0"] == [
        f"8 x {place}" for place in sorted(("0.weight[0]", "0.bias[0]", "1.weight[0]", "1.bias[0]", "3.weight[1]"))
    ]
    assert present(widths.part({"0": torch.tensor([0, 3])}, CPU).index["0.weight"][0]).tolist() == [
        index for group in range(8) for index in (4 * group, 4 * group + 3)
    ]


@pytest.mark.parametrize("streams", [True, False])
def test_the_gates_of_an_lstm_lose_the_same_channels_and_so_do_its_states(streams: bool) -> None:
    module, x, _ = zoo("lstm")
    assert placed(rule(module, x, streams)) == {
        "embedding": ["embedding.weight[1]", "input.weight[1]"],
        "input": ["4 x hidden.weight[0]", "4 x input.weight[0]", "hidden.weight[1]", "output.weight[1]"],
    }


def test_running_statistics_go_with_their_channels() -> None:
    assert {"1.running_mean[0]", "1.running_var[0]", "1.weight[0]", "4.weight[1]"} <= set(placed(zoo("cnn4")[2])["0"])


def test_a_mixer_has_one_stream_and_two_groups_per_block() -> None:
    widths = zoo("mixer")[2]
    blocks = {f"blocks.{b}.{layer}": size for b in range(4) for layer, size in (("across1", 32), ("inside1", 128))}
    assert dict(widths.sizes) == {"patches": 64, **blocks}
    stream = placed(widths)["patches"]
    assert {f"blocks.{b}.inside2.weight[0]" for b in range(4)} | {"head.weight[1]", "norm.bias[0]"} < set(stream)
    assert not any("across" in dimension for dimension in stream)  # patches are positions of the input, and fixed


def residual(streams: bool) -> dict[str, list[str]]:
    module, x, widths = zoo("resnet18")
    return placed(widths if streams else rule(module, x, streams=False))


def test_a_residual_network_has_four_streams_and_a_group_inside_each_block() -> None:
    found = residual(streams=True)
    stages = {"0": (1, 2), "3.conv2": (3, 4), "5.conv2": (5, 6), "7.conv2": (7, 8)}
    assert set(found) == {*stages, *(f"{block}.norm2" for block in range(1, 9))}
    for block in range(1, 9):
        inner = ("conv1.weight[0]", "conv2.weight[1]", "norm2.bias[0]", "norm2.weight[0]")
        assert found[f"{block}.norm2"] == [f"{block}.{place}" for place in inner]
    sizes = dict(zoo("resnet18")[2].sizes)
    assert [sizes[stream] for stream in stages] == [64, 128, 256, 512]
    for stream, (first, second) in stages.items():
        outs = {f"{first}.conv2.weight[0]", f"{second}.conv2.weight[0]"}
        outs |= {"0.weight[0]"} if first == 1 else {f"{first}.shortcut.weight[0]"}
        reads = {f"{second}.norm1.weight[0]", f"{second}.norm1.bias[0]", f"{second}.conv1.weight[1]"}
        if second < 8:
            following = second + 1
            reads |= {f"{following}.norm1.{what}[0]" for what in ("weight", "bias")}
            reads |= {f"{following}.conv1.weight[1]", f"{following}.shortcut.weight[1]"}
        else:
            reads |= {"10.weight[0]", "10.bias[0]", "14.weight[1]"}
        if first == 1:
            reads |= {"1.norm1.weight[0]", "1.norm1.bias[0]", "1.conv1.weight[1]"}
        assert set(found[stream]) == outs | reads


def test_without_streams_every_layer_has_a_group_except_shortcuts_which_share_that_of_their_block() -> None:
    found = residual(streams=False)
    assert set(found) == {"0", *(f"{b}.norm2" for b in range(1, 9)), *(f"{b}.conv2" for b in range(1, 9))}
    for block in range(1, 9):
        writes = [place for place in found[f"{block}.conv2"] if place.endswith("weight[0]") and "norm" not in place]
        shortcut = [f"{block}.shortcut.weight[0]"] if block in (3, 5, 7) else []
        head = ["10.weight[0]"] if block == 8 else []
        assert writes == sorted([f"{block}.conv2.weight[0]", *shortcut, *head])


def test_without_streams_a_sum_is_of_positions() -> None:
    """As in published code: channels of another identity are added, j-th to j-th."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.o = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return self.o(h + self.b(h.relu()))

    module, x = stirred(Residual()), samples(6)
    widths = rule(module, x, streams=False)
    chosen = {"a": torch.tensor([0, 5]), "b": torch.tensor([3, 4])}
    assert dict(widths.sizes) == {"a": 8, "b": 8}
    part, whole = widths.part(chosen, CPU), travels(module)
    with torch.no_grad():
        found = functional_call(module, part.take(whole), (x,))
        h = module.get_submodule("a")(x)[:, [0, 5]]
        inner = h.relu() @ whole["b.weight"][[3, 4]][:, [0, 5]].T + whole["b.bias"][[3, 4]]
        torch.testing.assert_close(found, (h + inner) @ whole["o.weight"][:, [3, 4]].T + whole["o.bias"])


def test_all_channels_are_the_whole_model() -> None:
    for name in SHAPES:
        module, _, widths = zoo(name)
        assert widths.part({}, CPU).whole
        every = {group: torch.arange(size) for group, size in widths.sizes}
        taken = widths.part(every, CPU).take(travels(module))
        assert all(torch.equal(taken[n], t) for n, t in travels(module).items())


# Other networks.


class Net(nn.Module):
    """Layers by name, and how they are used."""

    def __init__(self, use: Callable[[Any, Tensor], Any], **layers: Any) -> None:
        super().__init__()
        self.use = use
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, x)


def flat(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def test_concatenated_channels_are_stored_one_after_the_other() -> None:
    def use(net: Any, x: Tensor) -> Tensor:
        first = net.a(x)
        both = torch.cat([first, net.b(F.relu(first))], 1)
        return net.o(flat(net.c(F.relu(net.norm(both)))))

    net = Net(
        use,
        a=nn.Conv2d(2, 4, 3, padding=1),
        b=nn.Conv2d(4, 6, 3, padding=1),
        norm=nn.BatchNorm2d(10),
        c=nn.Conv2d(10, 5, 1),
        o=nn.Linear(5, 3),
    )
    widths = check(net, samples(2, 4, 4))
    assert dict(widths.sizes) == {"a": 4, "b": 6, "c": 5}
    assert placed(widths)["a"][4:] == [f"norm.{t}[0][0:4]" for t in ("bias", "running_mean", "running_var", "weight")]
    assert {"c.weight[1][4:10]", "norm.weight[0][4:10]"} < set(placed(widths)["b"])
    part = widths.part({"a": torch.tensor([1]), "b": torch.tensor([0, 5])}, CPU)
    assert present(part.index["norm.running_var"][0]).tolist() == [1, 4, 9]


def test_flattened_features_of_several_layers_are_concatenated_too() -> None:
    def use(net: Any, x: Tensor) -> Tensor:
        return net.o(torch.cat([net.a(x).flatten(1), net.b(x).flatten(1)], 1))

    check(
        Net(use, a=nn.Conv2d(2, 4, 3), b=nn.Conv2d(2, 5, 3, stride=2), o=nn.Linear(4 * 16 + 5 * 4, 3)), samples(2, 6, 6)
    )


def test_convolutions_in_groups_lose_the_same_of_each_group_and_one_by_one_whole_channels() -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 8, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1, groups=2), nn.Flatten(), nn.Linear(12 * 16, 3)
    )
    assert placed(check(net, samples(2, 4, 4))) == {
        "0": ["2 x 0.bias[0]", "2 x 0.weight[0]", "2.weight[1]"],
        "2": ["2 x 2.bias[0]", "2 x 2.weight[0]", "2 x 4.weight[1] x 16"],
    }
    depthwise = nn.Sequential(
        nn.Conv2d(2, 8, 1),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.GroupNorm(8, 8),
        nn.ReLU(),
        nn.Conv2d(8, 6, 1),
        nn.Flatten(),
        nn.Linear(6 * 16, 3),
    )
    assert dict(check(depthwise, samples(2, 4, 4)).sizes) == {"0": 8, "4": 6}


def test_shuffled_groups_of_channels() -> None:
    def use(net: Any, x: Tensor) -> Tensor:
        h = net.a(x).view(len(x), 2, -1, 4, 4).transpose(1, 2).flatten(1, 2)
        return net.o(flat(net.b(h)))

    check(Net(use, a=nn.Conv2d(2, 8, 1), b=nn.Conv2d(8, 12, 1, groups=2), o=nn.Linear(12, 3)), samples(2, 4, 4))


@pytest.mark.parametrize("gate", [lambda h: F.glu(h, -1), lambda h: h.chunk(2, -1)[0] * h.chunk(2, -1)[1].sigmoid()])
def test_gates_lose_the_channels_that_they_are_for(gate: Callable[[Tensor], Tensor]) -> None:
    net = Net(lambda net, x: net.o(gate(net.a(x))), a=nn.Linear(6, 8), o=nn.Linear(4, 3))
    assert placed(check(net, samples(6))) == {"a": ["2 x a.bias[0]", "2 x a.weight[0]", "o.weight[1]"]}


def attend(net: Any, x: Tensor, fused: bool) -> Tensor:
    h = net.norm(net.i(x))
    q, k, v = (t.view(len(x), x.shape[1], 2, -1).transpose(1, 2) for t in net.qkv(h).chunk(3, -1))
    if fused:
        mixed = F.scaled_dot_product_attention(q, k, v, scale=0.7)
    else:
        mixed = (q @ k.transpose(-1, -2) * 0.7).softmax(-1) @ v
    h = h + net.back(mixed.transpose(1, 2).flatten(2))
    return net.o(h.mean(1))


@pytest.mark.parametrize("fused", [True, False])
def test_attention_keeps_its_heads_and_narrows_them(fused: bool) -> None:
    net = Net(
        lambda net, x: attend(net, x, fused),
        i=nn.Linear(6, 8),
        norm=nn.LayerNorm(8),
        qkv=nn.Linear(8, 24),
        back=nn.Linear(8, 8),
        o=nn.Linear(8, 3),
    )
    found = placed(check(net, samples(5, 6)))
    assert found["qkv"] == ["2 x back.weight[1]", "6 x qkv.bias[0]", "6 x qkv.weight[0]"]
    assert found["i"] == sorted(
        [
            "i.weight[0]",
            "i.bias[0]",
            "norm.weight[0]",
            "norm.bias[0]",
            "qkv.weight[1]",
            "back.weight[0]",
            "back.bias[0]",
            "o.weight[1]",
        ]
    )


def test_queries_and_values_may_be_of_unequal_size() -> None:
    def use(net: Any, x: Tensor) -> Tensor:
        return net.o((net.q(x) @ net.k(x).transpose(1, 2)).softmax(-1) @ net.v(x)).mean(1)

    net = Net(use, q=nn.Linear(6, 4), k=nn.Linear(6, 4), v=nn.Linear(6, 8), o=nn.Linear(8, 3))
    assert dict(check(net, samples(5, 6)).sizes) == {"q": 4, "v": 8}


RECURRENT = [
    (kind, {"num_layers": layers, "bidirectional": both, "batch_first": first, "bias": bias})
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
    for layers, both, first, bias in ((1, False, True, True), (2, True, True, True), (2, False, False, False))
]


@pytest.mark.parametrize(("kind", "options"), RECURRENT)
def test_recurrent_layers(kind: Callable[..., nn.RNNBase], options: dict[str, Any]) -> None:
    def use(net: Any, x: Tensor) -> Tensor:
        rows = net.i(x)
        out, _ = net.cells(rows if options["batch_first"] else rows.transpose(0, 1))
        return net.o(out.mean(1 if options["batch_first"] else 0))

    width = 8 * (1 + options["bidirectional"])
    net = Net(use, i=nn.Linear(6, 5), cells=kind(5, 8, **options), o=nn.Linear(width, 3))
    widths = check(net, samples(4, 6))
    assert dict(widths.sizes) == {"i": 5, "cells": 8}  # layers and directions have one tensor of states for all
    gates = {nn.LSTM: "4 x ", nn.GRU: "3 x ", nn.RNN: ""}[type(net.cells)]
    rows = {f"{gates}cells.weight_ih_l0[0]", f"{gates}cells.weight_hh_l0[0]", "cells.weight_hh_l0[1]"}
    assert rows < set(placed(widths)["cells"])
    assert all("forward" not in vars(part) for part in net.modules())


@pytest.mark.parametrize(("kind", "options"), [*RECURRENT, (nn.RNN, {"nonlinearity": "relu"})])
@pytest.mark.parametrize("begun", [True, False])
def test_a_recurrent_layer_that_is_opened_computes_what_it_did(
    kind: Callable[..., nn.RNNBase], options: dict[str, Any], begun: bool
) -> None:
    layer = stirred(kind(6, 8, **options))
    for x in (samples(5, 6), samples(5, 6)[0]):
        state = layer(x)[1] if begun else None
        wanted = layer(x, state)
        with opened(layer):
            found = layer(x, state)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_opening_puts_back_what_was_there() -> None:
    layer = stretch(nn.LSTM(6, 8))
    before = vars(layer)["forward"]
    with opened(layer):
        assert vars(layer)["forward"] is not before
    assert vars(layer)["forward"] is before


@pytest.mark.parametrize("sizes", [{}, {"kdim": 5, "vdim": 7}])
def test_layers_of_attention_keep_their_heads_and_narrow_them(sizes: dict[str, int]) -> None:
    def use(net: Any, x: Tensor) -> Tensor:
        return net.o(net.heed(net.q(x), net.k(x), net.v(x), need_weights=False)[0].mean(1))

    k, v = sizes.get("kdim", 12), sizes.get("vdim", 12)
    heed = nn.MultiheadAttention(12, 3, batch_first=True, **sizes)
    net = Net(use, q=nn.Linear(6, 12), k=nn.Linear(6, k), v=nn.Linear(6, v), heed=heed, o=nn.Linear(12, 3))
    widths = check(net, samples(5, 6))
    heads = next(places for places in placed(widths).values() if "3 x heed.out_proj.weight[1]" in places)
    apart = [f"3 x heed.{side}_proj_weight[0]" for side in "qkv"]
    blocks = apart if sizes else ["9 x heed.in_proj_weight[0]"]
    assert heads == sorted(["3 x heed.out_proj.weight[1]", "9 x heed.in_proj_bias[0]", *blocks])


@pytest.mark.parametrize("first", [True, False])
def test_transformers(first: bool) -> None:
    layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, norm_first=first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    net = Net(
        lambda net, x: net.o(net.encoder(net.i(x)).mean(1)), i=nn.Linear(6, 12), encoder=encoder, o=nn.Linear(12, 3)
    )
    assert sorted(dict(check(net, samples(5, 6)).sizes).values()) == [4, 4, 12, 20, 20]
    bound(WidthSlice((1.0, 1 / 3, 1 / 16)), objective(lambda: copy.deepcopy(net), samples(5, 6)))


def test_transformers_with_a_causal_mask() -> None:
    def use(net: Any, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return net.o(net.layer(net.i(x), mask, is_causal=True)[:, -1])

    layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True)
    net = Net(use, i=nn.Linear(6, 12), layer=layer, o=nn.Linear(12, 3)).double()
    assert sorted(dict(rule(net, samples(5, 6)).sizes).values()) == [4, 12, 20]
    bound(WidthSlice((1.0, 1 / 3, 1 / 16)), objective(lambda: copy.deepcopy(net), samples(5, 6)))


def narrow_attention(**options: Any) -> tuple[nn.Module, nn.Module]:
    """Torch's own layer of 8 channels, and one of 16 channels, of which these 8 are held."""
    layers = [nn.MultiheadAttention(width, 2, **options) for width in (8, 16)]
    small, wide = stirred(layers[0]), stretch(layers[1].double().eval())
    for name, tensor in small.named_parameters():
        part, _, attribute = name.rpartition(".")
        wide.get_submodule(part)._parameters[attribute] = tensor
    return small, wide


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", ["none", "bool", "float", "for each head"])
def test_narrow_attention_is_torchs_own(batch_first: bool, bias: bool, need_weights: bool, kind: str) -> None:
    small, wide = narrow_attention(batch_first=batch_first, bias=bias)
    query, keys = (x if batch_first else x.transpose(0, 1) for x in (samples(4, 8), samples(5, 8)))
    later = torch.arange(4)[:, None] < torch.arange(5) - 2
    padding = torch.arange(5) >= torch.tensor([[5], [4], [3]])
    numbers = torch.where(later, -1.5, 0.25).double()
    masks: dict[str, dict[str, Tensor]] = {
        "none": {},
        "bool": {"attn_mask": later, "key_padding_mask": padding},
        "float": {"attn_mask": numbers, "key_padding_mask": padding.double()},
        "for each head": {"attn_mask": numbers * torch.arange(6).view(6, 1, 1)},
    }
    for average in (True, False):
        given = {**masks[kind], "need_weights": need_weights, "average_attn_weights": average}
        found, wanted = (layer(query, keys, keys, **given) for layer in (wide, small))
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_narrow_attention_takes_a_sample_without_its_batch() -> None:
    small, wide = narrow_attention()
    x, padding = samples(5, 8)[0], torch.tensor([False, False, True, False, True])
    torch.testing.assert_close(wide(x, x, x, padding), small(x, x, x, padding), rtol=1e-9, atol=1e-9)


def test_without_gradients_torch_takes_no_short_cut_through_narrow_transformers() -> None:
    padding = torch.arange(5) >= torch.tensor([[5], [4], [3]])

    def use(net: Any, x: Tensor) -> Tensor:
        return net.o(net.encoder(net.i(x), src_key_padding_mask=padding[: len(x)])[:, 0])

    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 2, 20, batch_first=True), 2)
    module = stirred(Net(use, i=nn.Linear(6, 12), encoder=encoder, o=nn.Linear(12, 3)))
    widths, x = rule(module, samples(5, 6)), samples(5, 6)
    for share in (1.0, 1 / 2, 1 / 3):
        part = widths.part(draw(widths, share, 2), CPU).take(travels(module))
        elastic = stretch(copy.deepcopy(module))
        wanted = functional_call(module if share == 1 else elastic, part, (x,))
        with torch.no_grad():
            torch.testing.assert_close(functional_call(elastic, part, (x,)), wanted, rtol=1e-9, atol=1e-9)


def test_transposed_convolutions() -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2), nn.ConvTranspose2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 16, 3)
    )
    found = placed(check(net, samples(2, 6, 6)))
    assert found == {
        "0": ["0.bias[0]", "0.weight[0]", "1.weight[0]"],
        "1": ["1.bias[0]", "1.weight[1]", "4.weight[1] x 16"],
    }


def test_embeddings_that_are_the_output_layer_too() -> None:
    def use(net: Any, x: Tensor) -> Tensor:
        return F.linear(net.b(net.a(net.words(x)).mean(1).relu()), net.words.weight)

    net = Net(use, words=nn.Embedding(CLASSES, 8), a=nn.Linear(8, 6), b=nn.Linear(6, 8))
    widths = check(net, words(4))
    assert placed(widths)["words"] == ["a.weight[1]", "b.bias[0]", "b.weight[0]", "words.weight[1]"]
    assert widths.labels == (("words.weight", 0),)


def test_a_parameter_with_two_names_is_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(CLASSES, 8), nn.Linear(8, CLASSES, bias=False)
            self.out.weight = self.words.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.words(x).mean(1).tanh())

    module = Tied()
    assert placed(rule(module, words(4))) == {"words": ["words.weight[1]"]}
    view = bound(WidthSlice((0.5,), order="random"), objective(Tied, words(4)))
    taken = view.part(travels(module), Clock(0, 1, 0), key(1)).take(travels(module))
    assert taken["words.weight"].shape == (CLASSES, 4)


def test_a_stream_that_is_the_input_is_fixed() -> None:
    net = Net(lambda net, x: net.o(x + net.b(net.a(x).relu())), a=nn.Linear(6, 8), b=nn.Linear(8, 6), o=nn.Linear(6, 3))
    assert placed(check(net, samples(6))) == {"a": ["a.bias[0]", "a.weight[0]", "b.weight[1]"]}


def test_a_layer_that_is_used_twice_has_the_same_channels_in_and_out() -> None:
    net = Net(
        lambda net, x: net.o(net.l(net.l(net.i(x)).tanh())), i=nn.Linear(6, 8), l=nn.Linear(8, 8), o=nn.Linear(8, 3)
    )
    assert placed(check(net, samples(6))) == {
        "i": sorted(["i.weight[0]", "i.bias[0]", "l.weight[0]", "l.weight[1]", "l.bias[0]", "o.weight[1]"])
    }


def test_operations_in_place() -> None:
    def use(net: Any, x: Tensor) -> Tensor:
        h = net.a(x)
        h += net.b(x)
        return net.o(net.act(h.mul_(2).clamp_(min=-1)).relu_())

    net = Net(use, a=nn.Linear(6, 8), b=nn.Linear(6, 8), act=nn.Hardswish(inplace=True), o=nn.Linear(8, 3))
    assert dict(check(net, samples(6)).sizes) == {"a": 8}


@pytest.mark.parametrize(
    "layer",
    [nn.PReLU(8), nn.RMSNorm(8), nn.LayerNorm(8), nn.BatchNorm1d(8), nn.GroupNorm(2, 8), nn.Hardswish(), nn.SiLU(),
     nn.Dropout(), nn.Softplus(), nn.LeakyReLU(0.1, inplace=True)],
    ids=str,
)  # fmt: skip
def test_layers_between_two_others(layer: nn.Module) -> None:
    assert len(check(nn.Sequential(nn.Linear(6, 8), layer, nn.Linear(8, 3)), samples(6)).sizes) == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda net, x: net.o((net.i(x) + net.p).mean(1)),
        lambda net, x: net.o(torch.cat([net.p[:, :1].expand(len(x), -1, -1), net.i(x)], 1).amax(1)),
        lambda net, x: net.o(F.normalize(net.i(x), dim=-1).sum(1)),
        lambda net, x: net.o(torch.einsum("btd,ptd->bd", net.i(x), net.p)),
        lambda net, x: net.o(torch.where(net.i(x) > 0.3, net.i(x), 0.1 * net.i(x)).mean(1)),
        lambda net, x: net.o(torch.stack([net.i(x)[:, 0], net.i(x)[:, 1]]).sum(0)),
    ],
    ids=["positions", "a token more", "normalised", "einsum", "where", "stack"],
)
def test_other_uses_of_channels(use: Callable[[Any, Tensor], Tensor]) -> None:
    net = Net(use, i=nn.Linear(6, 8), p=nn.Parameter(torch.zeros(1, 5, 8)), o=nn.Linear(8, 3))
    found = placed(check(net, samples(5, 6)))
    assert any({"i.weight[0]", "i.bias[0]", "o.weight[1]"} <= set(places) for places in found.values())


def test_products_of_channels_with_each_other() -> None:
    """Two layers meet in either order, in one flattened dimension."""

    def use(net: Any, x: Tensor) -> Tensor:
        a, b = net.a(x), net.b(x)
        return net.o((a[:, :, None] * b[:, None]).flatten(1) + (b[:, :, None] * a[:, None]).flatten(1))

    assert dict(check(Net(use, a=nn.Linear(6, 4), b=nn.Linear(6, 4), o=nn.Linear(16, 3)), samples(6)).sizes) == {"a": 4}


def test_what_a_frozen_layer_takes_and_gives_is_fixed() -> None:
    frozen = nn.Linear(8, 8).requires_grad_(False)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), frozen, nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
    assert placed(check(net, samples(6))) == {"4": ["4.bias[0]", "4.weight[0]", "6.weight[1]"]}


def test_a_stream_behind_group_norms_has_separate_groups_without_streams() -> None:
    def use(net: Any, x: Tensor) -> Tensor:
        h = net.norm(net.a(x))
        return net.o(net.second(h + net.b(x)))

    net = Net(
        use, a=nn.Linear(6, 8), norm=nn.GroupNorm(2, 8), b=nn.Linear(6, 8), second=nn.GroupNorm(2, 8), o=nn.Linear(8, 3)
    )
    assert len(rule(net.double(), samples(6), streams=False).sizes) == 2
    assert len(rule(net.double(), samples(6)).sizes) == 1


# What cannot be derived.


def objective(network: Callable[[], nn.Module], x: Tensor) -> Objective:
    y = torch.arange(len(x)) % 3
    return Objective(Task.of(network, (x, y), (x, y), clients=1), "cpu", key(1))


def bound(view: WidthSlice, to: Objective) -> View:
    return compose(view, SGD()).bind(to).training.view


def refused(network: Callable[[], nn.Module], x: Tensor, share: float = 0.5) -> str:
    with pytest.raises(ConfigError) as error:
        bound(WidthSlice((share,)), objective(network, x))
    return str(error.value)


def test_closed_layers_are_named_with_their_operation() -> None:
    def recurrent() -> nn.Module:
        cells = nn.LSTM(6, 8, proj_size=4, batch_first=True)
        return Net(lambda net, x: net.o(net.cells(x)[0][:, -1]), cells=cells, o=nn.Linear(4, 3)).double()

    reason = refused(recurrent, samples(5, 6))
    assert "layer cells (LSTM): there is no rule for this operation (in aten." in reason
    assert "state it by hand" in reason


def test_an_operation_without_a_rule_is_named_with_its_layer() -> None:
    class Sorted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.topk(4).values

    reason = refused(lambda: nn.Sequential(nn.Linear(6, 8), Sorted(), nn.Linear(4, 3)).double(), samples(6))
    assert "layer 1 (Sorted): there is no rule for this operation (in aten.topk.default)" in reason
    assert "state it by hand" in reason


def closed() -> nn.Module:
    """Two layers, of which the rule cannot be derived because of what comes behind them."""
    layers = {"a": nn.Linear(6, 8), "b": nn.Linear(8, 5), "o": nn.Linear(4, 3)}
    return Net(lambda net, x: net.o(net.b(net.a(x).relu()).topk(4).values), **layers).double()


def test_an_operation_outside_of_layers_is_the_networks_own() -> None:
    assert "the network itself: there is no rule for this operation (in aten.topk.default)" in refused(
        closed, samples(6)
    )


def test_attention_that_remembers_its_width_is_refused_with_its_name() -> None:
    def use(net: Any, x: Tensor) -> Tensor:
        h = net.i(x)
        return net.o(net.attention(h, h, h, need_weights=False)[0].mean(1))

    def network() -> nn.Module:
        attention = nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=True)
        return Net(use, i=nn.Linear(6, 8), attention=attention, o=nn.Linear(8, 3)).double()

    reason = refused(network, samples(5, 6))
    assert "does not work with 0.5 of its channels" in reason
    assert "at layer attention (MultiheadAttention)" in reason
    assert "give a width rule" in reason


def test_a_width_that_code_writes_out_is_refused_with_the_layer() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.view(-1, 64))

    reason = refused(lambda: nn.Sequential(nn.Linear(6, 64), nn.ReLU(), Head()).double(), samples(6))
    assert "at layer 2" in reason
    assert "give a width rule" in reason
    reason = refused(lambda: nn.Sequential(nn.Linear(6, 64), nn.ReLU(), Head()).double(), samples(6), share=1 / 3)
    assert "at layer 2 (Head)" in reason


def test_pieces_of_written_sizes_are_refused() -> None:
    def use(net: Any, x: Tensor) -> Tensor:
        a, b = net.i(x).split([3, 5], 1)
        return net.a(a) + net.b(b)

    reason = refused(lambda: Net(use, i=nn.Linear(6, 8), a=nn.Linear(3, 3), b=nn.Linear(5, 3)).double(), samples(6))
    assert "does not work with 0.5 of its channels" in reason


def test_a_network_without_channels_is_refused() -> None:
    assert rule(*zoo("logistic")[:2]).sizes == ()
    reason = refused(lambda: build("logistic", (6,), 3).double(), samples(6))
    assert "the width rule finds no channels" in reason


def test_a_network_must_give_one_tensor() -> None:
    with pytest.raises(
        ConfigError, match="the network must return a tensor, or an object with a tensor `logits`, got a tuple"
    ):
        rule(Net(lambda net, x: (net.a(x), x), a=nn.Linear(6, 3)).double(), samples(6))


# By hand.


@pytest.mark.parametrize("name", [name for name in NETS if name not in ("logistic", "gpt2")])
def test_what_is_derived_can_be_stated_by_hand(name: str) -> None:
    module, _, widths = zoo(name)
    stated = Widths.stated(ties(placed(widths)), travels(module))
    assert dict(stated.sizes) == dict(widths.sizes)
    assert dict(stated.axes) == dict(widths.axes)


def pyramid(net: Any, x: Tensor) -> Tensor:
    """Concatenated twice over, with the input in between, flattened, and a part of it gated."""
    a, b = net.a(x), net.b(x)
    both = torch.cat([a, x, torch.cat([b, a], 1)], 1)
    gated = F.glu(net.c(both), 1)
    return net.o(torch.cat([both.flatten(1), gated.flatten(1)], 1)) + net.p(net.c(both).flatten(1))


PYRAMID = {
    "a": nn.Conv2d(2, 4, 3, padding=1), "b": nn.Conv2d(2, 6, 1), "c": nn.Conv2d(16, 10, 1),
    "o": nn.Linear(16 * 9 + 5 * 9, 3), "p": nn.Linear(10 * 9, 3),
}  # fmt: skip


def test_concatenations_can_be_stated_by_hand() -> None:
    module, x = stirred(Net(pyramid, **PYRAMID)), samples(2, 3, 3)
    widths = rule(module, x)
    assert placed(widths)["a"] == [
        "a.bias[0]", "a.weight[0]", "c.weight[1][0:4]", "c.weight[1][12:16]", "o.weight[1][0:36] x 9",
        "o.weight[1][108:144] x 9",
    ]  # fmt: skip
    assert placed(widths)["c"] == [
        "2 x c.bias[0]",
        "2 x c.weight[0]",
        "2 x p.weight[1] x 9",
        "o.weight[1][144:189] x 9",
    ]
    stated = Widths.stated(ties(placed(widths)), travels(module))
    assert dict(stated.sizes) == dict(widths.sizes)
    for seed, share in enumerate((1 / 2, 1 / 3, 1 / 16, 1.0)):
        part, again = (each.part(draw(widths, share, seed), CPU) for each in (widths, stated))
        agree(module, x, again)
        for name, tensor in travels(module).items():
            assert torch.equal(part.take({name: tensor})[name], again.take({name: tensor})[name])


SIZES = {"a": 2, "b": 3, "c": 5}


def factors(parts: st.SearchStrategy[Axis]) -> st.SearchStrategy[Factor]:
    whole = st.integers(1, 3).map(Factor)
    groups = st.sampled_from(sorted(SIZES)).map(lambda group: Factor(SIZES[group], group))
    rows = st.lists(parts, min_size=1, max_size=3).map(
        lambda row: Factor(sum(part.size for part in row), None, tuple(row))
    )
    return whole | groups | rows


AXES = st.recursive(
    st.integers(1, 4).map(lambda size: Axis((Factor(size),))),
    lambda parts: st.lists(factors(parts), min_size=1, max_size=3).map(lambda found: Axis(tuple(found))),
    max_leaves=6,
)


def multiplied(axis: Axis) -> bool:
    within = (multiplied(part) for factor in axis.factors for part in factor.parts)
    return sum(bool(factor.groups) for factor in axis.factors) > 1 or any(within)


@settings(deadline=None)
@given(axis=AXES, seed=st.integers(0, 99))
def test_any_dimension_without_products_is_its_runs(axis: Axis, seed: int) -> None:
    """Concatenations within concatenations, several times over, with several entries for each channel."""
    channels = {g: torch.from_numpy(permutation(fold(key(seed), g), n)[: n // 2 + 1]).sort() for g, n in SIZES.items()}
    kept = {group: found.values for group, found in channels.items()}
    runs = axis.runs()
    assert (runs is None) == multiplied(axis)
    if runs is None:
        return
    assert sum(run.entries for run in runs) == axis.size
    assert Axis.of_runs(runs).chosen(kept).tolist() == axis.chosen(kept).tolist()
    like, places = {"w": torch.zeros(axis.size)}, Widths(tuple(SIZES.items()), (("w", (axis,)),))
    groups = {group: list(places.members(group)) for group in sorted(axis.groups)}
    stated = Widths.stated(ties(groups), like)
    assert dict(stated.axes)["w"][0].chosen(kept).tolist() == axis.chosen(kept).tolist()


def test_products_of_channels_cannot_be_stated_by_hand() -> None:
    def use(net: Any, x: Tensor) -> Tensor:
        return net.o((net.a(x)[:, :, None] * net.b(x)[:, None]).flatten(1))

    net = Net(use, a=nn.Linear(6, 4), b=nn.Linear(6, 4), o=nn.Linear(16, 3)).double()
    widths = rule(net, samples(6))
    assert widths.multiplied == ["o.weight[1]"]
    assert "o.weight[1] times others" in placed(widths)["a"]
    assert Axis((Factor(4, "a"), Factor(4, "b"))).runs() is None
    assert Axis((Factor(4, "a"), Factor(3), Factor(2))).runs() is not None


LIKE = {"a.weight": torch.zeros(8, 6), "a.bias": torch.zeros(8), "b.weight": torch.zeros(3, 32)}


def test_a_rule_by_hand() -> None:
    widths = Widths.stated(ties({"hidden": ["a.weight[0]", "a.bias[0]", " b.weight[1] x 4 "]}), LIKE)
    assert widths.sizes == (("hidden", 8),)
    part = widths.part({"hidden": torch.tensor([1, 7])}, CPU)
    assert {name: tuple(t.shape) for name, t in part.take(LIKE).items()} == {
        "a.weight": (2, 6), "a.bias": (2,), "b.weight": (3, 8)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ({"h": ["c.weight[0]"]}, "'c.weight[0]' of group h is no dimension of a tensor"),
        ({"h": ["a.weight[2]"]}, "'a.weight[2]' of group h is no dimension of a tensor"),
        ({"h": ["a.weight"]}, "'a.weight' of group h is no dimension of a tensor"),
        ({"h": ["a.weight[-1]"]}, "'a.weight[-1]' of group h is no dimension of a tensor"),
        ({"h": ["3 x a.weight[0]"]}, "'3 x a.weight[0]' of group h does not fit: that dimension has 8 entries"),
        ({"h": ["0 x a.weight[0]"]}, "'0 x a.weight[0]' of group h does not fit"),
        ({"h": ["a.weight[0] x 0"]}, "'a.weight[0] x 0' of group h does not fit"),
        ({"h": ["a.bias[0]"], "g": ["a.bias[0]"]}, "'a.bias[0]' of group g belongs to group h already"),
        ({"h": ["a.bias[0]", "a.bias[0]"]}, "'a.bias[0]' of group h belongs to group h already"),
        ({"h": ["a.bias[0]", "a.weight[1]"]}, "group h must have equal numbers of channels, but a.bias[0] has 8"),
        ({"h": []}, "group h has no dimensions"),
        ({"h": ["b.weight[1][8:8]"]}, "'b.weight[1][8:8]' of group h does not fit: that dimension has 32 entries"),
        ({"h": ["b.weight[1][8:33]"]}, "'b.weight[1][8:33]' of group h does not fit: that dimension has 32 entries"),
        ({"h": ["b.weight[1][8:16] x 3"]}, "'b.weight[1][8:16] x 3' of group h does not fit"),
        ({"h": ["b.weight[1][8]"]}, "'b.weight[1][8]' of group h is no dimension of a tensor"),
        (
            {"h": ["b.weight[1][0:8]"], "g": ["b.weight[1][7:15]"]},
            "'b.weight[1][7:15]' of group g belongs to group h already",
        ),
        ({"h": ["b.weight[1][0:8]"], "g": ["b.weight[1]"]}, "'b.weight[1]' of group g belongs to group h already"),
        (
            {"h": ["a.bias[0]", "b.weight[1][0:6]"]},
            "group h must have equal numbers of channels, but a.bias[0] has 8",
        ),
        ({"labels": ["b.weight[0][0:2]"]}, "'b.weight[0][0:2]' of group labels must be a whole dimension"),
    ],
)
def test_mistakes_in_a_rule_by_hand_are_named(groups: dict[str, list[str]], reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        Widths.stated(ties(groups), LIKE)
    assert any(reason in mistake for mistake in error.value.mistakes), error.value.mistakes


def test_entries_of_a_dimension_that_belong_to_no_group_are_kept() -> None:
    widths = Widths.stated(ties({"h": ["a.bias[0]", "b.weight[1][4:12]"], "g": ["b.weight[1][16:32] x 4"]}), LIKE)
    assert dict(widths.sizes) == {"h": 8, "g": 4}
    part = widths.part({"h": torch.tensor([0, 7]), "g": torch.tensor([2])}, CPU)
    assert present(part.index["b.weight"][1]).tolist() == [*range(4), 4, 11, *range(12, 16), *range(24, 28)]


def test_all_mistakes_of_a_rule_are_listed() -> None:
    with pytest.raises(ConfigError) as error:
        Widths.stated(ties({"h": ["c.weight[0]", "3 x a.weight[0]"], "g": ["a.bias[0]", "b.weight[1]"]}), LIKE)
    assert len(error.value.mistakes) == 3


def test_a_group_that_is_stated_twice_is_a_mistake() -> None:
    rule_ = type(ties({}))((("h", ("a.bias[0]",)), ("h", ("b.weight[1]",))))
    with pytest.raises(ConfigError, match="group h is stated twice"):
        Widths.stated(rule_, LIKE)


def test_a_rule_by_hand_narrows_what_cannot_be_derived() -> None:
    by_hand = ties({"a": ["a.weight[0]", "a.bias[0]", "b.weight[1]"]})
    view = bound(WidthSlice((0.25,), ties=by_hand), objective(closed, samples(6)))
    like = travels(closed())
    assert view.part(like, Clock(0, 1, 0), key(0)).take(like)["b.weight"].shape == (5, 2)


def test_a_rule_by_hand_without_a_tied_dimension_is_refused_at_its_layer() -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()

    wrong = ties({"a": ["0.weight[0]", "0.bias[0]"]})
    with pytest.raises(ConfigError, match=r"at layer 2 \(Linear\)"):
        bound(WidthSlice((0.5,), ties=wrong), objective(network, samples(6)))


def test_deriving_a_rule_leaves_the_network_as_it_was_and_takes_a_sample_alone() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    before = copy.deepcopy(net.state_dict())
    alone, several = (derive(net, travels(net), samples(6)[:rows]) for rows in (1, 3))
    assert alone == several
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_every_capacity_is_tried_before_the_first_round() -> None:
    """Without streams, groups of 4 twice over and one of 8 are added up: at 1/4 that fits, at 3/8 it does not."""

    def use(net: Any, x: Tensor) -> Tensor:
        h = net.a(x)
        return net.o(h + net.b(net.norm(h).relu()))

    def network() -> nn.Module:
        layers = {"a": nn.Linear(6, 8), "b": nn.Linear(8, 8), "norm": nn.GroupNorm(2, 8), "o": nn.Linear(8, 3)}
        return Net(use, **layers).double()

    bound(WidthSlice((1 / 4,), streams=False), objective(network, samples(6)))
    with pytest.raises(ConfigError, match=r"does not work with 0\.375 of its channels"):
        bound(WidthSlice((1 / 4, 3 / 8), streams=False), objective(network, samples(6)))
