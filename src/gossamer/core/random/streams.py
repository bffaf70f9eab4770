"""Random keys and random words: all random numbers of a run follow from one seed, on every device, without state.

A **key** is two 64-bit words. The same key always gives the same numbers, so different purposes need different keys.
They are made by folding labels and integers into a key: ``fold(run, "noise", round, client)``.

Exact definition: ``fold(key, x)`` is the 16-byte BLAKE2b digest, with no BLAKE2b key, salt or person, of

    word a, word b      8 bytes each, little endian
    tag                 one byte: "s" for a string, "i" for an integer
    label               a string as UTF-8; an integer as two's complement, little endian, in bit_length // 8 + 1 bytes

read as two little-endian words. ``fold(key, x, y)`` is ``fold(fold(key, x), y)``, so the key of a round can be computed
once and folded further. Each digest covers one label, so ("ab", "c") and ("a", "bc") differ. ``key(seed)`` is the seed
folded into the key (0, 0).

The **words** of a key are the raw stream of NumPy's Philox4x64-10 with that key and counter 0, whose stability NumPy
documents. NumPy increments the counter first: word i is word i % 4 of the block with counter 1 + i // 4. So any range
of words can be computed without the words before it. They come from NumPy on a CPU, from one Triton kernel on a GPU,
and from int64 tensor operations on other devices. All functions here use exact integer arithmetic, or multiplication by
a power of two, so results have the same bits on all devices.

>>> run = key(7)
>>> uniform(fold(run, "noise", 3), 2)
tensor([0.4181, 0.0167])
"""

import functools
import importlib.util
import operator
import os
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses import FakeTensor

from gossamer.core.errors import ConfigError, PayloadError, require

LOW = 0xFFFFFFFF
WORDS = 2**64  # words per key: counters then fit in one positive int64, and the other counter words stay 0
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)  # added to the two key words after each round
ROUNDS = 10


class Key(NamedTuple):
    """The two 64-bit words of a Philox key. Make one with ``key`` and ``fold``."""

    a: int
    b: int


Purpose = tuple[str | int, ...]
"""The labels that are folded into a run's key, one after the other."""


class KeyRing(Key):
    """A run's key as far as one machine may know it: the keys of some purposes, and nothing of the others.

    ``fold`` takes it in place of the run's key. Keys are digests, so those of some purposes say nothing about others:

    >>> run = key(7)
    >>> ring = KeyRing({("round", 3, "client", 1): fold(run, "round", 3, "client", 1)})
    >>> fold(ring, "round", 3, "client", 1, "batches") == fold(run, "round", 3, "client", 1, "batches")
    True

    A ring itself has no words: to draw from it is an error.

    Args:
        granted: the known keys by purpose; every ring that is folded from this one sees later changes of it
        path: the purpose that this ring stands for
    """

    granted: dict[Purpose, Key]
    path: Purpose

    def __new__(cls, granted: dict[Purpose, Key], path: Purpose = ()) -> "KeyRing":
        """Return a key without words, so that none can be used by mistake."""
        made: KeyRing = tuple.__new__(cls)
        made.granted, made.path = granted, path
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyRing) and self.granted is other.granted and self.path == other.path

    def __hash__(self) -> int:
        return hash((id(self.granted), self.path))

    def __repr__(self) -> str:
        return f"KeyRing{self.path}"

    def child(self, label: str | int) -> Key:
        """Return the key with one more label, or the ring of what is known below it."""
        path = (*self.path, label)
        if path in self.granted:
            return self.granted[path]
        if any(purpose[: len(path)] == path for purpose in self.granted):
            return KeyRing(self.granted, path)
        raise PayloadError(
            f"this machine was not given the key of {'/'.join(map(str, path))}: a part that draws from the run's key at"
            " clients must name its purpose, see purposes() of views"
        )


def key(seed: int) -> Key:
    """Return the key of a seed, which can be any integer."""
    return fold(Key(0, 0), seed)


def secret_key() -> Key:
    """Return a key from the operating system, which nobody can guess."""
    return Key(*struct.unpack("<QQ", os.urandom(16)))


def fold(key: Key, *labels: str | int) -> Key:
    """Return a new key for the purpose named by the labels. ``fold(k, x, y) == fold(fold(k, x), y)``."""
    for label in labels:
        key = key.child(label) if isinstance(key, KeyRing) else _folded(key, _encoded(label))
    return key


@functools.lru_cache(maxsize=4096)
def _folded(key: Key, label: bytes) -> Key:
    """Fold one label into a key. Cached, because a round needs the key of a client several times."""
    digest = blake2b(struct.pack("<QQ", *key) + label, digest_size=16).digest()
    return Key(*struct.unpack("<QQ", digest))


def _encoded(label: str | int) -> bytes:
    if isinstance(label, str):
        return b"s" + label.encode()
    try:
        number = operator.index(label)
    except TypeError:
        raise ConfigError(f"fold: a label must be a string or an integer, got {label!r}") from None
    return b"i" + number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)


def words(key: Key, n: int, *, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Return words ``start`` to ``start + n`` of a key, as int64 with the same bits."""
    device = torch.device(device)
    if device.type == "cpu":
        raw = _raw(key, n, start).view(np.int64)
        # torch cannot view an empty NumPy array of stride 0 as another type.
        return torch.from_numpy(raw) if n else torch.empty(0, dtype=torch.int64)
    if device.type == "cuda" and _triton_installed():
        return _words_by_triton(key, n, start, device)
    return words_by_tensor_ops(key, n, start=start, device=device)


@functools.cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def _words_by_triton(key: Key, n: int, start: int, device: torch.device) -> Tensor:
    from gossamer.core.random import philox_triton  # imported here: only CUDA builds of torch have Triton

    _check(n, start)
    return philox_triton.words(signed(key.a), signed(key.b), 1 + start // 4, start % 4, n, device)


def words_by_tensor_ops(key: Key, n: int, *, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Return the same words as ``words``, from int64 tensor operations. Works on any device."""
    _check(n, start)
    first, last = start // 4, -(-(start + n) // 4)
    counter = torch.arange(last - first, dtype=torch.int64, device=device) + (1 + first)
    return _philox(counter, key).reshape(-1)[start % 4 :][:n]


def _philox(counter: Tensor, key: Key, *upper: Tensor | int) -> Tensor:
    """Return four words for each counter, in the last dimension. ``upper`` are the counter's upper words, or none."""
    c0, c1, c2, c3 = counter, *(torch.zeros_like(counter) + word for word in upper or (0, 0, 0))
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ signed(k0), low1, high0 ^ c3 ^ signed(k1), low0
        k0, k1 = k0 + WEYL[0], k1 + WEYL[1]
    return torch.stack((c0, c1, c2, c3), dim=-1)


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


def signed(word: int) -> int:
    """Return the int64 with the low 64 bits of ``word``."""
    return (word + 2**63) % 2**64 - 2**63


def _raw(key: Key, n: int, start: int = 0) -> npt.NDArray[np.uint64]:
    _check(n, start)
    skip = start % 4
    return np.asarray(_bits_at(key, start // 4).random_raw(skip + n)[skip:])


def _bits(key: Key) -> np.random.Philox:
    # An array, not a list: NumPy converts a list with a word above 2**63 to floats.
    return np.random.Philox(key=np.array(key, dtype=np.uint64))


class _Own(threading.local):
    """A generator per thread, which is set to a key and a position before each use."""

    def __init__(self) -> None:
        self.bits = _bits(Key(0, 0))
        self.state: Any = dict(self.bits.state)  # with no words left of an earlier position


_own = _Own()


def _bits_at(key: Key, *counter: int) -> np.random.Philox:
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
    pairs = words.contiguous().view(torch.int32).view(-1, 2)
    return (pairs if sys.byteorder == "little" else pairs.flip(1)).reshape(-1)


def uniform(
    key: Key, n: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", start: int = 0
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
    return _fractions(pairs[start % 2 :][:n] >> 8, 24, dtype)


def _fractions(integers: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    return (integers & ((1 << bits) - 1)).to(dtype).mul_(0.5**bits)


def tensor(key: Key, device: torch.device | str = "cpu") -> Tensor:
    """Return a key as a tensor, for ``draws``: its two words as int64 with the same bits."""
    return torch.tensor([signed(key.a), signed(key.b)], dtype=torch.int64, device=device)


def draws(key: Tensor, step: Tensor, n: int, layer: int = 0, evaluation: int = 0) -> Tensor:
    """Return ``n`` uniform float32 values for one local step, in operations that can be stacked and captured.

    ``key`` is from ``tensor``, ``step`` is an integer tensor with one element. The step is the second word of the
    counter, layer and evaluation are the third and the fourth. With all three at 0, the values are those of
    ``uniform``.
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
    if key.is_cuda and _triton_installed():
        from gossamer.core.random import philox_triton

        raw = philox_triton.words_at(key, step, -(-n // 2), layer, evaluation)
    elif key.device.type == "cpu":
        return torch.from_numpy((_halves_at(_read(key), int(step), n, layer, evaluation) >> 8).view(np.int32))
    else:
        counter = torch.arange(-(-n // 8), dtype=torch.int64, device=key.device) + 1
        raw = _philox(counter, _read(key), step, layer, evaluation).reshape(-1)
    return (_pairs(raw)[:n] >> 8) & ((1 << 24) - 1)


_draw_bits_op = torch.library.custom_op("gossamer::draw_bits", mutates_args=())(_draw_bits)


def _halves_at(key: Key, step: int, n: int, layer: int, evaluation: int) -> npt.NDArray[np.uint32]:
    """Return the first ``n`` 32-bit halves of the words whose counters have these upper words."""
    bits = _bits_at(key, 0, step, layer, evaluation)
    return np.asarray(bits.random_raw(-(-n // 2))).astype("<u8", copy=False).view("<u4")[:n]


def _read(key: Tensor) -> Key:
    """Return the key that was passed to ``tensor``."""
    return Key(*(word % 2**64 for word in key.tolist()))


@_draw_bits_op.register_fake
def _(key: Tensor, step: Tensor, n: int, layer: int, evaluation: int) -> Tensor:
    return key.new_empty(n, dtype=torch.int32)


@_draw_bits_op.register_vmap
def _(
    info: object, in_dims: tuple[int | None, ...], key: Tensor, step: Tensor, n: int, layer: int, evaluation: int
) -> tuple[Tensor, int]:
    """Compute the bits of stacked clients one after the other."""
    count = key.shape[in_dims[0]] if in_dims[0] is not None else step.shape[in_dims[1] or 0]
    keys = key.movedim(in_dims[0], 0) if in_dims[0] is not None else key.expand(count, *key.shape)
    steps = step.movedim(in_dims[1], 0) if in_dims[1] is not None else step.expand(count, *step.shape)
    return torch.stack([draw_bits(k, s, n, layer, evaluation) for k, s in zip(keys, steps, strict=True)]), 0


def draws_like(key: Tensor, step: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the ``draws`` of a step for all entries of some tensors, in name order, in their shapes and types."""
    drawn, found, start = draws(key, step, sum(tensor.numel() for tensor in like.values())), {}, 0
    for name in sorted(like):
        shape = like[name].shape
        found[name] = drawn[start : start + shape.numel()].view(shape).to(like[name].dtype)
        start += shape.numel()
    return found


def permutation(key: Key, n: int) -> npt.NDArray[np.int64]:
    """Return the integers below ``n`` in random order: the stable argsort of n unsigned words."""
    return np.argsort(_raw(key, n), kind="stable").astype(np.int64, copy=False)


def choice(key: Key, n: int, k: int) -> npt.NDArray[np.int64]:
    """Return ``k`` different integers below ``n``, ascending: the first k of the permutation, sorted."""
    require((0 <= k <= n, f"choice: k must be from 0 to n = {n}, got {k}"))
    return np.sort(permutation(key, n)[:k])


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
