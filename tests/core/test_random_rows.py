"""Numbers of a group of clients: each row has the bits of its key alone, however many rows there are."""

import doctest
import pickle
from collections.abc import Callable
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gossamer.core.random.keys
import gossamer.core.random.streams
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.random import (
    Key,
    KeyRing,
    Keys,
    choice,
    draw_bits,
    draws,
    draws_like,
    fold,
    fold_each,
    halves,
    key,
    noise,
    permutation,
    tensor,
    uniform,
    words,
    words_by_tensor_ops,
)
from gossamer.core.random.directions import DIRECTION_KINDS, DirectionKind, combine, direction, project
from gossamer.core.random.normal import normal
from gossamer.core.random.private import BLOCK, gaussian, words_of

RUN = key(7)
word = st.integers(0, 2**64 - 1)
groups = st.lists(st.builds(Key, word, word), min_size=1, max_size=5)
lengths = st.one_of(st.integers(0, 70), st.integers(0, 70_000))
starts = st.one_of(st.integers(0, 9), st.integers(0, 2**50))
steady = settings(deadline=None, derandomize=True, max_examples=40)

FROM_KEYS: dict[str, Callable[..., Tensor]] = {
    "words": words,
    "words by tensor operations": words_by_tensor_ops,
    "halves": lambda k, n, start: halves(words(k, n, start=start)),
    "uniform": uniform,
    "uniform float64": partial(uniform, dtype=torch.float64),
    "words of a private part": partial(words_of, secure=False),
    **{kind: partial(noise.draw, kind, 0.7) for kind in noise.KINDS},
}


@pytest.mark.parametrize("name", FROM_KEYS)
@steady
@given(groups, lengths, starts)
def test_rows_have_the_bits_of_their_keys(name: str, keys: list[Key], n: int, start: int) -> None:
    draw = FROM_KEYS[name]
    found = draw(Keys(keys), n, start=start)
    assert found.is_contiguous()
    assert torch.equal(found, torch.stack([draw(k, n, start=start) for k in keys]))


@steady
@given(groups, lengths)
def test_gaussian_rows_have_the_bits_of_their_keys(keys: list[Key], n: int) -> None:
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(
            gaussian(Keys(keys), n, dtype=dtype), torch.stack([gaussian(k, n, dtype=dtype) for k in keys])
        )


@pytest.mark.parametrize(("rows", "n"), [(300, 1500), (2, BLOCK + 3), (0, 5), (3, 0)])
def test_gaussian_blocks_do_not_show(rows: int, n: int) -> None:
    keys = fold_each(RUN, "client", range(rows))
    found = gaussian(keys, n)
    assert found.shape == (rows, n)
    for row in {0, rows - 1} if rows else ():
        assert torch.equal(found[row], gaussian(keys[row], n))


@steady
@given(groups, st.integers(0, 3000), st.data())
def test_permutations_and_choices_of_rows(keys: list[Key], n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    assert np.array_equal(permutation(Keys(keys), n), np.stack([permutation(each, n) for each in keys]))
    assert np.array_equal(choice(Keys(keys), n, k), np.stack([choice(each, n, k) for each in keys]))


def test_secure_rows_are_drawn_apart() -> None:
    keys = Keys([RUN, RUN])
    drawn, normals = words_of(keys, 40, True), gaussian(keys, 40, secure=True)
    assert drawn.shape == normals.shape == (2, 40)
    assert len(drawn.unique()) == len(normals.unique()) == 80


# Draws of a step


@steady
@given(groups, lengths, st.data())
def test_rows_of_a_step(keys: list[Key], n: int, data: st.DataObject) -> None:
    each = [data.draw(st.integers(0, 2**40)) for _ in keys]
    layer, evaluation = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 2))
    rows, steps = tensor(Keys(keys)), torch.tensor(each)
    wanted = torch.stack(
        [draws(tensor(k), torch.tensor(at), n, layer, evaluation) for k, at in zip(keys, each, strict=True)]
    )
    assert torch.equal(draws(rows, steps, n, layer, evaluation), wanted)
    assert torch.equal(torch.vmap(lambda k, at: draws(k, at, n, layer, evaluation))(rows, steps), wanted)
    assert torch.equal(
        torch.vmap(lambda k, at: draws(k, at, n, layer, evaluation), (1, 0))(rows.T.contiguous(), steps), wanted
    )
    same = torch.stack([draws(tensor(k), steps[0], n) for k in keys])
    assert torch.equal(draws(rows, steps[0], n), same)
    assert torch.equal(draws(rows, steps[:1], n), same)
    assert torch.equal(torch.vmap(lambda k: draws(k, steps[0], n))(rows), same)
    other = torch.stack([draws(rows[0], at, n) for at in steps])
    assert torch.equal(torch.vmap(lambda at: draws(rows[0], at, n))(steps), other)


def test_draws_within_a_gradient() -> None:
    """Keys and steps are then plain tensors, from outside, but new tensors are not."""
    rows, step = tensor(fold_each(RUN, "client", range(3))), torch.tensor(4)
    for keys in (rows[0], rows):
        found = torch.func.grad(lambda x, keys=keys: (x * draws(keys, step, 5)).sum())(torch.ones(5))
        assert torch.allclose(found, draws(keys, step, 5).view(-1, 5).sum(0))


def test_stacked_clients_may_have_rows_of_their_own() -> None:
    keys = torch.stack([tensor(fold_each(RUN, c, range(3))) for c in range(2)])  # [2, 3, 2]
    steps = torch.tensor([5, 9])
    wanted = torch.stack([torch.stack([draws(k, at, 11) for k in row]) for row, at in zip(keys, steps, strict=True)])
    assert torch.equal(torch.vmap(lambda k, at: draws(k, at, 11))(keys, steps), wanted)
    assert torch.equal(torch.vmap(lambda k, at: torch.vmap(lambda one: draws(one, at, 11))(k))(keys, steps), wanted)
    assert torch.equal(draws(keys, steps[:, None].expand(2, 3), 11), wanted)


def test_stacked_draws_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Mock(wraps=gossamer.core.random.streams._raw_at)
    monkeypatch.setattr(gossamer.core.random.streams, "_raw_at", real)
    torch.vmap(lambda k: draw_bits(k, torch.tensor(3), 9))(tensor(fold_each(RUN, "client", range(50))))
    assert real.call_count == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_rows_of_a_step(dtype: torch.dtype) -> None:
    rows, step = tensor(fold_each(RUN, "client", range(4))), torch.tensor(3)
    for n in (0, 1, 6, 1001):
        assert torch.equal(normal(rows, step, n, dtype), torch.stack([normal(k, step, n, dtype) for k in rows]))
    like = {"b": torch.empty(3, 5, dtype=dtype), "a": torch.empty(7, dtype=dtype), "none": torch.empty(0, dtype=dtype)}
    found, single = draws_like(rows, step, like), [draws_like(k, step, like) for k in rows]
    for name in like:
        assert torch.equal(found[name], torch.stack([each[name] for each in single]))


@pytest.mark.parametrize("kind", DIRECTION_KINDS)
@steady
@given(st.integers(1, 4), st.integers(0, 300), st.sampled_from([torch.float32, torch.float64]))
def test_directions_of_rows(kind: DirectionKind, rows: int, n: int, dtype: torch.dtype) -> None:
    keys = tensor(fold_each(RUN, "client", range(rows)))
    numbers, pieces = torch.arange(rows) * 11 + 20, [(3, n), (1, 5)]
    for number in (30, torch.tensor(30), torch.tensor([30])):
        wanted = torch.stack([direction(kind, k, number, n, 2) for k in keys])
        assert torch.equal(direction(kind, keys, number, n, 2), wanted)
    wanted = torch.stack([direction(kind, k, at, n, 2) for k, at in zip(keys, numbers, strict=True)])
    assert torch.equal(direction(kind, keys, numbers, n, 2), wanted)

    x = uniform(fold_each(RUN, "x", range(rows)), n, dtype=dtype) - 0.5
    for count in (0, 3):
        found = project(kind, keys, x, count, 3)
        assert torch.equal(
            found, torch.stack([project(kind, k, row, count, 3) for k, row in zip(keys, x, strict=True)])
        )
    coefficients = uniform(fold_each(RUN, "c", range(rows)), 26, dtype=dtype) - 0.5
    coefficients = coefficients * (uniform(fold_each(RUN, "used", range(rows)), 26) < 0.4)
    each = [combine(kind, k, row, pieces) for k, row in zip(keys, coefficients, strict=True)]
    for found, single in zip(combine(kind, keys, coefficients, pieces), zip(*each, strict=True), strict=True):
        assert same_bits(found, torch.stack(single))


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) and torch.equal(one.signbit(), other.signbit())


# Keys


def test_keys_are_a_sequence_of_keys() -> None:
    keys = Keys([key(1), key(2), key(3)])
    assert (len(keys), keys[1], keys[-1], list(keys)) == (3, key(2), key(3), [key(1), key(2), key(3)])
    assert keys[1:] == Keys([key(2), key(3)]) != keys
    assert hash(keys[:]) == hash(keys)
    assert repr(keys[:1]) == f"Keys([{key(1)}])"
    folded = fold(keys, "noise")
    assert pickle.loads(pickle.dumps(folded)) == folded
    assert tensor(folded).tolist() == [tensor(k).tolist() for k in folded]
    assert tensor(Keys([])).shape == (0, 2)


labels = st.one_of(st.text(max_size=8), st.integers())


@steady
@given(groups, st.lists(labels, max_size=3), st.data())
def test_each_row_is_folded_like_its_key(keys: list[Key], some: list[str | int], data: st.DataObject) -> None:
    own = data.draw(st.lists(labels, min_size=len(keys), max_size=len(keys)))
    rows = fold(fold_each(fold(Keys(keys), *some), "client", own), "end")
    assert list(rows) == [fold(k, *some, "client", value, "end") for k, value in zip(keys, own, strict=True)]
    assert list(rows[1:]) == list(rows)[1:]
    assert list(fold_each(keys[0], "client", own)) == [fold(keys[0], "client", value) for value in own]


def test_nothing_is_folded_before_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Mock(wraps=gossamer.core.random.keys._folded)
    monkeypatch.setattr(gossamer.core.random.keys, "_folded", real)
    keys = fold_each(Keys([RUN] * 9), "client", range(9))[2:]
    rows = fold(keys, "noise", 3)
    assert (len(rows), real.call_count) == (7, 0)
    uniform(rows, 3)
    once = real.call_count
    uniform(rows, 5)
    assert real.call_count == once > 0


def test_labels_are_checked_at_once() -> None:
    with pytest.raises(ConfigError, match="a label must be a string or an integer"):
        fold(Keys([RUN]), 1.0)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="fold_each: 2 keys need a value each, got 3"):
        fold_each(Keys([RUN, RUN]), "client", range(3))


def test_rows_may_be_rings() -> None:
    ring = KeyRing({("client", 1): fold(RUN, "client", 1)})
    assert list(fold_each(ring, "client", [1])) == [fold(RUN, "client", 1)]
    with pytest.raises(PayloadError, match="was not given the key of client/2"):
        words(fold_each(ring, "client", [1, 2]), 3)


def test_examples_hold() -> None:
    for module in (gossamer.core.random.keys, gossamer.core.random.streams):
        result = doctest.testmod(module)
        assert (result.attempted > 2, result.failed) == (True, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("start", [0, 1, 2**40 + 3])
@pytest.mark.parametrize("n", [0, 1, 5, 1024, 10_003])
def test_a_gpu_gives_the_same_rows(n: int, start: int) -> None:
    keys, steps = fold_each(RUN, "gpu", range(5)), torch.arange(5) * 2**33
    for draw in FROM_KEYS.values():
        assert torch.equal(draw(keys, n, start=start, device="cuda").cpu(), draw(keys, n, start=start))
    found = draws(tensor(keys, "cuda"), steps.cuda(), n, 2, 1)
    assert torch.equal(found.cpu(), draws(tensor(keys), steps, n, 2, 1))
