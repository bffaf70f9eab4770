"""Inputs of a network: a tensor, or a nest (dict, tuple) of tensors whose first dimension is the sample.

A dict is passed to the network by keyword, a tuple by position. Hugging Face models take dicts; other networks often
take one tensor.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gossamer.core.errors import ConfigError

Nest: TypeAlias = "Tensor | dict[str, Nest] | tuple[Nest, ...]"


def apply(function: Callable[[Tensor], Tensor], nest: Nest) -> Nest:
    """Apply a function to every tensor of a nest."""
    if isinstance(nest, Tensor):
        return function(nest)
    if isinstance(nest, Mapping):
        return {name: apply(function, inner) for name, inner in nest.items()}
    return tuple(apply(function, inner) for inner in nest)


def leaves(nest: Nest) -> dict[str, Tensor]:
    """Return the tensors of a nest by path, in order; a single tensor has the empty path.

    >>> list(leaves({"ids": torch.zeros(2), "pair": (torch.ones(2), torch.ones(2))}))
    ['ids', 'pair.0', 'pair.1']
    """
    return dict(_walk(nest, ""))


def _walk(nest: Nest, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(nest, Tensor):
        yield path, nest
        return
    items = nest.items() if isinstance(nest, Mapping) else ((str(number), inner) for number, inner in enumerate(nest))
    for name, inner in items:
        yield from _walk(inner, f"{path}.{name}" if path else name)


def rebuild(like: Nest, found: Mapping[str, Tensor]) -> Nest:
    """Return the nest of the same form as ``like`` with other tensors, by path."""
    remaining = iter(found.values())
    return apply(lambda _: next(remaining), like)


def take(nest: Nest, index: Any) -> Nest:
    """Return the samples at ``index``, an index tensor or a slice."""
    return apply(lambda tensor: tensor[index], nest)


def count(nest: Nest) -> int:
    """Return the number of samples."""
    return len(next(iter(leaves(nest).values())))


def nbytes(nest: Nest) -> int:
    """Return the size of all tensors in bytes."""
    return sum(tensor.nbytes for tensor in leaves(nest).values())


def move(nest: Nest, device: torch.device | str) -> Nest:
    """Return the nest on a device."""
    return apply(lambda tensor: tensor.to(device), nest)


def stack(nests: Sequence[Nest]) -> Nest:
    """Return a batch of samples of equal shapes."""
    columns = [list(leaves(nest).values()) for nest in nests]
    return rebuild(nests[0], dict(enumerate(map(torch.stack, zip(*columns, strict=True)))))  # type: ignore[arg-type]


def concatenate(nests: Sequence[Nest]) -> Nest:
    """Return all samples of several batches."""
    columns = [list(leaves(nest).values()) for nest in nests]
    return rebuild(nests[0], dict(enumerate(map(torch.cat, zip(*columns, strict=True)))))  # type: ignore[arg-type]


def shapes(nest: Nest) -> str:
    """Describe the shape of one sample, for messages.

    >>> shapes(torch.zeros(2, 3, 8)), shapes({"ids": torch.zeros(2, 5)})
    ('3x8', 'ids 5')
    """
    parts = ((path, "x".join(map(str, tensor.shape[1:])) or "scalar") for path, tensor in leaves(nest).items())
    return ", ".join(f"{path} {shape}".strip() for path, shape in parts)


def forward(module: nn.Module | Callable[..., Any], x: Nest) -> Tensor:
    """Return a network's output for a batch: a tensor, or the field ``logits`` of what it returns."""
    args, kwargs = arguments(x)
    return scores(module(*args, **kwargs))


def arguments(x: Nest) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments of a network: a dict is passed by keyword, a tuple by position."""
    if isinstance(x, Tensor):
        return (x,), {}
    return ((), dict(x)) if isinstance(x, Mapping) else (tuple(x), {})


def scores(output: Any) -> Tensor:
    """Return the tensor of a network's output."""
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if found is None and isinstance(output, Mapping):
        found = output.get("logits")
    if not isinstance(found, Tensor):
        raise ConfigError(
            f"the network must return a tensor, or an object with a tensor `logits`, got a {type(output).__name__}: "
            "wrap it in a module that returns one of its tensors"
        )
    return found
