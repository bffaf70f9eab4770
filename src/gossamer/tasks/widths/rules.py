"""Rules for operations: which dimensions an operation ties or fixes, by torch's name of the operation."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.tasks.widths.dims import Dim, Tracked, concatenated, fix, fresh, length, plain, regroup, tie, tie_all


class UnknownOperationError(Exception):
    """An operation without a rule."""


class Call(NamedTuple):
    """An operation with its arguments and its output."""

    trace: Tracked
    func: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    out: Any

    def dims(self, position: int) -> list[Dim]:
        """Return the dimensions of a positional argument."""
        return self.trace.dims(self.args[position])

    def given(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by position or name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def put(self, dims: list[Dim], out: Tensor | None = None) -> None:
        """Store the dimensions of an output."""
        self.trace.put(self.out if out is None else out, dims)

    def axis(self, position: int, dim: int) -> int:
        """Return the non-negative index of a dimension of an argument."""
        return int(dim % max(1, self.args[position].dim()))


Rule = Callable[[Call], None]
RULES: dict[str, Rule] = {}


def rule(func: Any) -> Rule:
    """Return the rule for an operation."""
    name = func.overloadpacket.__name__
    found = RULES.get(name) or RULES.get(name.rstrip("_"))
    if found is None and torch.Tag.pointwise in func.tags:
        found = pointwise
    if found is None:
        raise UnknownOperationError("there is no rule for this operation")
    return found


def named(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under the names of operations."""

    def register(found: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, found))
        return found

    return register


# Pointwise operations.


@named(
    "clone", "detach", "alias", "_to_copy", "bernoulli", "empty_like", "zeros_like", "ones_like", "rand_like", "lift"
)
@named("fill", "zero", "hardswish", "_prelu_kernel", "masked_fill")
def pointwise(call: Call) -> None:
    """Tie dimensions that are broadcast against each other; a dimension of 1 ties nothing."""
    if not isinstance(call.out, Tensor):
        return
    inputs = [arg for arg in (*call.args, *call.kwargs.values()) if isinstance(arg, Tensor)]
    found: list[Dim] = [() for _ in call.out.shape]
    for tensor in inputs:
        offset = len(found) - tensor.dim()
        for index, dim in enumerate(call.trace.dims(tensor), start=offset):
            if length(dim) > 1:
                found[index] = _meet(found[index], dim, call.trace.streams) if found[index] else dim
    call.put(found)


def _meet(one: Dim, other: Dim, streams: bool) -> Dim:
    """Tie two dimensions. Without streams, a new dimension is not tied to one that other layers have used."""
    met, also = _met(one), _met(other)
    if streams or met == also or _is_fixed(one) or _is_fixed(other):
        tie(one, other)
        return one
    return other if met else one


def _met(dim: Dim) -> bool:
    return any(unit.met for unit in plain(dim))


def _is_fixed(dim: Dim) -> bool:
    return all(unit.fixed for unit in plain(dim))


def _take(dim: Dim) -> Dim:
    """Mark a dimension as a layer's input."""
    for unit in plain(dim):
        unit.met = True
    return dim


@named("zeros", "ones", "full", "empty", "arange", "scalar_tensor", "rand", "randn", "eye", "lift_fresh", "new_zeros")
@named("new_ones", "new_full", "new_empty", "empty_strided", "new_empty_strided")
def made(call: Call) -> None:
    """Give a new tensor new dimensions; other operations may tie them later."""
    call.put([fresh(size) for size in call.out.shape])


@named("_local_scalar_dense", "is_same_size", "sym_size", "equal")
def nothing(call: Call) -> None:
    """Do nothing: the output is not a tensor."""


# Layers.


@named("mm", "bmm")
def product(call: Call) -> None:
    """Matrix product, also batched."""
    _product(call, call.dims(0), call.dims(1))


@named("addmm", "baddbmm")
def added_product(call: Call) -> None:
    """Matrix product with a bias."""
    _product(call, call.dims(1), call.dims(2))
    for dim, mine in zip(reversed(call.dims(0)), reversed(call.trace.dims(call.out)), strict=False):
        if length(dim) > 1:
            tie(dim, mine)


def _product(call: Call, left: list[Dim], right: list[Dim]) -> None:
    tie(_take(left[-1]), right[-2])
    tie_all(left[:-2], right[:-2])
    call.put([*left[:-1], right[-1]])


@named("mv")
def applied(call: Call) -> None:
    """Matrix-vector product."""
    matrix, vector = call.dims(0), call.dims(1)
    tie(_take(vector[0]), matrix[1])
    call.put([matrix[0]])


@named("convolution", "_convolution")
def convolution(call: Call) -> None:
    """Convolution: tie input and output channels, per group if there are several; image positions are fixed."""
    x, weight, groups = call.dims(0), call.dims(1), int(call.args[8])
    rows, columns = (weight[1], weight[0]) if call.args[6] else (weight[0], weight[1])
    for position in weight[2:]:
        fix(position)
    _take(x[1])
    if groups == 1:
        tie(x[1], columns)
    elif call.args[6]:
        raise UnknownOperationError("there is no rule for transposed convolutions in groups")
    else:
        (bundles, inside), (others, _) = _bundles(x[1], groups), _bundles(rows, groups)
        tie(bundles, others)
        tie(inside, columns)
    if isinstance(call.args[2], Tensor):
        tie(call.dims(2)[0], rows)
    call.put([x[0], rows, *(fresh(size, fixed=True) for size in call.out.shape[2:])])


def _bundles(dim: Dim, groups: int) -> tuple[Dim, Dim]:
    """Split a dimension into groups times entries; with one entry per group, the groups are channels."""
    outer, inner = regroup([dim], [groups, length(dim) // groups])
    if length(inner) > 1:
        fix(outer)
    return outer, inner


@named("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training")
@named("_batch_norm_with_update", "cudnn_batch_norm", "miopen_batch_norm")
def batch_norm(call: Call) -> None:
    """Batch norm: tie all tensors with one entry per channel."""
    _normed(call, call.args[1:5])


def _normed(call: Call, each: Sequence[Any]) -> Dim:
    """Tie the per-channel tensors of a norm, and return its channels."""
    x = call.dims(0)
    _take(x[1])
    for tensor in each:
        if isinstance(tensor, Tensor):
            tie(call.trace.dims(tensor)[0], x[1])
    call.put(x, call.out[0])
    return x[1]


@named("native_group_norm")
def group_norm(call: Call) -> None:
    """Group norm: the number of groups stays, and each group keeps the same channels."""
    _bundles(_normed(call, call.args[1:3]), int(call.args[6]))


@named("native_layer_norm")
def layer_norm(call: Call) -> None:
    """Layer norm: tie the last dimensions."""
    x, last = call.dims(0), len(call.args[1])
    for dim in x[-last:]:
        _take(dim)
    for tensor in call.args[2:4]:
        if isinstance(tensor, Tensor):
            tie_all(x[-last:], call.trace.dims(tensor))
    call.put(x, call.out[0])


@named("embedding")
def embedding(call: Call) -> None:
    """Embedding: the vocabulary is fixed, the vectors are not."""
    words, vector = call.dims(0)
    fix(words)
    call.put([*call.dims(1), vector])


@named("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math")
def attention(call: Call) -> None:
    """Attention: tie queries with keys, and keys with values."""
    query, keys, values = (call.dims(position) for position in range(3))
    tie_all(query[:-2], keys[:-2])
    tie_all(keys[:-1], values[:-1])
    tie(query[-1], keys[-1])
    call.put([*query[:-1], values[-1]], call.out[0])


# Operations along a dimension, or over image positions.


@named("mean", "sum", "amax", "amin", "var", "std", "linalg_vector_norm", "logsumexp", "norm", "argmax", "any", "all")
def reduction(call: Call) -> None:
    """Reduction: some dimensions disappear or become 1."""
    if not isinstance(call.out, Tensor):
        return
    x, kept = call.dims(0), list(call.out.shape)
    position = 2 if call.func.overloadpacket.__name__ in ("linalg_vector_norm", "norm") else 1
    over = call.given(position, "dim")
    gone = {dim % max(1, len(x)) for dim in ([over] if isinstance(over, int) else over or range(len(x)))}
    if len(kept) == len(x):
        call.put([fresh(1) if number in gone else dim for number, dim in enumerate(x)])
    else:
        call.put([dim for number, dim in enumerate(x) if number not in gone])


@named("_softmax", "_log_softmax", "_safe_softmax", "cumsum", "sort", "flip", "roll")
def along(call: Call) -> None:
    """Fix a dimension whose entries depend on each other."""
    x, over = call.dims(0), call.args[1]
    for dim in [over] if isinstance(over, int) else over:
        fix(x[dim])
    for out in call.out if isinstance(call.out, tuple) else (call.out,):
        call.put(x, out)


@named("tril", "triu")
def triangle(call: Call) -> None:
    """Fix the last two dimensions, because the result depends on the position."""
    x = call.dims(0)
    for dim in x[-2:]:
        fix(dim)
    call.put(x)


@named("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool2d")
@named(
    "_adaptive_avg_pool2d", "adaptive_max_pool2d", "_adaptive_avg_pool3d", "upsample_nearest2d", "upsample_bilinear2d"
)
@named("reflection_pad2d", "replication_pad2d", "constant_pad_nd")
def resized(call: Call) -> None:
    """Fix dimensions whose size changes (image positions); keep the others."""
    first = call.out[0] if isinstance(call.out, tuple) else call.out
    dims = []
    for dim, before, after in zip(call.dims(0), call.args[0].shape, first.shape, strict=True):
        if before != after:
            fix(dim)
        dims.append(dim if before == after else fresh(after, fixed=True))
    for out in call.out if isinstance(call.out, tuple) else (call.out,):
        call.put(dims, out)


# Rearrangements of entries.


@named("view", "_unsafe_view", "reshape", "_reshape_alias", "_reshape_copy", "view_copy")
def viewed(call: Call) -> None:
    """Merge and split dimensions."""
    call.put(regroup(call.dims(0), call.out.shape))


@named("t")
def turned(call: Call) -> None:
    """Reverse the dimensions."""
    call.put(call.dims(0)[::-1])


@named("transpose")
def transposed(call: Call) -> None:
    """Swap two dimensions."""
    dims = list(call.dims(0))
    a, b = (call.axis(0, call.args[position]) for position in (1, 2))
    dims[a], dims[b] = dims[b], dims[a]
    call.put(dims)


@named("permute")
def permuted(call: Call) -> None:
    """Reorder dimensions."""
    dims = call.dims(0)
    call.put([dims[d] for d in call.args[1]])


@named("unsqueeze")
def unsqueezed(call: Call) -> None:
    """Insert a dimension of 1."""
    dims = list(call.dims(0))
    dims.insert(call.args[1] % (len(dims) + 1), ())
    call.put(dims)


@named("squeeze")
def squeezed(call: Call) -> None:
    """Remove dimensions of 1."""
    dims, over = call.dims(0), call.given(1, "dim")
    named_ = range(len(dims)) if over is None else [over] if isinstance(over, int) else over
    gone = {d % len(dims) for d in named_ if call.args[0].shape[d] == 1}
    call.put([dim for number, dim in enumerate(dims) if number not in gone])


@named("expand")
def expanded(call: Call) -> None:
    """Expand dimensions of 1, or add dimensions; other operations may tie them later."""
    dims = call.dims(0)
    new = [fresh(size) for size in call.out.shape[: call.out.dim() - len(dims)]]
    old = call.out.shape[len(new) :]
    call.put(new + [dim if length(dim) == size else fresh(size) for dim, size in zip(dims, old, strict=True)])


@named("select")
def selected(call: Call) -> None:
    """Select one entry of a dimension, which is then fixed."""
    dims, at = list(call.dims(0)), call.axis(0, call.args[1])
    fix(dims.pop(at))
    call.put(dims)


@named("slice")
def sliced(call: Call) -> None:
    """Select some entries of a dimension, which is then fixed."""
    dims, at = list(call.dims(0)), call.axis(0, call.given(1, "dim", 0))
    if call.out.shape[at] != call.args[0].shape[at]:
        fix(dims[at])
        dims[at] = fresh(call.out.shape[at], fixed=True)
    call.put(dims)


@named("unbind")
def unbound(call: Call) -> None:
    """Select every entry of a dimension, which is then fixed."""
    dims, at = list(call.dims(0)), call.axis(0, call.given(1, "dim", 0))
    fix(dims.pop(at))
    for out in call.out:
        call.put(list(dims), out)


@named("split", "split_with_sizes", "chunk")
def pieces(call: Call) -> None:
    """Split a dimension. Equal pieces are tied; unequal pieces make it a sum."""
    dims, at = call.dims(0), call.axis(0, call.given(2, "dim", 0))
    sizes = [out.shape[at] for out in call.out]
    cut = _cut(dims[at], sizes)
    for out, piece in zip(call.out, cut, strict=True):
        call.put([piece if number == at else dim for number, dim in enumerate(dims)], out)


def _cut(dim: Dim, sizes: Sequence[int]) -> list[Dim]:
    units = plain(dim)
    if len(units) == 1 and units[0].sum and [length(part) for part in units[0].sum] == list(sizes):
        return list(units[0].sum)
    if len(set(sizes)) == 1:
        outer, inner = regroup([dim], [len(sizes), sizes[0]])
        fix(outer)
        return [inner] * len(sizes)
    if len(units) != 1 or units[0].sum:
        fix(dim)
        return [fresh(size, fixed=True) for size in sizes]
    parts = [fresh(size, units[0].fixed) for size in sizes]
    units[0].sum = tuple(parts)
    return parts


@named("glu")
def gated(call: Call) -> None:
    """Gated linear unit: both halves keep the same channels."""
    dims, at = call.dims(0), call.axis(0, call.given(1, "dim", -1))
    half = _cut(dims[at], [call.out.shape[at]] * 2)[0]
    call.put([half if number == at else dim for number, dim in enumerate(dims)])


@named("cat")
def joined(call: Call) -> None:
    """Concatenate along a dimension; tie the others."""
    tensors, over = call.args[0], call.given(1, "dim", 0)
    at = over % call.out.dim()
    rows = [call.trace.dims(tensor) for tensor in tensors if tensor.numel()]
    for other in rows[1:]:
        for number, (one, two) in enumerate(zip(rows[0], other, strict=True)):
            if number != at:
                tie(one, two)
    whole = concatenated([row[at] for row in rows])
    if all(_is_fixed(row[at]) for row in rows):
        fix(whole)
    call.put([whole if number == at else dim for number, dim in enumerate(rows[0])])


@named("stack")
def stacked(call: Call) -> None:
    """Stack along a new, fixed dimension; tie the others."""
    rows = [call.trace.dims(tensor) for tensor in call.args[0]]
    for other in rows[1:]:
        tie_all(rows[0], other)
    dims = list(rows[0])
    dims.insert(call.given(1, "dim", 0) % call.out.dim(), fresh(len(rows), fixed=True))
    call.put(dims)


@named("copy")
def copied(call: Call) -> None:
    """Copy the entries of one tensor into another: tie their dimensions."""
    for one, other in zip(reversed(call.dims(0)), reversed(call.dims(1)), strict=False):
        if length(other) > 1:
            tie(one, other)
    call.put(call.dims(0))
