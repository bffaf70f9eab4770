"""Networks by name. To add one, write a function from (input shape, outputs) to a module, and list it in ``NETS``.

The outputs are the scores of the classes or, if targets are numbers, one number for each of them.

A network may have sizes: ``gpt:6,256,8``. These are the fields of a dataclass whose objects build the network.

Initial weights come from PyTorch's global generator. Seed it for reproducible weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gossamer.core import specs
from gossamer.core.errors import ConfigError, require
from gossamer.tasks.nets.images import (
    cnn2,
    cnn4,
    cnn8,
    cnn_gn,
    lenet5,
    logistic,
    mixer,
    mlp,
    resnet18,
    resnet18_gn,
    vgg11,
)
from gossamer.tasks.nets.text import GPT2Size, GPTSize, TransformerSize, lstm

__all__ = ["NETS", "Net", "build", "check_name"]


@dataclass(frozen=True)
class Net:
    """A network.

    Args:
        build: its constructor
        summary: what it is
        min_side: the smallest image side; 1 means any input shape, 0 means text
        sizes: the class of its sizes, if it has several
    """

    build: Callable[[torch.Size, int], nn.Module]
    summary: str
    min_side: int = 1
    sizes: type[TransformerSize] | None = None


NETS: dict[str, Net] = {
    "cnn2": Net(cnn2, "two 5 x 5 convolutions and 512 hidden units (PERM)", min_side=16),
    "cnn4": Net(cnn4, "four 3 x 3 convolutions with batch norm (FedMRN)", min_side=16),
    "cnn8": Net(cnn8, "eight 3 x 3 convolutions with batch norm (FedMRN)", min_side=16),
    "cnn-gn": Net(cnn_gn, "four 3 x 3 convolutions with group norm (benchmarks)", min_side=4),
    "gpt": Net(
        GPTSize().build,
        "a transformer for next characters, 4 layers of 128 channels; or gpt:LAYERS,WIDTH,HEADS",
        min_side=0,
        sizes=GPTSize,
    ),
    "gpt2": Net(GPT2Size().build, "the GPT-2 of transformers, with the sizes of gpt", min_side=0, sizes=GPT2Size),
    "lenet5": Net(lenet5, "two 5 x 5 convolutions and 500 hidden units (FedSpa)", min_side=16),
    "linear": Net(logistic, "one linear layer with a bias: linear regression"),
    "logistic": Net(logistic, "logistic regression with a bias"),
    "lstm": Net(lstm, "next-character prediction with 256 LSTM units (FedMRN)", min_side=0),
    "mixer": Net(mixer, "four blocks of linear layers across patches and across channels (MLP-Mixer)", min_side=4),
    "mlp": Net(mlp, "two hidden layers of 200 (PERM)"),
    "resnet18": Net(
        resnet18, "a residual network of 18 layers with static batch norm (HeteroFL, FedRolex)", min_side=8
    ),
    "resnet18-gn": Net(resnet18_gn, "a residual network of 18 layers with group norm (FedSpa)", min_side=8),
    "vgg11": Net(vgg11, "eight 3 x 3 convolutions with group norm (FedSpa)", min_side=32),
}
"""Networks by their name on the command line."""


def build(name: str, shape: Sequence[int], classes: int) -> nn.Module:
    """Build the network called ``name`` for inputs of ``shape``; refuse unsuitable shapes."""
    check_name(name)
    kind, sized, _ = name.partition(":")
    require((classes >= 1, f"model {name}: classes must be >= 1, got {classes}"))
    if (least := NETS[kind].min_side) > 1:
        if len(shape) != 3:
            wanted = f"{kind} needs images (channels x height x width)"
            raise ConfigError(f"{wanted}, got {_shown(shape)}: use mlp or logistic")
        _, height, width = shape
        small = f"{kind} needs images of at least {least} x {least}, got {height} x {width}: use mlp or logistic"
        require((min(height, width) >= least, small))
    if NETS[kind].min_side == 0:
        require((len(shape) == 1, f"{kind} needs text (one row of characters), got {_shown(shape)}"))
    made = specs.parse(name, _sizes(), "model").build if sized else NETS[kind].build
    return made(torch.Size(shape), classes)


def check_name(name: str) -> None:
    """Refuse a network that does not exist, and sizes that it does not have."""
    kind, sized, _ = name.partition(":")
    if kind not in NETS:
        raise ConfigError(specs.unknown("model", kind, NETS))
    if sized:
        require((kind in _sizes(), f"model {name!r}: {kind} has one size: leave out what follows the colon"))
        specs.parse(name, _sizes(), "model")


def _sizes() -> dict[str, type[TransformerSize]]:
    return {name: net.sizes for name, net in NETS.items() if net.sizes}


def _shown(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "single numbers"
