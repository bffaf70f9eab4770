"""LoRA: each linear layer gets a trainable product of two small matrices; all other parameters are frozen.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, https://arxiv.org/abs/2106.09685. A layer with
the frozen weight W (outputs x inputs) computes

    y = W x + bias + (alpha / rank) B A x        A: rank x inputs,  B: outputs x rank

A is drawn as the weight of a linear layer is, as in the authors' code, and B is zero, so training starts from the
network as it is. A layer's two tensors are called ``lora_A`` and ``lora_B``, beside its ``weight`` and ``bias``, whose
names stay as they were.

With ``train="B"``, A is frozen too, as in FFA-LoRA (Sun et al., ICLR 2024, https://arxiv.org/abs/2403.12313). The
product is then linear in what is trained, so the mean of the clients' matrices B is the mean of their products, which
it is not if A and B are averaged separately. All machines draw the same A.

With ``merges=True``, the weights W are exchanged buffers instead of frozen parameters, so that a server can add
products to them (``gossamer.parts.servers.low_rank``).
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gossamer.core.adapter import Adapter
from gossamer.core.errors import ConfigError, Mistake, Setting, require, wrong
from gossamer.core.types import fits

A, B = "lora_A", "lora_B"
"""The names of the two tensors of an adapted layer."""

FACTOR = 2.0
"""The default factor of the product. It does not depend on the rank, so one learning rate suits several ranks."""


class LowRankLayer(nn.Module):
    """The part of an adapted layer that is common to all kinds of linear layers; it precedes the layer's own class."""

    constant_buffers: ClassVar[tuple[str, ...]] = ("weight",)

    lora_A: Tensor  # noqa: N815 - the name of the paper's authors
    lora_B: Tensor  # noqa: N815
    lora_scale: float

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer, plus that of the two small matrices."""
        output: Tensor = super().forward(x)  # of the layer's own class
        rank = self.lora_B.shape[1]  # a client may hold fewer columns than a frozen A has rows
        low = F.linear(F.linear(x, self.lora_A[:rank]), self.lora_B)
        return output + low * self.lora_scale


class LoRALinear(LowRankLayer, nn.Linear):
    """An ``nn.Linear`` with two small matrices beside its weight."""


@dataclass(frozen=True)
class LoRA(Adapter):
    """Trains a product of two small matrices for each linear layer.

    https://arxiv.org/abs/2106.09685

    Args:
        rank: the number of rows of A and of columns of B
        alpha: the factor of the product, times the rank; none: twice the rank, so the factor is 2
        targets: names of the layers to adapt, or the last words of them, such as ``qkv``; * matches any text
        also: names of other parameters that are trained as they are, such as ``head.*``
        train: which of the two matrices are trained: both, or B alone (FFA-LoRA)
        merges: exchange the weights of adapted layers too, for a server that adds products to them
    """

    rank: int = 8
    alpha: float | None = None
    targets: tuple[str, ...] = ("*",)
    also: tuple[str, ...] = ()
    train: Literal["both", "B"] = "both"
    merges: bool = False

    def __post_init__(self) -> None:
        require(
            (self.rank >= 1, wrong(self, "rank", "must be at least 1")),
            (self.alpha is None or 0 < self.alpha < math.inf, wrong(self, "alpha", "must be a positive number")),
            (len(self.targets) > 0, wrong(self, "targets", "must not be empty")),
            (self.train in ("both", "B"), wrong(self, "train", "must be both or B")),
        )

    @property
    def scale(self) -> float:
        """The factor of the product of the two matrices."""
        return FACTOR if self.alpha is None else self.alpha / self.rank

    def adapt(self, network: nn.Module) -> nn.Module:
        """Freeze the network, and add two matrices to each of the chosen layers."""
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(any(fits(name, pattern) for pattern in self.also))
        for layer in linear_layers(network, self.targets, type(self).__name__).values():
            self._add(layer)
        return network

    def _add(self, layer: Any) -> None:
        """Turn a layer into an adapted one, in place."""
        made, weight = adapted_class(type(layer)), layer.get_parameter("weight")
        assert made is not None
        outputs, inputs = weight.shape if isinstance(layer, nn.Linear) else weight.shape[::-1]
        down = torch.empty(self.rank, inputs, dtype=weight.dtype)
        nn.init.kaiming_uniform_(down, a=math.sqrt(5))
        layer.__class__ = made
        layer.register_parameter(A, nn.Parameter(down, requires_grad=self.train == "both"))
        layer.register_parameter(B, nn.Parameter(weight.new_zeros(outputs, self.rank)))
        layer.lora_scale = self.scale
        if self.merges:
            del layer._parameters["weight"]
            layer.register_buffer("weight", weight.detach())

    @torch.no_grad()
    def merge(self, network: nn.Module) -> nn.Module:
        """Return the network with the products added to the weights, and without the small matrices."""
        for layer in network.modules():
            if isinstance(layer, LowRankLayer):
                _restore(layer)
        return network

    def to_peft(self, network: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the two matrices of each layer, and a ``LoraConfig`` as a mapping."""
        alone = "has no form that PEFT can read, because other tensors change too: export the merged model instead"
        require((not self.also and not self.merges, f"{self!r} {alone}"))
        layers: dict[str, Any] = {n: each for n, each in network.named_modules() if isinstance(each, LowRankLayer)}
        tensors = {
            f"base_model.model.{name}.{letter}.weight": layer.get_parameter(letter).detach()
            for name, layer in layers.items()
            for letter in (A, B)
        }
        config = {"peft_type": "LORA", "r": self.rank, "lora_alpha": self.scale * self.rank}
        turned = not any(isinstance(layer, nn.Linear) for layer in layers.values())
        return tensors, {**config, "target_modules": named_exactly(layers), "fan_in_fan_out": turned}


def linear_layers(network: nn.Module, targets: Sequence[str], part: str) -> dict[str, nn.Module]:
    """Return the linear layers with these names; refuse a name that no layer has, as a mistake in a part's targets."""
    linear = {name: layer for name, layer in network.named_modules() if adapted_class(type(layer)) is not None}
    unused = [target for target in targets if not any(_named(name, target) for name in linear)]
    if unused:
        names = ", ".join(linear) or "none"
        rest = f": no linear layer is called {', '.join(unused)}: the network has {names}"
        raise ConfigError(Mistake(rest, Setting(part, "targets")))
    return {name: layer for name, layer in linear.items() if any(_named(name, target) for target in targets)}


def _named(name: str, target: str) -> bool:
    """Return whether a layer is meant: by its whole name, or by the last words of it, such as ``qkv``."""
    return fits(name, target) or fits(name, f"*.{target}")


def named_exactly(names: Iterable[str]) -> str:
    """Return the pattern by which PEFT finds these layers and no others."""
    return "|".join(map(re.escape, names))


def _restore(layer: Any) -> None:
    """Turn an adapted layer into one of its own class, in place."""
    product = layer.lora_scale * (layer.lora_B @ layer.lora_A)
    weight = layer.weight + (product if isinstance(layer, nn.Linear) else product.T)
    layer.__class__ = type(layer).__mro__[2]
    layer._buffers.pop("weight", None)
    others = {name: tensor for name, tensor in layer._parameters.items() if name not in ("weight", A, B)}
    layer._parameters.clear()
    layer._parameters.update({"weight": nn.Parameter(weight), **others})  # the weight comes first, as in a new layer
    del layer.lora_scale


_CLASSES: dict[type, type[nn.Module]] = {nn.Linear: LoRALinear}
"""The classes of adapted layers, by those of the layers."""


def adapted_class(kind: type) -> type[nn.Module] | None:
    """Return the class of an adapted layer, given that of the layer; none if it is not a linear layer.

    Subclasses of ``nn.Linear`` are not adapted: PyTorch's attention, for example, uses the weight of its output layer
    without calling the layer.
    """
    if kind not in _CLASSES and f"{kind.__module__}.{kind.__name__}" == "transformers.pytorch_utils.Conv1D":
        _CLASSES[kind] = type("LoRAConv1D", (LowRankLayer, kind), {"__doc__": "A ``Conv1D`` with two small matrices."})
    return _CLASSES.get(kind)
