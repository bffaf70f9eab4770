"""Sums, norms and logarithms: close to the true value, and the same bits on any device and in any batch."""

import doctest
import math
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer.core.exact
from gossamer.core.exact import log, norm, root, shift, total, unit
from gossamer.core.random import fold, key, uniform

DTYPES = (torch.float32, torch.float64)
SIZES = (0, 1, 2, 3, 5, 8, 100, 1001, 4096, 65_537)
steady = settings(deadline=None, derandomize=True)
floats = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=70)


def noise(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return uniform(fold(key(4), n), n, dtype=dtype) - 0.5


def slow_total(values: list[float]) -> float:
    """The order from its description, on float64: halves together, an odd one waits."""
    if len(values) < 2:
        return sum(values)
    half = len(values) // 2
    pairs = [a + b for a, b in zip(values[:half], values[half : 2 * half], strict=True)]
    return slow_total(pairs + values[2 * half :])


def test_examples_hold() -> None:
    assert doctest.testmod(gossamer.core.exact).failed == 0


@pytest.mark.parametrize("n", SIZES)
def test_total_adds_in_the_order_written_down(n: int) -> None:
    x = noise(n, torch.float64)
    assert total(x).item() == slow_total(x.tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_total_is_within_the_bound_of_pairwise_sums(n: int, dtype: torch.dtype) -> None:
    values = noise(n, dtype).double().tolist()
    bound = math.ceil(math.log2(max(n, 2))) * torch.finfo(dtype).eps * math.fsum(map(abs, values))
    assert abs(total(noise(n, dtype)).item() - math.fsum(values)) <= bound


@pytest.mark.parametrize("function", [total, norm])
@pytest.mark.parametrize("n", [0, 1, 7, 100])
def test_a_row_does_not_depend_on_other_rows(function: object, n: int) -> None:
    assert callable(function)
    x = noise(12 * n).view(3, 4, n)
    found = function(x)
    assert found.shape == (3, 4)
    for i in range(3):
        for j in range(4):
            assert torch.equal(function(x[i, j].clone()), found[i, j])
    assert torch.equal(function(x.transpose(0, 1)), found.T)


@steady
@given(floats)
def test_norm_is_near_the_true_one_whatever_the_magnitudes(values: list[float]) -> None:
    true = math.hypot(*values)
    found = norm(torch.tensor(values)).item()
    largest = torch.finfo(torch.float32).max
    if true > largest * (1 - 1e-5):
        assert found > largest * (1 - 1e-5)
    else:
        assert math.isclose(found, true, rel_tol=1e-6, abs_tol=2**-149)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_neither_overflows_nor_underflows(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    for scale in (info.smallest_normal, 0.5 / info.smallest_normal):
        x = torch.tensor([3.0, -4.0], dtype=dtype) * scale
        assert norm(x).item() == 5 * scale
    assert norm(torch.zeros(2, 3, dtype=dtype)).tolist() == [0, 0]
    least = torch.tensor([info.smallest_normal * info.eps], dtype=dtype)
    assert norm(-least).item() == least.item() > 0


@steady
@given(floats)
def test_unit_is_undone_by_shift(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    y, exponent = unit(x)
    assert torch.equal(shift(y, exponent), x)
    assert not x.any() or 0.5 <= y.abs().max() < 1


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 126), (torch.float64, 1022)])
def test_shift_is_exact(dtype: torch.dtype, limit: int) -> None:
    exponents = torch.arange(-limit, limit + 1)
    wanted = [math.ldexp(1.0, e) for e in exponents.tolist()]
    assert shift(torch.ones(1, dtype=dtype), exponents).tolist() == wanted


@pytest.mark.parametrize("dtype", DTYPES)
def test_unit_of_the_ends_of_the_range_can_be_squared(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    for value in (info.max, info.smallest_normal * info.eps):
        y, exponent = unit(torch.tensor([value, 0.0], dtype=dtype))
        assert info.eps <= y[0] < 4
        assert shift(y, exponent)[0].item() == value


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_a_gpu_gives_the_same_bits(n: int, dtype: torch.dtype) -> None:
    for scale in (1.0, 1e-40, 1e30):
        x = noise(3 * n, dtype).view(3, n) * scale
        for function in (total, norm):
            assert torch.equal(function(x.cuda()).cpu(), function(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_square_root_is_the_nearest_float(dtype: torch.dtype) -> None:
    x = noise(2000, dtype).abs() + 1e-3
    with localcontext() as context:
        context.prec = 60
        wanted = [float(Decimal(value).sqrt()) for value in x.tolist()]
    found = root(x)
    # A float64 nearest to the root is rounded once more for float32, which differs only half way between two numbers.
    assert torch.equal(found, torch.tensor(wanted, dtype=torch.float64).to(dtype))
    assert root(torch.tensor(4.0, dtype=dtype)).item() == 2.0


@steady
@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=50))
def test_logarithms_are_those_of_the_standard_library(values: list[float]) -> None:
    found = log(torch.tensor(values, dtype=torch.float64)).tolist()
    assert found == pytest.approx([math.log(value) for value in values], rel=4e-16, abs=4e-16)
