"""Sizes and speeds as people write them: numbers, or texts with a unit."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal

PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SIZES = {
    **{f"{prefix}B": power for prefix, power in PREFIXES.items()},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
}
SPEEDS = {f"{prefix}FLOPS": power for prefix, power in PREFIXES.items()}


def read_size(value: object) -> int:
    """Bytes, from a number or from a text with a unit; ``ValueError`` if that is not a whole number from 1.

    >>> read_size(64e6), read_size("64 MB"), read_size("2GiB")
    (64000000, 64000000, 2147483648)
    """
    size = _quantity(value, SIZES)
    if not 1 <= size < 2**63 or size != int(size):
        raise ValueError("out of range, or a part of a byte")
    return int(size)


def read_speed(value: object) -> float:
    """Operations a second, from a number or from a text with a unit; ``ValueError`` if that is not positive.

    >>> read_speed(2e9), read_speed("2.5 GFLOPS")
    (2000000000.0, 2500000000.0)
    """
    speed = float(_quantity(value, SPEEDS))
    if not 0 < speed < math.inf:
        raise ValueError("out of range")
    return speed


def _quantity(value: object, units: Mapping[str, int]) -> Decimal:
    """A number exactly as it is written, times its unit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("neither a number nor a text")
    written = re.fullmatch(r"([-+.\de]+) *([A-Za-z]*)", str(value).strip())
    if written is None or (written[2] and written[2] not in units):
        raise ValueError("not a number with a unit")
    try:
        return Decimal(written[1]) * units.get(written[2], 1)
    except ArithmeticError:
        raise ValueError("not a number, or too large a one") from None
