"""Arithmetic on dictionaries of tensors, and nests of them as flat files hold them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from gossamer.core.types import Params, State


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """``a + b`` for the names of ``b``; what only ``a`` has stays as it is."""
    return {name: tensor + b[name] if name in b else tensor for name, tensor in a.items()}


def subtract(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """``a - b`` for the names of ``b``."""
    return {name: a[name] - tensor for name, tensor in b.items()}


def shift(a: Mapping[str, Tensor], b: Mapping[str, Tensor], by: float | Tensor) -> Params:
    """``a + by b`` for the names of ``a``."""
    if not _at_once(a):
        return {name: tensor + by * b[name] for name, tensor in a.items()}
    far = torch._foreach_mul([b[name] for name in a], by)
    torch._foreach_add_(far, list(a.values()))
    return dict(zip(a, far, strict=True))


def shift_(a: Mapping[str, Tensor], b: Mapping[str, Tensor], by: float) -> None:
    """The same where ``a`` lies."""
    if _at_once(a):
        torch._foreach_add_(list(a.values()), [b[name] for name in a], alpha=by)
        return
    for name, tensor in a.items():
        tensor.add_(b[name], alpha=by)


def scale(a: Mapping[str, Tensor], by: Tensor) -> Params:
    """``a`` times a number."""
    if not _at_once(a):
        return {name: tensor * by for name, tensor in a.items()}
    return dict(zip(a, torch._foreach_mul(list(a.values()), by), strict=True))


def multiply(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """``a`` times ``b``, entry by entry, for the names that both have; what only ``a`` has stays as it is."""
    both = {name: tensor for name, tensor in a.items() if name in b}
    if not _at_once(both):
        return {**a, **{name: tensor * b[name] for name, tensor in both.items()}}
    return {**a, **dict(zip(both, torch._foreach_mul(list(both.values()), [b[name] for name in both]), strict=True))}


def norm(a: Mapping[str, Tensor]) -> Tensor:
    """The Euclidean norm of all entries taken together, added up in name order."""
    if _at_once(a):
        whole: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([a[name] for name in sorted(a)])))
        return whole
    squares = [a[name].square().sum() for name in sorted(a)]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())


def finite(a: Mapping[str, Tensor]) -> bool:
    """Whether no entry is infinite or NaN."""
    return all(torch.stack([torch.isfinite(tensor).all() for tensor in a.values()]).tolist()) if a else True


def _at_once(a: Mapping[str, Tensor]) -> bool:
    """Whether one kernel can do all of them: on a GPU, where to start one each takes longer than to run it.

    A transformed or compiled function sees to that by itself.
    """
    if torch.compiler.is_compiling() or not all(tensor.is_cuda for tensor in a.values()):
        return False
    return bool(a) and not any(is_functorch_wrapped_tensor(tensor) for tensor in a.values())


def move(nest: Mapping[str, Any], device: str | torch.device) -> State:
    """The same nest on another device."""
    return {n: move(v, device) if isinstance(v, Mapping) else v.to(device) for n, v in nest.items()}


def device(params: Mapping[str, Tensor]) -> torch.device:
    """Where a model's tensors are, which is one place for all."""
    return next(iter(params.values())).device


def flatten(nest: State, prefix: str = "") -> dict[str, Tensor]:
    """A nest as one level, names joined by ``/``, so that it can be stored; empty branches leave no trace.

    >>> list(flatten({"a": {"b": torch.zeros(1)}, "c": torch.zeros(1)}))
    ['a/b', 'c']
    """
    flat: dict[str, Tensor] = {}
    for name, value in nest.items():
        if isinstance(value, Mapping):
            flat |= flatten(dict(value), f"{prefix}{name}/")
        else:
            flat[prefix + name] = value
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> State:
    """The nest that ``flatten`` flattened."""
    nest: State = {}
    for path, tensor in flat.items():
        *branches, leaf = path.split("/")
        here = nest
        for branch in branches:
            here = here.setdefault(branch, {})
        here[leaf] = tensor
    return nest


def stack(nests: Sequence[Mapping[str, Any]]) -> State:
    """Nests of one shape as one nest, stacked along a new first dimension."""
    stacked: State = {}
    for name, value in nests[0].items():
        column = [nest[name] for nest in nests]
        stacked[name] = stack(column) if isinstance(value, Mapping) else torch.stack(column)
    return stacked


def take(nest: Mapping[str, Any], rows: Any) -> State:
    """Some rows of a stacked nest; for one row, a nest that is not stacked."""
    return {name: take(value, rows) if isinstance(value, Mapping) else value[rows] for name, value in nest.items()}


def put(nest: Mapping[str, Any], rows: Any, new: Mapping[str, Any]) -> None:
    """Write rows of a stacked nest in place."""
    if rows is ... and _at_once(old := flatten(dict(nest))):
        there = flatten(dict(new))
        torch._foreach_copy_(list(old.values()), [there[name] for name in old])
        return
    for name, value in nest.items():
        if isinstance(value, Mapping):
            put(value, rows, new[name])
        else:
            value[rows] = new[name]


def clone(nest: Mapping[str, Any]) -> State:
    """The same nest in memory of its own."""
    return {name: clone(value) if isinstance(value, Mapping) else value.clone() for name, value in nest.items()}


def shape(nest: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two nests must share to be stacked: names, shapes and types."""
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in sorted(flatten(dict(nest)).items()))
