"""Gradient checkpointing: the activations of repeated blocks are computed again in the backward pass.

The forward pass of training saves the inputs of each block, and frees what the block computed. The backward pass
repeats a block before it differentiates it (Chen et al., 2016, https://arxiv.org/abs/1604.06174). So the activations of
one block exist at a time, and a step takes one more forward pass of the blocks. Gradients are the same numbers.

The blocks are the repeated parts of an ``nn.ModuleList`` or ``nn.Sequential``: those of its children that have layers
with parameters inside, and of whose class it holds several. Inside a block no further blocks are looked for.

A repeated block must compute the same numbers. So it draws those of its random layers again from the run's keys, and
gets its buffers as they were before the first pass. The buffers of the network change once, as without checkpointing.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

from gossamer.core.errors import ConfigError, Mistake, Setting
from gossamer.tasks.random_layers import Layers

CONTAINERS = (nn.ModuleList, nn.Sequential)

Contexts = tuple[AbstractContextManager[object], AbstractContextManager[object]]
"""The contexts of the first and of the repeated pass of a block."""

Buffer = tuple[dict[str, Tensor | None], str, Tensor]
"""A module's dictionary of buffers, the name of one there, and a copy of it."""


def repeated_blocks(module: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of a network; refuse one that has none."""
    found = list(dict.fromkeys(_blocks(module)))
    if not found:
        text = (
            "repeats blocks of the network, and this one has none: they are looked for in each nn.ModuleList and "
            "nn.Sequential, as modules of the same class with layers inside, such as the blocks of a transformer; "
            "group the layers into such blocks, or leave it out"
        )
        raise ConfigError(Mistake(text, Setting("", "checkpointing")))
    return found


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    kinds = Counter(map(type, module.children())) if isinstance(module, CONTAINERS) else Counter[type]()
    for child in module.children():
        if kinds[type(child)] > 1 and _has_layers(child):
            yield child
        else:
            yield from _blocks(child)


def _has_layers(module: nn.Module) -> bool:
    return any(next(child.parameters(), None) is not None for child in module.children())


class Checkpointing:
    """Gradient checkpointing of a network, inside ``active`` alone.

    Args:
        network: the network; the forward passes of its blocks are replaced
    """

    def __init__(self, network: nn.Module) -> None:
        self._on = False
        for block in repeated_blocks(network):
            block.forward = self._checkpointed(block)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Repeat the blocks of a forward pass inside, if it is differentiated."""
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def _checkpointed(self, block: nn.Module) -> Callable[..., Any]:
        run = block.forward

        def forward(*args: Any, **named: Any) -> Any:
            if not self._on or not torch.is_grad_enabled():
                return run(*args, **named)
            contexts = _contexts(block)
            # Networks that draw by torch's generators are refused, so these need not be restored.
            return checkpoint(
                run, *args, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: contexts, **named
            )

        return forward


def _contexts(block: nn.Module) -> Contexts:
    """Return the contexts of a block's passes: the second one has the random numbers and buffers of the first."""
    return nullcontext(), _repeated(list(_buffers(block)), _layers())


@contextmanager
def _repeated(buffers: list[Buffer], layers: Layers | None) -> Iterator[None]:
    with ExitStack() as stack:
        if layers is not None:
            stack.enter_context(layers)
        for registry, name, before in buffers:
            stack.callback(registry.__setitem__, name, registry[name])
            registry[name] = before
        yield


def _buffers(block: nn.Module) -> Iterator[Buffer]:
    """Yield copies of the buffers that a training step may change; masks are constant."""
    for part in block.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set and buffer.dtype != torch.bool:
                yield part._buffers, name, buffer.clone()


def _layers() -> Layers | None:
    """Return the mode of random layers from its current draw on, if one is active."""
    active = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, Layers)]
    return active[-1].from_here() if active else None
