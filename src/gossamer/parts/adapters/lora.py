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

``Peft(8)`` is LoRA as the package PEFT (https://github.com/huggingface/peft, an extra: ``gossamer[peft]``) implements
it; it computes the same as ``LoRA(8)``. ``Peft.of(config)`` takes any configuration of PEFT whose adapter can be merged
into the network, such as ``LoraConfig(use_dora=True)`` or ``IA3Config``. Names of tensors change under PEFT:
``layer.lora_A.default.weight``, or ``layer.lora_embedding_A.default``. Initial weights are applied before it, so they
keep their names.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gossamer.core.adapter import Adapter
from gossamer.core.errors import ConfigError, Mistake, Setting, require, wrong
from gossamer.core.extras import need
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
            *_sizes(self),
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
        found: dict[str, Any] = linear_layers(network, self.targets, type(self).__name__)
        for layer in found.values():
            made, weight = adapted_class(type(layer)), layer.get_parameter("weight")
            assert made is not None
            outputs, inputs = weight.shape if isinstance(layer, nn.Linear) else weight.shape[::-1]
            down = torch.empty(self.rank, inputs, dtype=weight.dtype)  # [rank, inputs]
            nn.init.kaiming_uniform_(down, a=math.sqrt(5))
            layer.__class__ = made
            layer.register_parameter(A, nn.Parameter(down, requires_grad=self.train == "both"))
            layer.register_parameter(B, nn.Parameter(weight.new_zeros(outputs, self.rank)))
            layer.lora_scale = self.scale
            if self.merges:
                del layer._parameters["weight"]
                layer.register_buffer("weight", weight.detach())
        return network

    @torch.no_grad()
    def merge(self, network: nn.Module) -> nn.Module:
        """Return the network with the products added to the weights, and without the small matrices."""
        adapted: list[Any] = [layer for layer in network.modules() if isinstance(layer, LowRankLayer)]
        for layer in adapted:
            product = layer.lora_scale * (layer.lora_B @ layer.lora_A)  # [outputs, inputs]
            weight = layer.weight + (product if isinstance(layer, nn.Linear) else product.T)
            layer.__class__ = type(layer).__mro__[2]
            layer._buffers.pop("weight", None)
            others = {name: tensor for name, tensor in layer._parameters.items() if name not in ("weight", A, B)}
            layer._parameters.clear()  # the weight comes first, as in a new layer
            layer._parameters.update({"weight": nn.Parameter(weight), **others})
            del layer.lora_scale
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


def _sizes(part: "LoRA | Peft") -> list[tuple[bool, str | Mistake]]:
    """Return the checks of the fields that both adapters have."""
    return [
        (part.rank >= 1, wrong(part, "rank", "must be at least 1")),
        (part.alpha is None or 0 < part.alpha < math.inf, wrong(part, "alpha", "must be a positive number")),
        (len(part.targets) > 0, wrong(part, "targets", "must not be empty")),
    ]


def linear_layers(network: nn.Module, targets: Sequence[str], part: str) -> dict[str, nn.Module]:
    """Return the linear layers with these names; refuse a name that no layer has, as a mistake in a part's targets."""

    def meant(name: str, target: str) -> bool:
        return fits(name, target) or fits(name, f"*.{target}")  # the whole name, or its last words, such as qkv

    linear = {name: layer for name, layer in network.named_modules() if adapted_class(type(layer)) is not None}
    unused = [target for target in targets if not any(meant(name, target) for name in linear)]
    if unused:
        names = ", ".join(linear) or "none"
        rest = f": no linear layer is called {', '.join(unused)}: the network has {names}"
        raise ConfigError(Mistake(rest, Setting(part, "targets")))
    return {name: layer for name, layer in linear.items() if any(meant(name, target) for target in targets)}


def named_exactly(names: Iterable[str]) -> str:
    """Return the pattern by which PEFT finds these layers and no others."""
    return "|".join(map(re.escape, names))


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


RANKS = {"lora_A": 0, "lora_embedding_A": 0, "lora_B": 1, "lora_embedding_B": 1}
"""The dimension of a tensor that is the rank, by a word of its name: rows of A, columns of B."""

PARTNERS = {"lora_A": "lora_B", "lora_embedding_A": "lora_embedding_B"}


def rank_dimension(name: str) -> int | None:
    """Return the dimension that is the rank; none if a tensor does not belong to a low-rank adapter.

    >>> rank_dimension("h.0.lora_A"), rank_dimension("q.lora_B.default.weight"), rank_dimension("h.0.weight")
    (0, 1, None)
    """
    return next((RANKS[word] for word in name.split(".") if word in RANKS), None)


def pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names of A and B of each adapted layer of which both are among the names.

    >>> pairs(["h.lora_A", "h.lora_B", "k.lora_B", "h.weight"])
    [('h.lora_A', 'h.lora_B')]
    """
    known = list(names)
    found = [(name, ".".join(PARTNERS.get(word, word) for word in name.split("."))) for name in known]
    return [(a, b) for a, b in found if a != b and b in known]


@dataclass(frozen=True)
class Peft(Adapter):
    """An adapter of PEFT: LoRA with these fields, or any other by its configuration.

    https://github.com/huggingface/peft

    Args:
        rank: the number of rows of A and of columns of B
        alpha: the factor of the product, times the rank; none: twice the rank, so the factor is 2
        targets: names of the layers to adapt, or the last words of them, such as ``qkv``; * matches any text
        config: a configuration of PEFT as JSON, which replaces the other fields; ``Peft.of`` writes it
    """

    rank: int = 8
    alpha: float | None = None
    targets: tuple[str, ...] = ("*",)
    config: str = ""

    def __post_init__(self) -> None:
        require(*_sizes(self))

    @classmethod
    def of(cls, config: Any) -> "Peft":
        """Return the adapter of a configuration, such as ``peft.LoraConfig(r=4, target_modules=["query", "value"])``.

        The settings that differ from their defaults are kept as text, so that a run folder can record and compare them.
        """
        usual = vars(type(config)())
        given = {name: value for name, value in vars(config).items() if value != usual.get(name)}
        return cls(config=json.dumps({"peft_type": config.peft_type, **given}, default=_plain, sort_keys=True))

    def _config(self, network: nn.Module) -> Any:
        """Return PEFT's configuration for a network."""
        made: Any = need("peft").PeftConfig.from_peft_type
        if self.config:
            try:
                found = json.loads(self.config)
            except ValueError:
                found = None
            valid = isinstance(found, dict) and "peft_type" in found
            require((valid, wrong(self, "config", "must be a mapping in JSON with a peft_type: use Peft.of(config)")))
            return made(**found)
        names = named_exactly(linear_layers(network, self.targets, type(self).__name__))
        alpha = FACTOR * self.rank if self.alpha is None else self.alpha
        return made(peft_type="LORA", r=self.rank, lora_alpha=alpha, target_modules=names)

    def adapt(self, network: nn.Module) -> nn.Module:
        """Return the network inside of a ``PeftModel``."""
        config, peft = self._config(network), need("peft")
        try:
            made: nn.Module = peft.get_peft_model(network, config)
        except ValueError as error:
            raise ConfigError(f"Peft: {error}") from error
        require((hasattr(made, "merge_and_unload"), f"Peft: {config.peft_type} cannot be merged into a network"))
        return made

    def merge(self, network: nn.Module) -> nn.Module:
        """Return the network with the adapter merged into its weights."""
        module: Any = network
        merged: nn.Module = module.merge_and_unload()
        return merged

    def to_peft(self, network: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the adapter's tensors and its configuration."""
        config: Any = network.peft_config["default"]  # type: ignore[index]  # set by PEFT
        tensors: dict[str, Tensor] = need("peft").get_peft_model_state_dict(network)
        return tensors, json.loads(json.dumps(config.to_dict(), default=_plain, sort_keys=True))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a set as a sorted list, so that the same settings have the same text."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value.value if isinstance(value, Enum) else str(value)
