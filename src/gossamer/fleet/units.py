"""Parse quantities: numbers, or text with a unit."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType

Units = Mapping[str, int | Decimal]

PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SMALL = {"m": "1e-3", "u": "1e-6", "µ": "1e-6", "n": "1e-9", "p": "1e-12", "f": "1e-15"}

SIZES: Units = {
    **{f"{prefix}B": power for prefix, power in PREFIXES.items()},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
}
SPEEDS: Units = {f"{prefix}FLOPS": power for prefix, power in PREFIXES.items()}
POWERS: Units = {f"{prefix}W": Decimal(power) for prefix, power in (PREFIXES | SMALL).items()}
DENSITIES: Units = {f"{unit}/Hz": power for unit, power in POWERS.items()}
FREQUENCIES: Units = {f"{prefix}Hz": power for prefix, power in PREFIXES.items()}
LENGTHS: Units = {"m": 1, "km": 1000}

# Logarithmic units: the value at 0.
DECIBELS: Units = {"dB": 1}
LEVELS: Units = {"dBm": Decimal("1e-3"), "dBW": 1}
DENSITY_LEVELS: Units = {f"{unit}/Hz": power for unit, power in LEVELS.items()}

NONE: Units = MappingProxyType({})

NUMBER = r"[-+]?[.\d]+(?:[eE][-+]?\d+)?"


def read_size(value: object) -> int:
    """Parse bytes from a number or text with a unit; raise ``ValueError`` if it is not an integer of at least 1.

    >>> read_size(64e6), read_size("64 MB"), read_size("2GiB")
    (64000000, 64000000, 2147483648)
    """
    size = _quantity(value, SIZES)
    if not 1 <= size < 2**63 or size != int(size):
        raise ValueError("out of range, or not an integer")
    return int(size)


def read_speed(value: object) -> float:
    """Parse operations per second from a number or text with a unit; raise ``ValueError`` if it is not positive.

    >>> read_speed(2e9), read_speed("2.5 GFLOPS")
    (2000000000.0, 2500000000.0)
    """
    return _number(value, SPEEDS)


def read_power(value: object, zero: bool = False) -> float:
    """Parse watts from a number or text with a unit; raise ``ValueError`` if not positive (or 0, with ``zero``).

    >>> read_power(0.01), read_power("10 mW"), read_power("10 dBm")
    (0.01, 0.01, 0.01)
    """
    return _number(value, POWERS, LEVELS, zero)


def read_density(value: object) -> float:
    """Parse watts per hertz from text with a unit; a number without a unit would be power.

    >>> read_density("4e-21 W/Hz"), read_density("-170 dBm/Hz")
    (4e-21, 1e-20)
    """
    if not str(value).endswith("/Hz"):
        raise ValueError("not a density")
    return _number(value, DENSITIES, DENSITY_LEVELS)


def read_frequency(value: object, zero: bool = False) -> float:
    """Parse hertz from a number or text with a unit.

    >>> read_frequency("2.5 MHz")
    2500000.0
    """
    return _number(value, FREQUENCIES, zero=zero)


def read_length(value: object, zero: bool = False) -> float:
    """Parse metres from a number or text with a unit.

    >>> read_length("0.5 km")
    500.0
    """
    return _number(value, LENGTHS, zero=zero)


def read_ratio(value: object, zero: bool = False) -> float:
    """Parse a ratio from a number or text in decibels.

    >>> read_ratio(1.08), read_ratio("20 dB")
    (1.08, 100.0)
    """
    return _number(value, NONE, DECIBELS, zero)


def split_range(value: object) -> tuple[str, str] | None:
    """Split a range into its ends, the first with the unit of the last if it has none; ``None`` if it is no range.

    >>> split_range("10..20 mW"), split_range("500 m")
    (('10 mW', '20 mW'), None)
    """
    if not isinstance(value, str) or ".." not in value:
        return None
    low, _, high = value.partition("..")
    bare = re.fullmatch(NUMBER, low.strip())
    return (f"{bare[0]} {_written(high)[1]}".strip() if bare else low.strip()), high.strip()


def _number(value: object, units: Units, levels: Units = NONE, zero: bool = False) -> float:
    number = float(_quantity(value, units, levels))
    if not (0 < number < math.inf or (zero and number == 0)):
        raise ValueError("out of range")
    return number


def _quantity(value: object, units: Units, levels: Units = NONE) -> Decimal:
    """Return the exact decimal number times its unit; for a level, 10 to the power of a tenth of it."""
    number, unit = _written(value)
    if unit and unit not in units and unit not in levels:
        raise ValueError("not a unit of this")
    try:
        if unit in levels:
            return Decimal(10) ** (Decimal(number) / 10) * levels[unit]
        return Decimal(number) * units.get(unit, 1)
    except ArithmeticError:
        raise ValueError("not a number, or too large a one") from None


def _written(value: object) -> tuple[str, str]:
    """Split a value into number and unit, as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("neither a number nor a text")
    written = re.fullmatch(rf"({NUMBER}) *([A-Za-zµ/]*)", str(value).strip())
    if written is None:
        raise ValueError("not a number with a unit")
    return written[1], written[2]
