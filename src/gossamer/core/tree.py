"""Arithmetic on dictionaries of tensors, and operations on nested dictionaries of tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from gossamer.core.errors import ConfigError
from gossamer.core.types import Params, State


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """Return ``a + b`` for the names of ``b``. Tensors that only ``a`` has stay unchanged."""
    both = {name: tensor for name, tensor in a.items() if name in b}
    if not _fused(both, b):
        return {name: tensor + b[name] if name in b else tensor for name, tensor in a.items()}
    return {**a, **dict(zip(both, torch._foreach_add(list(both.values()), [b[name] for name in both]), strict=True))}


def subtract(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """Return ``a - b`` for the names of ``b``."""
    if not _fused(b, a):
        return {name: a[name] - tensor for name, tensor in b.items()}
    return dict(zip(b, torch._foreach_sub([a[name] for name in b], list(b.values())), strict=True))


@torch.no_grad()
def difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """Return ``a - b`` for the names of ``b``. On a CPU, all lie in one vector in name order, see ``Layout.joined``."""
    if not b or device(b).type != "cpu":
        return subtract(a, b)
    names = sorted(b)
    sizes = [b[name].numel() for name in names]
    places = dict(zip(names, b[names[0]].new_empty(sum(sizes)).split(sizes), strict=True))
    return {name: torch.sub(a[name], tensor, out=places[name].view_as(tensor)) for name, tensor in b.items()}


def shift(a: Mapping[str, Tensor], b: Mapping[str, Tensor], by: float | Tensor) -> Params:
    """Return ``a + by * b`` for the names of ``a``."""
    if not _fused(a, b, by):
        return {name: tensor + by * b[name] for name, tensor in a.items()}
    moved = torch._foreach_mul([b[name] for name in a], by)
    torch._foreach_add_(moved, list(a.values()))
    return dict(zip(a, moved, strict=True))


def shift_(a: Mapping[str, Tensor], b: Mapping[str, Tensor], by: float) -> None:
    """Add ``by * b`` to ``a`` in place, for the names of ``a``."""
    if _fused(a, b):
        torch._foreach_add_(list(a.values()), [b[name] for name in a], alpha=by)
        return
    for name, tensor in a.items():
        tensor.add_(b[name], alpha=by)


def scale(a: Mapping[str, Tensor], by: Tensor) -> Params:
    """Return ``a * by`` for a scalar tensor ``by``."""
    if not _fused(a, by):
        return {name: tensor * by for name, tensor in a.items()}
    return dict(zip(a, torch._foreach_mul(list(a.values()), by), strict=True))


def multiply(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """Return the elementwise product for the names that both have. Tensors that only ``a`` has stay unchanged."""
    both = {name: tensor for name, tensor in a.items() if name in b}
    if not _fused(both, b):
        return {**a, **{name: tensor * b[name] for name, tensor in both.items()}}
    return {**a, **dict(zip(both, torch._foreach_mul(list(both.values()), [b[name] for name in both]), strict=True))}


def norm(a: Mapping[str, Tensor]) -> Tensor:
    """Return the Euclidean norm of all entries together, summed in name order."""
    if _fused(a):
        whole: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([a[name] for name in sorted(a)])))
        return whole
    squares = [a[name].square().sum() for name in sorted(a)]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())


def finite(a: Mapping[str, Tensor]) -> bool:
    """Return whether no entry is infinite or NaN."""
    return all(torch.stack([torch.isfinite(tensor).all() for tensor in a.values()]).tolist()) if a else True


def _fused(a: Mapping[str, Tensor], *others: Mapping[str, Tensor] | Tensor | float) -> bool:
    """Return whether to use one kernel for all tensors: on a GPU, where launching a kernel per tensor is slow.

    Compiled functions and functions under ``torch.func`` transforms do not need it. There, some operands may be
    wrapped, and others not.
    """
    if torch.compiler.is_compiling() or not a or not all(tensor.is_cuda for tensor in a.values()):
        return False
    return not any(map(_wrapped, (a, *others)))


def _wrapped(operand: Mapping[str, Tensor] | Tensor | float) -> bool:
    tensors = operand.values() if isinstance(operand, Mapping) else [operand]
    return any(is_functorch_wrapped_tensor(each) for each in tensors if isinstance(each, Tensor))


def move(nest: Mapping[str, Any], device: str | torch.device) -> State:
    """Return the nest on another device."""
    return {n: move(v, device) if isinstance(v, Mapping) else v.to(device) for n, v in nest.items()}


def device(params: Mapping[str, Tensor]) -> torch.device:
    """Return the device of a model's tensors, which is the same for all."""
    return next(iter(params.values())).device


def flatten(nest: State, prefix: str = "") -> dict[str, Tensor]:
    """Return a nest as one dictionary, with names joined by ``/``, for storage. Empty branches are dropped.

    Names may contain ``/``: they are escaped as in JSON Pointer (RFC 6901).

    >>> list(flatten({"a": {"b": torch.zeros(1)}, "c/d": torch.zeros(1)}))
    ['a/b', 'c~1d']
    """
    flat: dict[str, Tensor] = {}
    for name, value in nest.items():
        path = prefix + name.replace("~", "~0").replace("/", "~1")
        if isinstance(value, Mapping):
            flat |= flatten(dict(value), f"{path}/")
        else:
            flat[path] = value
    return flat


def names(path: str) -> tuple[str, ...]:
    """Return the names along a path that ``flatten`` wrote."""
    return tuple(name.replace("~1", "/").replace("~0", "~") for name in path.split("/"))


def unflatten(flat: Mapping[str, Tensor]) -> State:
    """Return the nest that was passed to ``flatten``."""
    nest: State = {}
    for path, tensor in flat.items():
        *branches, leaf = names(path)
        here = nest
        for branch in branches:
            here = here.setdefault(branch, {})
        here[leaf] = tensor
    return nest


def stack(nests: Sequence[Mapping[str, Any]]) -> State:
    """Stack nests of equal shape along a new first dimension."""
    stacked: State = {}
    for name, value in nests[0].items():
        column = [nest[name] for nest in nests]
        stacked[name] = stack(column) if isinstance(value, Mapping) else torch.stack(column)
    return stacked


def concatenate(nests: Sequence[Mapping[str, Any]]) -> State:
    """Concatenate nests along the first dimension."""
    joined: State = {}
    for name, value in nests[0].items():
        column = [nest[name] for nest in nests]
        joined[name] = concatenate(column) if isinstance(value, Mapping) else torch.cat(column)
    return joined


def take(nest: Mapping[str, Any], rows: Any) -> State:
    """Return rows of a stacked nest. A single row gives a nest that is not stacked."""
    return {name: take(value, rows) if isinstance(value, Mapping) else value[rows] for name, value in nest.items()}


def put(nest: Mapping[str, Any], rows: Any, new: Mapping[str, Any]) -> None:
    """Write rows of a stacked nest in place."""
    if rows is ... and _fused(old := flatten(dict(nest))):
        values = flatten(dict(new))
        torch._foreach_copy_(list(old.values()), [values[name] for name in old])
        return
    for name, value in nest.items():
        if isinstance(value, Mapping):
            put(value, rows, new[name])
        else:
            value[rows] = new[name]


def clone(nest: Mapping[str, Any]) -> State:
    """Return a copy of the nest with copies of all tensors."""
    return {name: clone(value) if isinstance(value, Mapping) else value.clone() for name, value in nest.items()}


def shape(nest: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return names, shapes and types of the tensors of a nest. Nests with equal results can be stacked."""
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in sorted(flatten(dict(nest)).items()))


def check_entries(params: Params, who: str) -> None:
    """Raise ``ConfigError`` if a tensor has no entries: a part that chooses among them has no choice."""
    for name, tensor in params.items():
        if not tensor.numel():
            shape = list(tensor.shape)
            raise ConfigError(
                f"{who} needs tensors with entries, and the model's {name} has the shape {shape}: remove it"
            )
