"""How fast and how safe a radio link is, in closed form.

A device sends with power p over d metres, in a band of B hertz with noise and interference. What arrives is c = p /
(d^2 (interference + noise)) times as strong as what disturbs it, and times a gain that fading draws anew for each
packet. The link's rate is B E log2(1 + c gain), bits a second; a packet is lost with probability E[1 - exp(-a / gain)],
where a is the threshold over c.

Fading, by name:
- power: Rayleigh fading, the gain is its power, exponential with mean 1. The rate then is (B / ln 2) e^(1/c) E1(1/c),
  and the outage 1 - 2 sqrt(a) K1(2 sqrt(a)), with the exponential integral E1 and the Bessel function K1.
- amplitude: the gain is Rayleigh itself, of which the square has the mean 1. No closed form: the trapezoidal rule.
- none: the gain is 1.

All functions keep their digits from very weak to very strong links: where a formula would cancel or overflow, its
series is summed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import require, wrong

Fading = Literal["power", "amplitude", "none"]
Array = npt.NDArray[np.float64]

FADINGS: tuple[Fading, ...] = ("power", "amplitude", "none")

FAR = 50.0
"""From here on the first terms of its asymptotic series are all digits of e^x E1(x)."""
NEAR = 0.25
"""Below, an outage is summed as a series: 1 - 2 sqrt(a) K1(2 sqrt(a)) would cancel."""
TERMS = 24
EULER = 0.5772156649015329

STEP, TOP, REACH = 0.125, 2.0, 40.0
"""The trapezoidal rule over the logarithm of the gain: its step, where it ends, and how far below 0 it begins.

Its error falls as e^(-5 / step), and what lies outside is below e^-40 of the whole.
"""


@dataclass(frozen=True)
class Density:
    """Noise that is the same in every hertz of a band.

    Args:
        watts: in one hertz
    """

    watts: float

    def __post_init__(self) -> None:
        require((0 < self.watts < math.inf, wrong(self, "watts", "must be a positive number")))

    def __str__(self) -> str:
        return f"{self.watts!r} W/Hz"


@dataclass(frozen=True)
class Link:
    """From one device to the server.

    Args:
        power: what the device sends with, in watts
        distance: how far it sends, in metres
        bandwidth: of its own band, in hertz
        noise: in the whole band, in watts; or its density
        interference: in the whole band, in watts
        threshold: the ratio that a packet needs; the larger it is, the more are lost, and with 0 none is
        fading: what the gain is: power, amplitude or none
        exponent: power falls with the distance to this power
    """

    power: float
    distance: float
    bandwidth: float = 1e6
    noise: float | Density = 1e-14
    interference: float = 0.0
    threshold: float = 1.08
    fading: Fading = "power"
    exponent: float = 2.0

    def __post_init__(self) -> None:
        noise = self.noise.watts if isinstance(self.noise, Density) else self.noise
        positive = ("power", "distance", "bandwidth", "exponent")
        more = {"noise": noise} | {name: getattr(self, name) for name in positive}
        least = {name: getattr(self, name) for name in ("interference", "threshold")}
        require(
            *((0 < x < math.inf, f"Link.{name} must be a positive number, got {x}") for name, x in more.items()),
            *((0 <= x < math.inf, f"Link.{name} must not be negative, got {x}") for name, x in least.items()),
            (self.fading in FADINGS, wrong(self, "fading", "must be power, amplitude or none")),
        )
        fall = self.exponent * math.log10(self.distance)
        level = math.log10(self.power) - fall - math.log10(self.disturbance)
        told = f"Link: what arrives cannot be 1e{level:.0f} times as strong as what disturbs it"
        require((max(abs(fall), abs(level)) < 300, told))

    @property
    def disturbance(self) -> float:
        """Noise and interference in the band, in watts."""
        noise = self.noise.watts * self.bandwidth if isinstance(self.noise, Density) else self.noise
        return self.interference + noise

    @property
    def snr(self) -> float:
        """How much stronger the signal arrives than what disturbs it, where the gain is 1."""
        return float(self.power / self.distance**self.exponent / self.disturbance)


def rate(link: Link) -> float:
    """Bits a second that the link carries."""
    return link.bandwidth * float(efficiency(link.snr, link.fading))


def outage(link: Link) -> float:
    """The probability that a packet is lost."""
    return float(losses(link.threshold / link.snr, link.fading))


def efficiency(snr: npt.ArrayLike, fading: Fading = "power") -> Array:
    """Bits a second and hertz, E log2(1 + snr gain), entry by entry.

    >>> efficiency([0.0, 1.0, 1e9]).round(4)
    array([ 0.    ,  0.8603, 29.0646])
    """
    ratios = np.asarray(snr, dtype=np.float64)
    return np.asarray(_RATES[fading](ratios) / math.log(2))


def losses(ratio: npt.ArrayLike, fading: Fading = "power") -> Array:
    """The outage probability E[1 - exp(-ratio / gain)], of the threshold over the snr, entry by entry.

    >>> losses([0.0, 0.3375, 1e9]).round(4)
    array([0.    , 0.4638, 1.    ])
    """
    ratios = np.asarray(ratio, dtype=np.float64)
    return np.asarray(np.clip(_LOSSES[fading](ratios), 0.0, 1.0))


def _special() -> Any:
    return import_module("scipy.special")  # here, so that the core needs torch and numpy alone


def _power_rate(c: Array) -> Array:
    """e^x E1(x) for x = 1 / c; far out, 1/x (1 - 1/x (1 - 2/x (1 - 3/x ...)))."""
    with np.errstate(divide="ignore"):
        x = 1 / c
    close = np.minimum(x, FAR)
    series = np.ones_like(x)
    for term in range(TERMS, 0, -1):
        series = 1 - term / np.maximum(x, FAR) * series
    return np.where(x < FAR, np.exp(close) * _special().exp1(close), series * np.minimum(c, 1 / FAR))


def _power_loss(a: Array) -> Array:
    """1 - z K1(z) for z = 2 sqrt(a); close to 0 the series of K1, without the 1 that cancels."""
    z = 2 * np.sqrt(np.maximum(a, NEAR))
    with np.errstate(invalid="ignore"):
        plain = 1 - np.where(np.isfinite(z), z * _special().k1(z), 0.0)
    small = np.minimum(a, NEAR)
    with np.errstate(divide="ignore"):
        log = np.log(np.where(small > 0, small, 1.0))
    # The k-th term is a^(k+1) / (k! (k+1)!) (psi(k+1) + psi(k+2) - ln a).
    factor, digamma, total = small, -EULER, np.zeros_like(small)
    for k in range(TERMS // 2):
        total = total + factor * (2 * digamma + 1 / (k + 1) - log)
        factor = factor * small / ((k + 1) * (k + 2))
        digamma += 1 / (k + 1)
    return np.where(a < NEAR, total, plain)


def _amplitude_rate(c: Array) -> Array:
    """The integral of c / (1 + c x) e^(-x^2) over the gain x, by parts from that of log(1 + c x)."""
    largest = max(1.0, float(np.max(c, initial=1.0)))
    gain = _gains(REACH + math.log(largest))
    product = c[..., None] * gain
    return _summed(product / (1 + product) * np.exp(-(gain**2)))


def _amplitude_loss(a: Array) -> Array:
    gain = _gains(REACH)
    with np.errstate(over="ignore"):
        lost = -np.expm1(-a[..., None] / gain)
    return _summed(2 * gain**2 * np.exp(-(gain**2)) * lost)


def _gains(reach: float) -> Array:
    """Places of the trapezoidal rule: gains, evenly spaced in their logarithm."""
    return np.asarray(np.exp(TOP - STEP * np.arange(math.ceil((TOP + reach) / STEP) + 1)))


def _summed(values: Array) -> Array:
    return np.asarray(STEP * values.sum(axis=-1))


_RATES: dict[Fading, Callable[[Array], Array]] = {
    "power": _power_rate,
    "amplitude": _amplitude_rate,
    "none": np.log1p,
}
_LOSSES: dict[Fading, Callable[[Array], Array]] = {
    "power": _power_loss,
    "amplitude": _amplitude_loss,
    "none": lambda a: -np.expm1(-a),
}
