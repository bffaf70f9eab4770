"""Random words and numbers from keys: the same bits on every device, for one key or for the keys of many rows.

The **words** of a key are the raw stream of NumPy's Philox4x64-10 with that key and counter 0, whose stability NumPy
documents. NumPy increments the counter first: word i is word i % 4 of the block with counter 1 + i // 4. So any range
of words can be computed without the words before it. They come from NumPy on a CPU, from one Triton kernel on a GPU,
and from int64 tensor operations on other devices. All functions here use exact integer arithmetic, or multiplication by
a power of two, so results have the same bits on all devices.

Of ``Keys`` each function returns a row per key, ``[K, n]`` in place of ``[n]``, with the bits of that key alone.

>>> from gossamer.core.random import fold, fold_each, key
>>> run = key(7)
>>> uniform(fold(run, "noise", 3), 2)
tensor([0.4181, 0.0167])
>>> uniform(fold_each(run, "noise", [3, 4]), 2)
tensor([[0.4181, 0.0167],
        [0.1454, 0.8172]])
"""

import functools
import importlib.util
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses import FakeTensor

from gossamer.core.errors import require
from gossamer.core.random.keys import Key, Keys, signed, tensor

Array = npt.NDArray[Any]

LOW = 0xFFFFFFFF
WORDS = 2**64  # words per key: counters then fit in one positive int64, and the other counter words stay 0
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)  # added to the two key words after each round
ROUNDS = 10


def words(key: Key | Keys, n: int, *, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Return words ``start`` to ``start + n`` of a key, as int64 with the same bits: ``[n]``, or ``[K, n]``."""
    device = torch.device(device)
    if device.type == "cpu":
        raw = _raw(key, n, start).view(np.int64)
        # torch cannot view an empty NumPy array of stride 0 as another type.
        return torch.from_numpy(raw) if n else torch.empty(raw.shape, dtype=torch.int64)
    if device.type == "cuda" and _triton_installed():
        from gossamer.core.random import philox_triton  # imported here: only CUDA builds of torch have Triton

        _check(n, start)
        at = 1 + start // 4, start % 4, n
        if isinstance(key, Keys):
            return philox_triton.words_of_rows(tensor(key, device), None, *at)
        return philox_triton.words(signed(key.a), signed(key.b), *at, device)
    return words_by_tensor_ops(key, n, start=start, device=device)


@functools.cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def words_by_tensor_ops(key: Key | Keys, n: int, *, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Return the same words as ``words``, from int64 tensor operations. Works on any device."""
    _check(n, start)
    first, last = start // 4, -(-(start + n) // 4)
    counter = torch.arange(last - first, dtype=torch.int64, device=device) + (1 + first)
    return _philox(counter, tensor(key, device))[..., start % 4 :][..., :n].contiguous()


def _philox(counter: Tensor, key: Tensor, *upper: Tensor | int) -> Tensor:
    """Return four words for each counter. ``upper`` are the counter's upper words, or none."""
    k0, k1 = key.split(1, -1)  # [1], or [K, 1]
    c0, c1, c2, c3 = counter, *(torch.zeros_like(counter) + word for word in upper or (0, 0, 0))
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + signed(WEYL[0]), k1 + signed(WEYL[1])
    return torch.stack((c0, c1, c2, c3), dim=-1).flatten(-2)


def _multiply(x: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    """Return the high and the low word of the unsigned 128-bit product.

    int64 arithmetic wraps around, so its bits equal those of unsigned arithmetic. Only ``>>`` copies the sign, hence
    the masks. No sum here exceeds 2**64 - 1, so no carry is lost.
    """
    low, high = constant & LOW, constant >> 32
    x_low, x_high = x & LOW, _shifted(x)
    middle = x_high * low + _shifted(x_low * low)
    other = x_low * high + (middle & LOW)
    return x_high * high + _shifted(middle) + _shifted(other), x * signed(constant)


def _shifted(x: Tensor) -> Tensor:
    return (x >> 32) & LOW


def _raw(key: Key | Keys, n: int, start: int = 0) -> npt.NDArray[np.uint64]:
    _check(n, start)
    skip = start % 4
    if not isinstance(key, Keys):
        return np.asarray(_bits_at(key, start // 4).random_raw(skip + n)[skip:])
    return _raw_rows(np.array(list(key), dtype=np.uint64).reshape(-1, 2), (start // 4, 0, 0, 0), n, skip)


def _raw_rows(keys: Array, counters: npt.ArrayLike, n: int, skip: int = 0) -> Array:
    """Return ``n`` words of each of ``[K, 2]`` keys, after ``skip`` words from the counters ``[K, 4]`` or ``[4]``."""
    found = np.empty((len(keys), n), dtype=np.uint64)
    state: Any = dict(_own.state)
    each = np.broadcast_to(np.asarray(counters, dtype=np.uint64), (len(keys), 4))
    for row, key, counter in zip(found, keys, each, strict=True):
        state["state"] = {"counter": counter, "key": key}
        _own.bits.state = state
        row[:] = _own.bits.random_raw(skip + n)[skip:]
    return found


def _bits(key: Key) -> np.random.Philox:
    # An array, not a list: NumPy converts a list with a word above 2**63 to floats.
    return np.random.Philox(key=np.array(key, dtype=np.uint64))


class _Own(threading.local):
    """A generator per thread, which is set to a key and a position before each use."""

    def __init__(self) -> None:
        self.bits = _bits(Key(0, 0))
        self.state: Any = dict(self.bits.state)  # with no words left of an earlier position


_own = _Own()


def _bits_at(key: Key | npt.NDArray[np.uint64], *counter: int) -> np.random.Philox:
    """Return this thread's generator, at the start of a block; this takes a fraction of the time of a new one."""
    words = np.array((*counter, 0, 0, 0)[:4], dtype=np.uint64)
    _own.bits.state = _own.state | {"state": {"counter": words, "key": np.array(key, dtype=np.uint64)}}
    return _own.bits


def _check(n: int, start: int = 0) -> None:
    require(
        (n >= 0, f"random: n must be at least 0, got {n}"),
        (start >= 0, f"random: start must be at least 0, got {start}"),
        (start + n <= WORDS, f"random: start + n must be at most {WORDS:,}, the words of a key, got {start:,} + {n:,}"),
    )


def halves(words: Tensor) -> Tensor:
    """Return the 32-bit halves of each word, low half first, as int64 values from 0 to 2**32 - 1."""
    return _pairs(words).to(torch.int64) & LOW


def _pairs(words: Tensor) -> Tensor:
    return words.contiguous().view(torch.int32)  # [..., 2n]; torch runs on little-endian machines


def uniform(
    key: Key | Keys, n: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", start: int = 0
) -> Tensor:
    """Return values ``start`` to ``start + n`` of a key's uniform noise in [0, 1).

    A float32 is the top 24 bits of half a word. A float64 is the top 53 bits of one word.
    """
    _check(n, start)
    if dtype == torch.float64:
        return _fractions(words(key, n, start=start, device=device) >> 11, 53, dtype)
    require((dtype == torch.float32, f"uniform: dtype must be torch.float32 or torch.float64, got {dtype}"))
    first, last = start // 2, -(-(start + n) // 2)
    pairs = _pairs(words(key, last - first, start=first, device=device))
    return _fractions(pairs[..., start % 2 :][..., :n] >> 8, 24, dtype)


def _fractions(integers: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    return (integers & ((1 << bits) - 1)).to(dtype).mul_(0.5**bits)


def draws(key: Tensor, step: Tensor, n: int, layer: int = 0, evaluation: int = 0) -> Tensor:
    """Return ``n`` uniform float32 values for one local step, in operations that can be stacked and captured.

    ``key`` is from ``tensor``, ``step`` is an integer tensor with one element, or of ``[K]`` steps for ``[K, 2]`` keys.
    The step is the second word of the counter, layer and evaluation are the third and the fourth. With all three at 0,
    the values are those of ``uniform``.
    """
    return draw_bits(key, step, n, layer, evaluation).to(torch.float32).mul(0.5**24)


def draw_bits(key: Tensor, step: Tensor, n: int, layer: int = 0, evaluation: int = 0) -> Tensor:
    """Return the 24 bits of each of the ``draws``, as int32."""
    plain = not torch.compiler.is_compiling() and not any(map(_has_no_values, (key, step)))
    return (_draw_bits if plain else _draw_bits_op)(key, step, n, layer, evaluation)


def _has_no_values(tensor: Tensor) -> bool:
    """Return whether a tensor is stacked, or stands for a tensor while a step is compiled."""
    return is_functorch_wrapped_tensor(tensor) or isinstance(tensor, FakeTensor)


def _draw_bits(key: Tensor, step: Tensor, n: int, layer: int, evaluation: int) -> Tensor:
    count = -(-n // 2)
    if key.device.type == "cpu":
        drawn = _raw_at(key.numpy().view(np.uint64), step.numpy(), count, layer, evaluation)
        return torch.from_numpy((drawn.astype("<u8", copy=False).view("<u4")[..., :n] >> 8).view(np.int32))
    rows = key.shape[:-1]
    keys, steps = key.reshape(-1, 2), step.reshape(-1).expand(rows.numel())
    if key.is_cuda and _triton_installed():
        from gossamer.core.random import philox_triton

        raw = philox_triton.words_of_rows(keys, steps, 1, 0, count, layer, evaluation)
    else:
        counter = torch.arange(-(-n // 8), dtype=torch.int64, device=key.device) + 1
        raw = _philox(counter, keys, steps.unsqueeze(1), layer, evaluation)
    return ((_pairs(raw)[:, :n] >> 8) & ((1 << 24) - 1)).view(*rows, n)


_draw_bits_op = torch.library.custom_op("gossamer::draw_bits", mutates_args=())(_draw_bits)


def _raw_at(key: Array, step: Array, n: int, layer: int, evaluation: int) -> Array:
    """Return the first ``n`` words whose counters have these upper words."""
    if key.ndim == 1:
        return np.asarray(_bits_at(key, 0, step.item(), layer, evaluation).random_raw(n))
    keys = key.reshape(-1, 2)
    counters = np.zeros((len(keys), 4), dtype=np.uint64)
    counters[:, 1], counters[:, 2], counters[:, 3] = step.reshape(-1), layer, evaluation
    return _raw_rows(keys, counters, n).reshape(*key.shape[:-1], n)


@_draw_bits_op.register_fake
def _(key: Tensor, step: Tensor, n: int, layer: int, evaluation: int) -> Tensor:
    return key.new_empty((*key.shape[:-1], n), dtype=torch.int32)


@_draw_bits_op.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], key: Tensor, step: Tensor, n: int, layer: int, evaluation: int
) -> tuple[Tensor, int]:
    """Compute the bits of stacked clients in one call: their keys and steps are rows."""
    count = info.batch_size
    keys, steps = (
        x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip((key, step), in_dims, strict=False)
    )
    each = keys.shape[1:-1].numel()  # rows of their own that stacked clients have: 1 but where ``vmap`` is nested
    steps = steps.reshape(count, -1).expand(count, each).reshape(keys.shape[:-1])
    return draw_bits(keys, steps, n, layer, evaluation), 0


def draws_like(key: Tensor, step: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the ``draws`` of a step for all entries of some tensors, in name order, in their shapes and types.

    Of ``[K, 2]`` keys, they are stacked: each has a row per key.
    """
    drawn, found, start = draws(key, step, sum(tensor.numel() for tensor in like.values())), {}, 0
    for name in sorted(like):
        shape = like[name].shape
        entries = drawn[..., start : start + shape.numel()]
        found[name] = entries.reshape(*drawn.shape[:-1], *shape).to(like[name].dtype)
        start += shape.numel()
    return found


def permutation(key: Key | Keys, n: int) -> npt.NDArray[np.int64]:
    """Return the integers below ``n`` in random order: the stable argsort of n unsigned words."""
    return np.argsort(_raw(key, n), axis=-1, kind="stable").astype(np.int64, copy=False)


def choice(key: Key | Keys, n: int, k: int) -> npt.NDArray[np.int64]:
    """Return ``k`` different integers below ``n``, ascending: the first k of the permutation, sorted."""
    require((0 <= k <= n, f"choice: k must be from 0 to n = {n}, got {k}"))
    return np.sort(permutation(key, n)[..., :k], axis=-1)


def generator(key: Key) -> np.random.Generator:
    """Return a NumPy generator, for partitions and synthetic data only.

    NumPy may change the results of its methods between releases. Never use it where server and client must agree.
    """
    return np.random.Generator(_bits(key))


def torch_seed(key: Key) -> int:
    """Return a 63-bit seed for torch's generators: for initial weights and dropout.

    Their numbers differ between devices and releases, so server and client never rely on them. torch's CPU generator
    reads only the low 32 bits of its seed.
    """
    return key.a >> 1


@contextmanager
def seeded(key: Key) -> Iterator[None]:
    """Seed torch's generators from a key (initialization, dropout), and restore their state afterwards.

    ``torch.manual_seed`` is not used: it records a stack trace for every device type, which is slow.
    """
    on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    generators = [torch.default_generator, *on_gpus]
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(torch_seed(key))
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
