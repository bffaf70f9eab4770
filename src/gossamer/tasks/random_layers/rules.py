"""What each random operation of torch does with given uniform numbers.

A rule has the mode and the operation as its first arguments; the mode gives numbers. The others are those of the
operation. A rule calls the operation itself where that draws nothing.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.tasks.random_layers.recurrent import recurrent

BITS = 2**24
"""Number of different values of a uniform number."""
UNKNOWN = ("generator", "out", "names")
"""Arguments of an operation that no rule supports."""
ALPHA = 1.7580993408473766
"""Minus the limit of SELU, from torch."""


class Source(Protocol):
    """What a rule needs of ``Layers``."""

    numbers: Any

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Return new uniform float32 numbers."""
        ...


Rule = Callable[..., Any]


def kept(mode: Source, shape: Sequence[int], p: float) -> Tensor:
    """Return where a number is at least ``p``; the bound is rounded to 24 bits, so that all devices agree."""
    return mode.uniform(shape) >= math.ceil(p * BITS) / BITS


def drop(mode: Source, x: Tensor, p: float, shape: Sequence[int], alpha: bool = False, inplace: bool = False) -> Tensor:
    """Return ``x`` with entries dropped; ``shape`` is that of the mask. Formulas are torch's."""
    if p == 1:
        return x.mul_(0) if inplace else x * 0
    keep, factor = kept(mode, shape, p), 1 / (1 - p)
    if not alpha:  # the backward pass needs the mask alone: one byte per entry
        return x.mul_(factor).masked_fill_(~keep, 0) if inplace else torch.where(keep, x * factor, 0)
    keep = keep.to(x.dtype)
    a = 1 / math.sqrt((ALPHA**2 * p + 1) * (1 - p))
    offset = (keep - 1) * (ALPHA * a) + ALPHA * a * p
    return x.mul_(keep * a).add_(offset) if inplace else x * (keep * a) + offset


def dropout(default: bool, alpha: bool = False, lead: Callable[[int], int] | None = None) -> Rule:
    """Return the rule of a dropout in ``torch.nn.functional``.

    ``default`` is the default of ``training``. ``lead`` gives the number of leading dimensions with a mask value of
    their own, from the number of all; none stands for all.
    """

    def rule(
        mode: Source, func: Any, input: Tensor, p: float = 0.5, training: bool = default, inplace: bool = False
    ) -> Any:
        if not training or not 0 < p <= 1:
            return func(input, p, training, inplace)
        n = input.dim() if lead is None else lead(input.dim())
        shape = (*input.shape[:n], *(1 for _ in input.shape[n:]))
        return drop(mode, input, p, shape, alpha, inplace)

    return rule


def bare_dropout(alpha: bool = False, features: bool = False, inplace: bool = False) -> Rule:
    """Return the rule of a dropout in ``torch``, without defaults."""

    def rule(mode: Source, func: Any, input: Tensor, p: float, train: bool) -> Any:
        if not train or not 0 < p <= 1:
            return func(input, p, train)
        n = 2 if features else input.dim()
        return drop(mode, input, p, (*input.shape[:n], *(1 for _ in input.shape[n:])), alpha, inplace)

    return rule


def rrelu(
    mode: Source,
    func: Any,
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    """Leaky ReLU with random slopes."""
    if not training:
        return func(input, lower, upper, training, inplace)
    slopes = lower + (upper - lower) * mode.uniform(input.shape).to(input.dtype)
    factors = torch.where(input > 0, 1, slopes)
    return input.mul_(factors) if inplace else input * factors


def attention(
    mode: Source,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention as an explicit softmax, if its weights are dropped: heads x queries x keys values per sample."""
    if dropout_p == 0:
        return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None:
        bars = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if bars else scores + attn_mask
    weights = scores.softmax(-1)
    return drop(mode, weights, dropout_p, weights.shape) @ value


# Operations that return or fill tensors of random numbers.


def normal(mode: Source, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return standard normal numbers, by Box and Muller; their rounding differs between devices."""
    radius, angle = mode.uniform((2, *shape)).to(_wide(dtype))
    found: Tensor = (-2 * torch.log1p(-radius)).sqrt() * (2 * math.pi * angle).cos()
    return found.to(dtype)


def fine(mode: Source, shape: Sequence[int]) -> Tensor:
    """Return uniform float64 numbers of 48 bits."""
    high, low = mode.uniform((2, *shape)).double()
    found: Tensor = high + low / BITS
    return found


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def _uniform(mode: Source, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return mode.uniform(shape).to(dtype)


def _integers(mode: Source, shape: Sequence[int], low: int, high: int) -> Tensor:
    return low + (fine(mode, shape) * (high - low)).floor().long()


def _placed(values: Tensor, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """Return values with the type and on the device that the caller of a factory asks for, or on the network's."""
    default = torch.get_default_dtype() if values.is_floating_point() else torch.int64
    found = values.to(device=device, dtype=dtype or default)
    return found.requires_grad_() if requires_grad else found


def _shape(size: Any) -> tuple[int, ...]:
    """Return a shape that is given as one sequence or as several integers."""
    return tuple(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)


def factory(draw: Callable[..., Tensor]) -> Rule:
    """Return the rule of ``torch.rand`` or ``torch.randn``."""

    def rule(mode: Source, func: Any, *args: Any, size: Any = None, dtype: Any = None, **more: Any) -> Any:
        wanted = dtype or torch.get_default_dtype()
        return _placed(draw(mode, _shape(args if size is None else size), wanted), wanted, **more)

    return rule


def factory_like(draw: Callable[..., Tensor]) -> Rule:
    """Return the rule of ``torch.rand_like`` or ``torch.randn_like``."""

    def rule(mode: Source, func: Any, input: Tensor, dtype: Any = None, device: Any = None, **more: Any) -> Any:
        wanted = dtype or input.dtype
        return _placed(draw(mode, input.shape, wanted), wanted, device or input.device, **more)

    return rule


def randint(mode: Source, func: Any, *args: Any, **named: Any) -> Any:
    """``torch.randint(low=0, high, size)``."""
    given = list(args)
    size = named.pop("size") if "size" in named else given.pop()
    high = named.pop("high") if "high" in named else given.pop()
    low = named.pop("low", 0) if not given else given.pop()
    return _placed(_integers(mode, tuple(size), low, high), **named)


def randint_like(mode: Source, func: Any, input: Tensor, *args: int, dtype: Any = None, **named: Any) -> Any:
    """``torch.randint_like(input, low=0, high)``."""
    bounds = [*args, *(named.pop(name) for name in ("low", "high") if name in named)]
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    return _placed(_integers(mode, input.shape, low, high), dtype or input.dtype, **{"device": input.device, **named})


def randperm(mode: Source, func: Any, n: int, **more: Any) -> Any:
    """Return a permutation: the stable order of random numbers."""
    return _placed(torch.argsort(fine(mode, (n,)), stable=True), **more)


def normals(mode: Source, func: Any, mean: Any, std: Any = 1.0, size: Any = None, **more: Any) -> Any:
    """``torch.normal``, with tensors or numbers."""
    tensors = [value for value in (mean, std) if isinstance(value, Tensor)]
    if not tensors:
        dtype = more.pop("dtype", None) or torch.get_default_dtype()
        return _placed(mean + std * normal(mode, tuple(size), dtype), dtype, **more)
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    return mean + std * normal(mode, shape, tensors[0].dtype).to(tensors[0].device)


def bernoulli(mode: Source, func: Any, input: Tensor, p: float | None = None) -> Any:
    """Return 1 with the probability that ``input`` holds, or with probability ``p``."""
    below = mode.uniform(input.shape).to(_wide(input.dtype)) < input if p is None else ~kept(mode, input.shape, p)
    return below.to(input.dtype)


def bernoulli_(mode: Source, func: Any, input: Tensor, p: float | Tensor = 0.5) -> Any:
    """Fill a tensor with 1 with probability ``p``, else 0."""
    if not isinstance(p, Tensor):
        return input.copy_(~kept(mode, input.shape, p))
    return input.copy_(mode.uniform(input.shape).to(_wide(p.dtype)) < p)


def uniform_(mode: Source, func: Any, input: Tensor, low: float = 0.0, high: float = 1.0, **named: float) -> Any:
    """Fill a tensor with uniform numbers."""
    low, high = named.get("from", low), named.get("to", high)
    return input.copy_(low + (high - low) * mode.uniform(input.shape).to(_wide(input.dtype)))


def normal_(mode: Source, func: Any, input: Tensor, mean: float = 0.0, std: float = 1.0) -> Any:
    """Fill a tensor with normal numbers."""
    return input.copy_(mean + std * normal(mode, input.shape, input.dtype))


def exponential_(mode: Source, func: Any, input: Tensor, lambd: float = 1.0) -> Any:
    """Fill a tensor with exponential numbers, above 0."""
    return input.copy_(-torch.log1p(-mode.uniform(input.shape).to(_wide(input.dtype)).clamp(min=0.5 / BITS)) / lambd)


def empty(
    mode: Source, func: Any, *args: Any, size: Any = None, dtype: Any = None, device: Any = None, **more: Any
) -> Any:
    """Return an empty tensor that stacked clients can fill with numbers of their own."""
    root, shape = mode.numbers.root, _shape(args if size is None else size)
    more.pop("memory_format", None)  # new_empty has no such argument
    if device is None and root.device.type != "cpu":
        return func(shape, dtype=dtype, **more)
    return root.new_empty(shape, dtype=dtype or torch.get_default_dtype(), device=device, **more)


def empty_like(
    mode: Source, func: Any, input: Tensor, *size: Any, dtype: Any = None, device: Any = None, **more: Any
) -> Any:
    """Return ``torch.empty_like(input)`` or ``input.new_empty(size)``, as ``empty`` does."""
    shape = _shape(size) if size else input.shape
    more.pop("memory_format", None)
    return mode.numbers.root.new_empty(shape, dtype=dtype or input.dtype, device=device or input.device, **more)


RULES: dict[Any, Rule] = {
    F.dropout: dropout(True),
    F.dropout1d: dropout(True, lead=lambda dims: 2 if dims == 3 else 1),
    F.dropout2d: dropout(True, lead=lambda dims: 2),
    F.dropout3d: dropout(True, lead=lambda dims: 2 if dims == 5 else 1),
    F.alpha_dropout: dropout(False, alpha=True),
    F.feature_alpha_dropout: dropout(False, alpha=True, lead=lambda dims: 2),
    torch.dropout: bare_dropout(),
    torch.dropout_: bare_dropout(inplace=True),
    torch.alpha_dropout: bare_dropout(alpha=True),
    torch.alpha_dropout_: bare_dropout(alpha=True, inplace=True),
    torch.feature_dropout: bare_dropout(features=True),
    torch.feature_dropout_: bare_dropout(features=True, inplace=True),
    torch.feature_alpha_dropout: bare_dropout(alpha=True, features=True),
    torch.feature_alpha_dropout_: bare_dropout(alpha=True, features=True, inplace=True),
    F.rrelu: rrelu,
    F.scaled_dot_product_attention: attention,
    torch.lstm: recurrent("lstm", drop),
    torch.gru: recurrent("gru", drop),
    torch.rnn_tanh: recurrent("tanh", drop),
    torch.rnn_relu: recurrent("relu", drop),
    torch.rand: factory(_uniform),
    torch.rand_like: factory_like(_uniform),
    torch.randn: factory(normal),
    torch.randn_like: factory_like(normal),
    torch.randint: randint,
    torch.randint_like: randint_like,
    torch.randperm: randperm,
    torch.normal: normals,
    torch.bernoulli: bernoulli,
    Tensor.bernoulli: bernoulli,
    Tensor.bernoulli_: bernoulli_,
    Tensor.uniform_: uniform_,
    Tensor.normal_: normal_,
    Tensor.exponential_: exponential_,
    torch.empty: empty,
    torch.empty_like: empty_like,
    Tensor.new_empty: empty_like,
}
"""Rules by operation. Operations that draw in other ways are found by ``trial``."""
