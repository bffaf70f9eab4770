"""Adapters of the package PEFT (https://github.com/huggingface/peft), which is an extra: ``gossamer[peft]``.

``Peft(8)`` is LoRA as PEFT implements it; it computes the same as ``LoRA(8)``. ``Peft.of(config)`` takes any
configuration of PEFT whose adapter can be merged into the network, such as ``LoraConfig(use_dora=True)`` or
``IA3Config``. Names of tensors change under PEFT. Initial weights are applied before it, so they keep their names.
"""

import json
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor, nn

from gossamer.core.adapter import Adapter
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.extras import need
from gossamer.parts.adapters.lora import FACTOR, linear_layers, named_exactly


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
        require(
            (self.rank >= 1, wrong(self, "rank", "must be at least 1")),
            (self.alpha is None or 0 < self.alpha < math.inf, wrong(self, "alpha", "must be a positive number")),
            (len(self.targets) > 0, wrong(self, "targets", "must not be empty")),
        )

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
            return made(**_read(self))
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


def _read(part: Peft) -> dict[str, Any]:
    """Return the configuration of a part; refuse what is no configuration."""
    try:
        found = json.loads(part.config)
    except ValueError:
        found = None
    valid = isinstance(found, dict) and "peft_type" in found
    require((valid, wrong(part, "config", "must be a mapping in JSON with a peft_type: use Peft.of(config)")))
    settings: dict[str, Any] = found
    return settings


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a set as a sorted list, so that the same settings have the same text."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value.value if isinstance(value, Enum) else str(value)
