"""Parse quantities: numbers, or text with a unit."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import ClassVar

from gossamer.core.availability import SECOND
from gossamer.core.errors import require, wrong
from gossamer.core.fields import CheckedFields
from gossamer.core.specs import pieces

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
RATES: Units = {f"{prefix}bit/s": power for prefix, power in PREFIXES.items()}
DURATIONS: Units = {
    **{"ns": Decimal("1e-9"), "us": Decimal("1e-6"), "ms": Decimal("1e-3")},
    **{"s": 1, "min": 60, "h": 3600, "d": 86400},
}

# Logarithmic units: the value at 0.
DECIBELS: Units = {"dB": 1}
LEVELS: Units = {"dBm": Decimal("1e-3"), "dBW": 1}
DENSITY_LEVELS: Units = {f"{unit}/Hz": power for unit, power in LEVELS.items()}

NONE: Units = MappingProxyType({})

HOUR, DAY = 3600 * SECOND, 86400 * SECOND

NUMBER = r"[-+]?[.\d]+(?:[eE][-+]?\d+)?"


@dataclass(frozen=True)
class Duration:
    """A positive length of time, in whole nanoseconds.

    Args:
        nanoseconds: the length
    """

    nanoseconds: int
    takes: ClassVar[str] = "TIME"

    def __post_init__(self) -> None:
        require((0 < self.nanoseconds < 2**62, wrong(self, "nanoseconds", "must be positive, and below 146 years")))

    @classmethod
    def of_text(cls, text: str) -> "Duration":
        """Parse a time with a unit; a number without a unit is in seconds.

        >>> Duration.of_text("1.5min"), Duration.of_text("60")
        (Duration('90s'), Duration('1min'))
        """
        try:
            nanoseconds = _quantity(text, DURATIONS) * 10**9
            if not 0 < nanoseconds < 2**62 or nanoseconds != int(nanoseconds):
                raise ValueError
        except ValueError:
            raise ValueError("a positive time such as 60s, 5min or 2h") from None
        return cls(int(nanoseconds))

    def to_text(self) -> str:
        """Return the time as text that ``of_text`` reads.

        >>> Duration.of_text("2h").to_text(), Duration.of_text("0.5s").to_text()
        ('2h', '500ms')
        """
        units = sorted(DURATIONS.items(), key=lambda unit: -unit[1])
        sizes = ((name, int(size * 10**9)) for name, size in units)
        return next(f"{self.nanoseconds // size}{name}" for name, size in sizes if self.nanoseconds % size == 0)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"Duration({self.to_text()!r})"

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return self.nanoseconds / 1e9


@dataclass(frozen=True)
class TimeOfDay(CheckedFields):
    """A time of the day.

    Args:
        nanoseconds: nanoseconds after midnight
    """

    nanoseconds: int

    def __post_init__(self) -> None:
        require((0 <= self.nanoseconds < DAY, wrong(self, "nanoseconds", "must be at least 0 and below one day")))

    @classmethod
    def of_text(cls, text: str) -> "TimeOfDay":
        """Parse a time of the day.

        >>> TimeOfDay.of_text("22h") == TimeOfDay.of_text("22:00"), TimeOfDay.of_text("6:30").to_text()
        (True, '390min')
        """
        clock = re.fullmatch(r"(\d{1,2}):(\d{2})", text)
        try:
            seconds = 3600 * int(clock[1]) + 60 * int(clock[2]) if clock else read_seconds(text, zero=True)
            return cls(round(seconds * SECOND))
        except ValueError:
            raise ValueError("a time of the day such as 22h or 6:30") from None

    def to_text(self) -> str:
        """Return text that ``of_text`` reads."""
        return str(Duration(self.nanoseconds)) if self.nanoseconds else "0h"

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"TimeOfDay({self.to_text()!r})"


@dataclass(frozen=True)
class Zones(CheckedFields):
    """Time zones.

    Args:
        hours: hours ahead of UTC; negative ones are behind
    """

    hours: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        fine = len(self.hours) > 0 and all(-14 <= hour <= 14 for hour in self.hours)
        require((fine, wrong(self, "hours", "must be from -14 to 14, at least one")))

    @classmethod
    def of_text(cls, text: str) -> "Zones":
        """Parse hours ahead of UTC, joined by ``+``.

        >>> Zones.of_text("UTC+2").hours, Zones.of_text("-5+0+1+5.5").hours
        ((2.0,), (-5.0, 0.0, 1.0, 5.5))
        """
        try:
            hours = tuple(map(float, pieces(text.removeprefix("UTC") or "0")))
        except ValueError:
            raise ValueError("a time zone such as UTC+2, or hours ahead of UTC such as -5+0+1+8") from None
        return cls(hours)

    def to_text(self) -> str:
        """Return text that ``of_text`` reads."""
        return "+".join(f"{hour:g}" for hour in self.hours)


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


def read_rate(value: object, zero: bool = False) -> float:
    """Parse bits per second from a number or text with a unit.

    >>> read_rate(1e6), read_rate("100 kbit/s")
    (1000000.0, 100000.0)
    """
    return _number(value, RATES, zero=zero)


def read_seconds(value: object, zero: bool = False) -> float:
    """Parse seconds from a number or text with a unit.

    >>> read_seconds("50 ms"), read_seconds(2)
    (0.05, 2.0)
    """
    return _number(value, DURATIONS, zero=zero)


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


def with_unit(value: float, units: Units) -> float | str:
    """Return a quantity as text with a unit, or as a number if the text would not be read as the same value.

    >>> with_unit(8.31e9, SPEEDS), with_unit(0.05, DURATIONS), with_unit(4 * 2**20, SIZES), with_unit(0.0, POWERS)
    ('8.31 GFLOPS', '50 ms', '4 MiB', 0.0)
    """
    fitting = (unit for unit, size in units.items() if 0 < size <= value)
    texts = [text for unit in fitting if (text := _in_unit(value, unit, units))]
    return min(texts, key=lambda text: (len(text), -units[text.split()[1]]), default=value)


def range_with_unit(low: float, high: float, units: Units) -> str:
    """Return a range as text, with the unit of its end.

    >>> range_with_unit(2e5, 1e6, RATES)
    '0.2..1 Mbit/s'
    """
    end = with_unit(high, units)
    start = _in_unit(low, end.split()[1], units) if isinstance(end, str) else ""
    return f"{start.split()[0]}..{end}" if start else f"{low!r}..{high!r}"


def _in_unit(value: float, unit: str, units: Units) -> str:
    """Return a quantity in a unit, or nothing if it would not be read as the same value."""
    text = f"{(Decimal(repr(value)) / units[unit]).normalize():f} {unit}"
    return text if float(_quantity(text, units)) == value else ""


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
