"""The transformer: against a slow version, without sight of later characters, stacked, narrower, and by its sizes."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gossamer import Task, fedavg, simulate
from gossamer.core.errors import ConfigError
from gossamer.core.random import key
from gossamer.engines.warm_start import Init
from gossamer.tasks import nets
from gossamer.tasks.nets.text import GPT
from gossamer.tasks.objective import Objective

CHARACTERS, LENGTH = 11, 7
TINY = "gpt:2,8,2"


def built(name: str = TINY, seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nets.build(name, (LENGTH,), CHARACTERS).double()


def texts(rows: int, seed: int = 5) -> Tensor:
    return torch.randint(CHARACTERS, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))


def slow(net: Any, row: list[int], heads: int) -> list[Tensor]:
    """The scores of one text, position by position, with a softmax over the positions up to it."""
    stream = [net.characters.weight[c] + net.positions.weight[at] for at, c in enumerate(row)]
    for block in net.blocks:
        read = [block.attention.qkv.weight @ block.norm1(x) for x in stream]
        for at, x in enumerate(list(stream)):
            mixed = []
            for head in range(heads):
                own = [part.view(3, heads, -1)[:, head] for part in read[: at + 1]]
                scores = torch.stack([own[at][0] @ other[1] for other in own]) / math.sqrt(len(own[0][0]))
                mixed.append(sum(w * other[2] for w, other in zip(scores.softmax(0), own, strict=True)))
            stream[at] = x + block.attention.out.weight @ torch.cat(mixed)
        stream = [x + block.down.weight @ F.gelu(block.up.weight @ block.norm2(x)) for x in stream]
    return [net.output.weight @ net.norm(x) for x in stream]


def test_scores_are_those_of_a_slow_version() -> None:
    net, x = built(), texts(3)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(8)  # so that attention is far from uniform
        wanted = torch.stack([torch.stack(slow(net, row.tolist(), heads=2)) for row in x])
        torch.testing.assert_close(net(x), wanted, rtol=1e-9, atol=1e-9)


def test_a_position_sees_itself_and_earlier_ones_alone() -> None:
    net, x = built(), texts(1)
    before = net(x)
    for at in range(LENGTH):
        other = x.clone()
        other[0, at] = (x[0, at] + 1) % CHARACTERS
        changed = (net(other) - before).abs().amax(-1)[0] > 1e-12
        assert changed.tolist() == [position >= at for position in range(LENGTH)]


def test_the_residual_stream_starts_as_small_at_any_depth() -> None:
    net = nets.build("gpt:8,64,4", (LENGTH,), CHARACTERS)
    for name, tensor in net.named_parameters():
        if tensor.dim() > 1:
            std = 0.02 / 4 if name.endswith((".out.weight", ".down.weight")) else 0.02
            assert tensor.std().item() == pytest.approx(std, rel=0.2), name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt:2,9,2", "model 'gpt:2,9,2': width must be a positive multiple of heads, got 9"),
        ("gpt:0", "layers must be at least 1, got 0"),
        ("gpt:x", "layers must be a whole number, got 'x'"),
        ("mlp:3", "model 'mlp:3': mlp has one size: leave out what follows the colon"),
        ("gtp:3", "unknown model 'gtp': did you mean gpt"),
    ],
)
def test_sizes_that_do_not_exist_are_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nets.build(name, (LENGTH,), CHARACTERS)


def task(net: Any = built, clients: int = 3) -> Task:
    x, y = texts(12), texts(12, seed=6)
    return Task.of(net, (x, y), (x, y), clients=clients)


@pytest.mark.filterwarnings("error")
def test_clients_train_together_as_one_by_one() -> None:
    alone, stacked = (
        simulate(fedavg(lr=0.5, epochs=2, batch=2), task(), rounds=1, executor=name).model.state_dict()
        for name in ("one-by-one", "stacked")
    )
    for name, tensor in alone.items():
        torch.testing.assert_close(stacked[name], tensor, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("error")
def test_clients_train_together_in_bf16() -> None:
    given = task(lambda: built().float())
    alone, stacked = (
        simulate(fedavg(lr=0.1, steps=2, batch=2), given, rounds=1, executor=name, precision="bf16").model.state_dict()
        for name in ("one-by-one", "stacked")
    )
    start = built().float().state_dict()
    for name, tensor in alone.items():
        assert (stacked[name] - tensor).norm() < 0.05 * (tensor - start[name]).norm() + 1e-4, name


@pytest.mark.filterwarnings("error")
def test_gradients_of_single_samples_have_the_batchs_as_their_mean() -> None:
    here = Objective(task(), "cpu", key(0))
    here.check_per_sample()
    params, (x, y) = here.initial(), here.samples.example(4)
    _, whole, _ = here.gradient(params, x, y)
    _, each, _ = here.sample_gradients(params, x, y)
    for name, gradient in whole.items():
        torch.testing.assert_close(each[name].mean(0), gradient, rtol=1e-9, atol=1e-12)


def test_bf16_is_close_to_float32() -> None:
    here = [Objective(task(lambda: built().float()), "cpu", key(0), precision) for precision in ("float32", "bf16")]
    x, y = here[0].samples.example(4)
    exact, rough = (one.gradient(here[0].initial(), x, y)[1] for one in here)
    for name, gradient in exact.items():
        assert (rough[name] - gradient).norm() < 0.03 * gradient.norm() + 1e-4, name


def test_a_narrower_network_is_the_transformer_of_that_width() -> None:
    here = Objective(task(), "cpu", key(0))
    widths = here.widths()
    part = widths.part({name: torch.arange(size // 2) for name, size in widths.sizes}, torch.device("cpu"))
    held = part.take(here.initial())
    small = GPT(CHARACTERS, LENGTH, 2, 4, 2).double()
    small.load_state_dict(held)
    torch.testing.assert_close(here.build(held)(texts(3)), small(texts(3)), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_that_of_transformers_has_tied_weights_and_takes_weights_without_the_copy() -> None:
    pytest.importorskip("transformers")
    name = "gpt2:2,8,2"
    given = task(lambda: built(name), clients=2)
    result = simulate(fedavg(steps=1), given, rounds=1)
    assert result.metrics[-1]["perplexity"] > 1
    whole = result.model.state_dict()
    assert torch.equal(whole["lm_head.weight"], whole["transformer.wte.weight"])
    some = {key: tensor for key, tensor in whole.items() if key != "lm_head.weight"}
    started: Any = Init.of(some).applied(given).model()
    assert torch.equal(started(texts(2)).logits, result.model(texts(2)).logits)
    assert started.config.attn_pdrop == started.config.resid_pdrop == started.config.embd_pdrop == 0
