"""Keys and noise, compared with slow and obvious versions and with published vectors."""

import doctest
import hashlib
import struct
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

import gossamer.core.random
from gossamer.core.errors import ConfigError
from gossamer.core.random import (
    Key,
    choice,
    draws,
    fold,
    generator,
    halves,
    key,
    permutation,
    tensor,
    torch_seed,
    uniform,
    words,
    words_by_tensor_ops,
)
from helpers.paths import ROOT

WORD = 2**64 - 1
FIRST_WORDS = {
    Key(0, 0): "02f4ba6408e4d89b 3dd62b0b9ca8c5b2 1c8667a55d902e79 907d7a052fd5b4dc 809bf322883987c3",
    Key(1, 2): "4f2f4313b5536b09 5b617be3219ff32a 097293476f9275cb f63f3bf4962c3942 04dcc60473aa0f43",
    Key(WORD, WORD): "6d46cc0e71f0be7e 924ea1693f9a8bc0 fdc35f0198c91181 b4a311f17aa6568d 67e12c1eff8de57e",
}

word = st.integers(0, WORD)
keys = st.builds(Key, word, word)
labels = st.one_of(st.text(max_size=8), st.integers(), st.integers(-(2**200), 2**200))
steady = settings(deadline=None, derandomize=True)


def philox(counter: list[int], k: Key) -> list[int]:
    """Philox4x64-10 as the paper has it (Salmon et al., SC 2011), in Python integers."""
    c, (a, b) = list(counter), k
    for _ in range(10):
        x, y = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [(y >> 64) ^ c[1] ^ a, y & WORD, (x >> 64) ^ c[3] ^ b, x & WORD]
        a, b = (a + 0x9E3779B97F4A7C15) & WORD, (b + 0xBB67AE8584CAA73B) & WORD
    return c


def slow_words(k: Key, n: int, start: int = 0) -> list[int]:
    return [philox([1 + i // 4, 0, 0, 0], k)[i % 4] for i in range(start, start + n)]


def unsigned(tensor: torch.Tensor) -> list[int]:
    return [value & WORD for value in tensor.tolist()]


def hexed(numbers: list[int]) -> str:
    return " ".join(f"{number:016x}" for number in numbers)


@pytest.mark.parametrize(
    ("counter", "k", "block"),
    [
        ("0 0 0 0", "0 0", "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
        (
            "ffffffffffffffff ffffffffffffffff ffffffffffffffff ffffffffffffffff",
            "ffffffffffffffff ffffffffffffffff",
            "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0",
        ),
        (
            "243f6a8885a308d3 13198a2e03707344 a4093822299f31d0 082efa98ec4e6c89",
            "452821e638d01377 be5466cf34e90c6c",
            "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
        ),
    ],
)
def test_the_oracle_gives_the_vectors_published_with_random123(counter: str, k: str, block: str) -> None:
    a, b = (int(text, 16) for text in k.split())
    assert hexed(philox([int(text, 16) for text in counter.split()], Key(a, b))) == block


# Words


@pytest.mark.parametrize("make", [words, words_by_tensor_ops])
@pytest.mark.parametrize("k", FIRST_WORDS)
def test_first_words_never_change(make: Callable[..., Tensor], k: Key) -> None:
    assert hexed(unsigned(make(k, 5))) == FIRST_WORDS[k]


def test_words_are_those_of_numpy() -> None:
    raw = np.random.Philox(key=np.array([3, WORD], dtype=np.uint64), counter=0).random_raw(1000)
    assert unsigned(words(Key(3, WORD), 1000)) == raw.tolist()


@steady
@given(keys, st.integers(0, 40), st.integers(0, 2**64 - 40))
def test_all_ways_to_words_agree(k: Key, n: int, start: int) -> None:
    wanted = slow_words(k, n, start)
    assert unsigned(words(k, n, start=start)) == wanted
    assert unsigned(words_by_tensor_ops(k, n, start=start)) == wanted


def test_tensor_operations_agree_over_a_long_run() -> None:
    k = fold(key(5), "long")
    assert torch.equal(words_by_tensor_ops(k, 100_001, start=2**40 + 3), words(k, 100_001, start=2**40 + 3))


@steady
@given(keys, st.integers(0, 30), st.integers(0, 30))
def test_a_stream_can_be_entered_anywhere(k: Key, n: int, start: int) -> None:
    assert torch.equal(words(k, n, start=start), words(k, start + n)[start:])


def test_words_are_int64_and_the_callers_own() -> None:
    mine = words(key(1), 6)
    mine.zero_()
    assert mine.dtype == torch.int64
    assert words(key(1), 6).all()


def test_other_devices_get_tensor_operations() -> None:
    made = words(key(1), 7, start=2, device="meta")
    assert (made.device.type, made.dtype, made.shape) == ("meta", torch.int64, (7,))


@pytest.mark.parametrize("make", [words, words_by_tensor_ops])
@pytest.mark.parametrize(("n", "start"), [(-1, 0), (0, -1), (1, 2**64), (2, 2**64 - 1)])
def test_impossible_stretches_are_refused(make: Callable[..., Tensor], n: int, start: int) -> None:
    with pytest.raises(ConfigError, match=r"random: "):
        make(key(1), n, start=start)


def test_every_mistake_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        words(key(1), -2, start=-3)
    assert caught.value.mistakes == ("random: n must be at least 0, got -2", "random: start must be at least 0, got -3")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("start", [0, 1, 2**40 + 3])
@pytest.mark.parametrize("n", [0, 1, 5, 100_003])
def test_a_gpu_gives_the_same_bits(n: int, start: int) -> None:
    k = fold(key(9), "gpu")
    assert torch.equal(words(k, n, start=start, device="cuda").cpu(), words(k, n, start=start))
    assert torch.equal(words_by_tensor_ops(k, n, start=start, device="cuda").cpu(), words(k, n, start=start))
    for dtype in (torch.float32, torch.float64):
        noise = uniform(k, n, start=start, dtype=dtype, device="cuda")
        assert torch.equal(noise.cpu(), uniform(k, n, start=start, dtype=dtype))


# Halves and floats


def test_halves_are_low_then_high() -> None:
    assert halves(torch.tensor([0x00000001_FFFFFFFE, -1])).tolist() == [0xFFFFFFFE, 1, 0xFFFFFFFF, 0xFFFFFFFF]


def test_halves_of_strided_words() -> None:
    made = words(key(4), 10)
    assert torch.equal(halves(made[::2]), halves(made).view(-1, 2)[::2].reshape(-1))


def test_halves_are_what_numpy_draws_as_32_bit_integers() -> None:
    source = np.random.Philox(key=np.array(key(4), dtype=np.uint64))
    bits = source.ctypes
    assert halves(words(key(4), 10)).tolist() == [bits.next_uint32(bits.state) for _ in range(20)]


def test_float64_is_what_numpy_draws_as_doubles() -> None:
    source = np.random.Philox(key=np.array(key(4), dtype=np.uint64))
    bits = source.ctypes
    assert uniform(key(4), 20, dtype=torch.float64).tolist() == [bits.next_double(bits.state) for _ in range(20)]


@steady
@given(keys, st.integers(0, 9), st.integers(0, 2**50))
def test_floats_are_top_bits_over_a_power_of_two(k: Key, n: int, start: int) -> None:
    def half(i: int) -> int:
        return slow_words(k, 1, i // 2)[0] >> 32 * (i % 2) & 0xFFFFFFFF

    single, double = uniform(k, n, start=start), uniform(k, n, start=start, dtype=torch.float64)
    assert single.dtype == torch.float32
    assert double.dtype == torch.float64
    assert single.tolist() == [(half(i) >> 8) / 2**24 for i in range(start, start + n)]
    assert double.tolist() == [(w >> 11) / 2**53 for w in slow_words(k, n, start)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_is_uniform(dtype: torch.dtype) -> None:
    noise = uniform(fold(key(0), "uniform"), 160_000, dtype=dtype)
    counts = torch.histc(noise, bins=16, min=0, max=1)
    assert noise.min() >= 0
    assert noise.max() < 1
    assert ((counts - 10_000).square() / 10_000).sum() < 37.7  # the chi-square that one key in a thousand passes
    assert abs(noise.double().mean().item() - 0.5) < 3 / (12 * 160_000) ** 0.5


def test_uniform_refuses_other_types() -> None:
    with pytest.raises(ConfigError, match=r"uniform: dtype must be torch.float32 or torch.float64, got torch.float16"):
        uniform(key(0), 3, dtype=torch.float16)


# Keys


def slow_fold(k: Key, label: str | int) -> Key:
    if isinstance(label, str):
        text = b"s" + label.encode("utf-8")
    else:
        length = 1
        while not -(2 ** (8 * length - 1)) < label < 2 ** (8 * length - 1):
            length += 1
        text = b"i" + bytes((label >> 8 * i) & 0xFF for i in range(length))
    digest = hashlib.blake2b(struct.pack("<QQ", k.a, k.b) + text, digest_size=16).digest()
    return Key(int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little"))


def test_keys_never_change() -> None:
    assert key(0) == Key(0x723EC2175D7B9870, 0x5E8A7E540FAFB374)
    assert key(1) == Key(0xB176775387097D9A, 0x4B5E42CC9BF4A734)
    assert key(-1) == Key(0x47491EB2A8E74EB7, 0xC621DD57EA60B603)
    assert fold(key(0), "noise", 3) == Key(0x54565B9979C8ABC2, 0xE6E4968E8A82BB18)
    assert fold(key(0), 2**70) == Key(0x8F41CE9F393C1DBE, 0x4FCCBDA501E5E39B)


@steady
@given(keys, labels)
def test_the_fold_is_as_written_down(k: Key, label: str | int) -> None:
    assert fold(k, label) == slow_fold(k, label)


@steady
@given(keys, st.lists(labels, max_size=4), st.lists(labels, max_size=4))
def test_folding_in_steps_is_folding_at_once(k: Key, some: list[str | int], more: list[str | int]) -> None:
    assert fold(fold(k, *some), *more) == fold(k, *some, *more)


@steady
@given(keys, st.lists(labels, max_size=4), st.lists(labels, max_size=4))
def test_different_labels_make_different_keys(k: Key, some: list[str | int], others: list[str | int]) -> None:
    assert (fold(k, *some) == fold(k, *others)) == (some == others)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("1",), (1,)),
        (("",), ()),
        ((0,), ()),
        ((0,), (-1,)),
        ((255,), (-1,)),
        ((1, 2), (2, 1)),
    ],
)
def test_lookalikes_differ(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    assert fold(key(0), *one) != fold(key(0), *other)


def test_numpy_integers_are_integers() -> None:
    assert fold(key(0), cast(int, np.int64(-5))) == fold(key(0), -5)


@pytest.mark.parametrize("label", [1.0, None, b"noise"])
def test_other_labels_are_refused(label: object) -> None:
    with pytest.raises(ConfigError, match="a label must be a string or an integer"):
        fold(key(0), label)  # type: ignore[call-overload]


# Orders, choices and other people's generators


@steady
@given(keys, st.integers(0, 50))
def test_a_permutation_sorts_unsigned_words(k: Key, n: int) -> None:
    drawn = slow_words(k, n)
    order = permutation(k, n)
    assert order.dtype == np.int64
    assert order.tolist() == sorted(range(n), key=lambda i: (drawn[i], i))


@steady
@given(keys, st.integers(0, 50), st.data())
def test_a_choice_is_the_start_of_the_permutation_in_order(k: Key, n: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, n))
    assert choice(k, n, size).tolist() == sorted(permutation(k, n)[:size].tolist())


@pytest.mark.parametrize(("n", "k"), [(3, 4), (3, -1), (-1, 0)])
def test_impossible_choices_are_refused(n: int, k: int) -> None:
    with pytest.raises(ConfigError, match=f"choice: k must be from 0 to n = {n}, got {k}"):
        choice(key(0), n, k)


def test_all_are_chosen_equally_often() -> None:
    times = np.bincount(np.concatenate([choice(fold(key(0), i), 10, 3) for i in range(2000)]), minlength=10)
    assert abs(times - 600).max() < 4 * (2000 * 0.3 * 0.7) ** 0.5


def test_draws_of_tensors_without_values_have_their_shape() -> None:
    """Compilers trace a step, also a stacked one, with such tensors."""
    mode = FakeTensorMode()
    keys, steps = mode.from_tensor(tensor(key(3)).repeat(4, 1)), mode.from_tensor(torch.arange(4))
    with mode:
        stacked = torch.vmap(lambda k, step: draws(k, step, 5))(keys, steps)
        alone = draws(keys[0], steps[0], 5)
    assert (stacked.shape, alone.shape, stacked.dtype) == ((4, 5), (5,), torch.float32)


def test_a_generator_starts_from_its_key_each_time() -> None:
    assert generator(key(1)).normal(size=3).tolist() == generator(key(1)).normal(size=3).tolist()
    assert generator(key(1)).bit_generator.random_raw() == slow_words(key(1), 1)[0]


@given(keys)
@steady
def test_torch_takes_the_seed(k: Key) -> None:
    assert 0 <= torch_seed(k) < 2**63
    torch.Generator().manual_seed(torch_seed(k))


# What the documentation shows


def test_examples_in_the_module_hold() -> None:
    assert doctest.testmod(gossamer.core.random).failed == 0


def test_examples_in_the_documentation_hold() -> None:
    result = doctest.testfile(str(ROOT / "docs" / "randomness.md"), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0
