"""Adapters: train few tensors of a network, or few tensors beside it. Only these travel.

``LoRA`` adds a product of two small matrices to each linear layer. ``Peft`` is any adapter of the package PEFT. See
``gossamer.core.adapter``.
"""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.core.adapter import Adapter as Adapter
    from gossamer.parts.adapters.lora import LoRA as LoRA
    from gossamer.parts.adapters.lora import Peft as Peft

ADAPTERS: "Registry[type[Adapter]]" = Registry(__name__, {"lora": "lora.LoRA", "peft": "lora.Peft"})
"""Adapters by the name that the command line uses."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, ADAPTERS)
