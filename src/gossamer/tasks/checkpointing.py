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
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

from gossamer.core.errors import ConfigError, Mistake, Setting
from gossamer.tasks.network import Place
from gossamer.tasks.random_layers import Layers

CONTAINERS = (nn.ModuleList, nn.Sequential)


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
        layered = any(next(inner.parameters(), None) is not None for inner in child.children())
        if kinds[type(child)] > 1 and layered:
            yield child
        else:
            yield from _blocks(child)


class Checkpointing:
    """Gradient checkpointing of a network, inside ``active`` alone.

    Args:
        network: the network; the forward passes of its blocks are replaced
    """

    def __init__(self, network: nn.Module) -> None:
        self.constant: set[str] = set()
        """Names of buffers that training does not change, as far as that is known: no copies of them are kept."""
        self._on = False
        names = {module: name for name, module in network.named_modules()}
        for block in repeated_blocks(network):
            block.forward = self._checkpointed(block, names[block])

    @contextmanager
    def active(self) -> Iterator[None]:
        """Repeat the blocks of a forward pass inside, if it is differentiated."""
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def _checkpointed(self, block: nn.Module, name: str) -> Callable[..., Any]:
        run, places = block.forward, list(_buffers(block, name))

        def forward(*args: Any, **named: Any) -> Any:
            if not self._on or not torch.is_grad_enabled():
                return run(*args, **named)
            copies = [(at, at.registry[at.attribute].clone()) for at in places if at.name not in self.constant]
            active = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, Layers)]
            # The repeated pass draws from the current draw on, as the first one does.
            contexts = nullcontext(), _repeated(copies, active[-1].from_here() if active else None)
            # Networks that draw by torch's generators are refused, so these need not be restored.
            return checkpoint(
                run, *args, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: contexts, **named
            )

        return forward


@contextmanager
def _repeated(buffers: list[tuple[Place, Tensor]], layers: Layers | None) -> Iterator[None]:
    """Give a repeated block the buffers and the random numbers of its first pass."""
    with ExitStack() as stack:
        if layers is not None:
            stack.enter_context(layers)
        for at, before in buffers:
            stack.callback(at.registry.__setitem__, at.attribute, at.registry[at.attribute])
            at.registry[at.attribute] = before
        yield


def _buffers(block: nn.Module, name: str) -> Iterator[Place]:
    """Yield the places of all buffers of a block; the block's own name is ``name``."""
    for path, part in block.named_modules(prefix=name):
        for attribute, buffer in part._buffers.items():
            if buffer is not None:
                yield Place(part._buffers, attribute, f"{path}.{attribute}")
