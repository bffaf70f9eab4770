"""Keys and noise: every random number of a run follows from one seed, on every device, with no state to lose.

A **key** is two 64-bit words. It is never used up: the same key always gives the same numbers, so two purposes need two
keys, and these are made by folding labels and integers into one: ``fold(run, "noise", round, client)``.

The fold, exactly. ``fold(key, x)`` is the 16-byte BLAKE2b digest, with no BLAKE2b key, salt or person, of

    word a, word b      8 bytes each, little endian
    tag                 one byte: "s" for a string, "i" for an integer
    label               a string as UTF-8; an integer as two's complement, little endian, in bit_length // 8 + 1 bytes

read as two little-endian words again. ``fold(key, x, y)`` is ``fold(fold(key, x), y)``, so the key of a round can be
made once and folded on; each digest covers one label, so ("ab", "c") and ("a", "bc") differ. ``key(seed)`` is the seed
folded into the key (0, 0).

The **noise** of a key is the raw word stream of NumPy's Philox4x64-10 with that key and counter 0, whose stability
NumPy documents. NumPy counts before it draws: word i is word i % 4 of the block with counter 1 + i // 4, so any word
can be had without those before it. The same words come from NumPy on the CPU, from one Triton kernel on a GPU, and from
int64 tensor operations anywhere else. Everything below is exact integer arithmetic on them, or a multiplication by a
power of two: bits agree on all devices.

>>> run = key(7)
>>> uniform(fold(run, "noise", 3), 2)
tensor([0.4181, 0.0167])
"""

import functools
import importlib.util
import operator
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, require

LOW = 0xFFFFFFFF
WORDS = 2**64  # how many words a key may give: counters then fit one positive int64, and the other counter words stay 0
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)  # added to the two key words after each round
ROUNDS = 10


class Key(NamedTuple):
    """The two 64-bit words of a Philox key. Make one with ``key`` and ``fold``."""

    a: int
    b: int


def key(seed: int) -> Key:
    """The key that a run starts from; any integer is a seed."""
    return fold(Key(0, 0), seed)


def fold(key: Key, *labels: str | int) -> Key:
    """A new key for the purpose that the labels name; ``fold(k, x, y) == fold(fold(k, x), y)``."""
    for label in labels:
        key = _folded(key, _encoded(label))
    return key


@functools.lru_cache(maxsize=4096)
def _folded(key: Key, label: bytes) -> Key:
    """The key with one label in it; remembered, as a round asks for a client's key again and again."""
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
    """Words ``start`` to ``start + n`` of a key's noise, as int64 with the same bits."""
    device = torch.device(device)
    if device.type == "cpu":
        raw = _raw(key, n, start).view(np.int64)
        # NumPy may give an empty array the stride 0, with which torch will not view it as another type.
        return torch.from_numpy(raw) if n else torch.empty(0, dtype=torch.int64)
    if device.type == "cuda" and _triton_installed():
        return _words_by_triton(key, n, start, device)
    return words_by_tensor_ops(key, n, start=start, device=device)


@functools.cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def _words_by_triton(key: Key, n: int, start: int, device: torch.device) -> Tensor:
    from gossamer.core.random import philox_triton  # imported here: Triton comes with CUDA builds of torch alone

    _check(n, start)
    return philox_triton.words(signed(key.a), signed(key.b), 1 + start // 4, start % 4, n, device)


def words_by_tensor_ops(key: Key, n: int, *, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """The same words in plain int64 tensor operations, for devices that have nothing faster."""
    _check(n, start)
    first, last = start // 4, -(-(start + n) // 4)
    counter = torch.arange(last - first, dtype=torch.int64, device=device) + (1 + first)
    return _philox(counter, key).reshape(-1)[start % 4 :][:n]


def _philox(counter: Tensor, key: Key, second: Tensor | int = 0) -> Tensor:
    """Four words for each counter, in the last dimension; ``second`` is the counter's second word."""
    c0, c1, c2, c3 = counter, *(torch.zeros_like(counter) for _ in range(3))
    c1 = c1 + second
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ signed(k0), low1, high0 ^ c3 ^ signed(k1), low0
        k0, k1 = k0 + WEYL[0], k1 + WEYL[1]
    return torch.stack((c0, c1, c2, c3), dim=-1)


def _multiply(x: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    """High and low word of the unsigned 128-bit product.

    int64 arithmetic wraps, which is unsigned arithmetic bit for bit, save that ``>>`` copies the sign: hence the masks.
    No sum below passes 2**64 - 1, so no carry is lost.
    """
    low, high = constant & LOW, constant >> 32
    x_low, x_high = x & LOW, _shifted(x)
    middle = x_high * low + _shifted(x_low * low)
    other = x_low * high + (middle & LOW)
    return x_high * high + _shifted(middle) + _shifted(other), x * signed(constant)


def _shifted(x: Tensor) -> Tensor:
    return (x >> 32) & LOW


def signed(word: int) -> int:
    """The int64 with the low 64 bits of ``word``."""
    return (word + 2**63) % 2**64 - 2**63


def _raw(key: Key, n: int, start: int = 0) -> npt.NDArray[np.uint64]:
    _check(n, start)
    skip = start % 4
    return np.asarray(_bits(key, start // 4).random_raw(skip + n)[skip:])


def _bits(key: Key, counter: int = 0) -> np.random.Philox:
    # An array, not a list: NumPy reads a list with a word above 2**63 as floats, and rounds it.
    return np.random.Philox(key=np.array(key, dtype=np.uint64), counter=counter)


def _check(n: int, start: int = 0) -> None:
    require(
        (n >= 0, f"noise: n must be at least 0, got {n}"),
        (start >= 0, f"noise: start must be at least 0, got {start}"),
        (start + n <= WORDS, f"noise: a key gives {WORDS:,} words, asked for {n:,} from {start:,}"),
    )


def halves(words: Tensor) -> Tensor:
    """The 32-bit halves of each word, low half first, as int64 values from 0 to 2**32 - 1."""
    return _pairs(words).to(torch.int64) & LOW


def _pairs(words: Tensor) -> Tensor:
    pairs = words.contiguous().view(torch.int32).view(-1, 2)
    return (pairs if sys.byteorder == "little" else pairs.flip(1)).reshape(-1)


def uniform(
    key: Key, n: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", start: int = 0
) -> Tensor:
    """Values ``start`` to ``start + n`` of a key's uniform noise in [0, 1).

    A float32 is the top 24 bits of one half, two values a word; a float64 the top 53 bits of one word.
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
    """A key as a tensor, for ``draws``: its two words as int64 with the same bits."""
    return torch.tensor([signed(key.a), signed(key.b)], dtype=torch.int64, device=device)


@torch.library.custom_op("gossamer::draws", mutates_args=())
def draws(key: Tensor, step: Tensor, n: int) -> Tensor:
    """Uniform float32 noise for one of many steps, from tensors alone, so that a step can be stacked and captured.

    ``key`` is from ``tensor``, ``step`` a whole number, one element. The counter's second word is the step: at step
    0 these are the values of ``uniform``.
    """
    if key.is_cuda and _triton_installed():
        from gossamer.core.random import philox_triton

        raw = philox_triton.words_at(key, step, -(-n // 2))
    elif key.device.type == "cpu":
        bits = _bits(_read(key), int(step) << 64)  # the whole counter as one number
        raw = torch.from_numpy(bits.random_raw(max(1, -(-n // 2))).view(np.int64))
    else:
        counter = torch.arange(-(-n // 8), dtype=torch.int64, device=key.device) + 1
        raw = _philox(counter, _read(key), step).reshape(-1)
    return _fractions(_pairs(raw)[:n] >> 8, 24, torch.float32)


def _read(key: Tensor) -> Key:
    """The key behind ``tensor``."""
    return Key(*(int(word) % 2**64 for word in key))


@draws.register_fake
def _(key: Tensor, step: Tensor, n: int) -> Tensor:
    return key.new_empty(n, dtype=torch.float32)


@draws.register_vmap
def _(info: object, in_dims: tuple[int | None, ...], key: Tensor, step: Tensor, n: int) -> tuple[Tensor, int]:
    """One client after the other."""
    many = key.shape[in_dims[0]] if in_dims[0] is not None else step.shape[in_dims[1] or 0]
    keys = key.movedim(in_dims[0], 0) if in_dims[0] is not None else key.expand(many, *key.shape)
    steps = step.movedim(in_dims[1], 0) if in_dims[1] is not None else step.expand(many, *step.shape)
    return torch.stack([draws(k, s, n) for k, s in zip(keys, steps, strict=True)]), 0


def draws_like(key: Tensor, step: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The ``draws`` of a step for all entries of some tensors, in name order, in their shapes and types."""
    drawn, found, start = draws(key, step, sum(tensor.numel() for tensor in like.values())), {}, 0
    for name in sorted(like):
        shape = like[name].shape
        found[name] = drawn[start : start + shape.numel()].view(shape).to(like[name].dtype)
        start += shape.numel()
    return found


def permutation(key: Key, n: int) -> npt.NDArray[np.int64]:
    """The integers below ``n`` in random order: the stable argsort of n words taken as unsigned."""
    return np.argsort(_raw(key, n), kind="stable").astype(np.int64, copy=False)


def choice(key: Key, n: int, k: int) -> npt.NDArray[np.int64]:
    """``k`` of the integers below ``n``, all different, ascending: the first k of the permutation, sorted."""
    require((0 <= k <= n, f"choice: k must be from 0 to n = {n}, got {k}"))
    return np.sort(permutation(key, n)[:k])


def generator(key: Key) -> np.random.Generator:
    """A NumPy generator, for splits and synthetic data only.

    NumPy may change what its methods return from one release to the next: never use it for anything on which both
    ends of a wire must agree.
    """
    return np.random.Generator(_bits(key))


def torch_seed(key: Key) -> int:
    """A 63-bit seed for torch's own generators: initial weights and dropout, which never go on the wire as seeds.

    These differ between devices and releases, and torch's CPU generator reads only the low 32 bits of its seed.
    """
    return key.a >> 1


@contextmanager
def seeded(key: Key) -> Iterator[None]:
    """Torch's own generators seeded from a key (initialisation, dropout), and put back afterwards.

    Not with ``torch.manual_seed``, which takes note of who called it for every kind of device there might be.
    """
    on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    generators = [torch.default_generator, *on_gpus]
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(torch_seed(key))
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
