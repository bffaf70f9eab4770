"""Rate and outage probability of a radio link, in closed form.

A device sends with power p over d metres, in a band of B hertz with noise and interference. The signal-to-noise ratio
is c = p / (d^2 (interference + noise)) times a gain that fading draws for each packet. The rate of the link is
B E log2(1 + c gain) bits per second. A packet is lost with probability E[1 - exp(-a / gain)], where a is the threshold
divided by c.

Fading, by name:
- power: Rayleigh fading; the gain is its power, exponential with mean 1. The rate is (B / ln 2) e^(1/c) E1(1/c), and
  the outage 1 - 2 sqrt(a) K1(2 sqrt(a)), with the exponential integral E1 and the Bessel function K1.
- amplitude: the gain is Rayleigh distributed, and its square has mean 1. There is no closed form; the trapezoidal rule
  computes the integrals.
- none: the gain is 1.

All functions are accurate from very weak to very strong links: where a formula would cancel or overflow, its series is
used.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import require, wrong
from gossamer.core.extras import need

Fading = Literal["power", "amplitude", "none"]
Array = npt.NDArray[np.float64]

FADINGS: tuple[Fading, ...] = ("power", "amplitude", "none")

FAR = 50.0
"""Above this x, the first terms of the asymptotic series give all digits of e^x E1(x)."""
NEAR = 0.25
"""Below this a, the outage is a series, because 1 - 2 sqrt(a) K1(2 sqrt(a)) would cancel."""
TERMS = 24
EULER = 0.5772156649015329

STEP, TOP, REACH = 0.125, 2.0, 40.0
"""The trapezoidal rule over the logarithm of the gain: its step, its upper end, and its reach below 0.

The error decreases as e^(-5 / step); the tails are below e^-40 of the total.
"""


@dataclass(frozen=True)
class Density:
    """White noise: the same power in every hertz of a band.

    Args:
        watts: power per hertz
    """

    watts: float

    def __post_init__(self) -> None:
        require((0 < self.watts < math.inf, wrong(self, "watts", "must be a positive number")))

    def __str__(self) -> str:
        return f"{self.watts!r} W/Hz"


@dataclass(frozen=True)
class Link:
    """The uplink from one device to the server.

    Args:
        power: transmit power in watts
        distance: distance to the server in metres
        bandwidth: bandwidth in hertz
        noise: noise power in the whole band in watts, or noise density
        interference: interference power in the whole band in watts
        threshold: signal-to-noise ratio that a packet needs; with 0 no packet is lost
        fading: distribution of the gain: power, amplitude or none
        exponent: path loss exponent
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
        not_negative = {name: getattr(self, name) for name in ("interference", "threshold")}
        require(
            *((0 < x < math.inf, f"Link.{name} must be a positive number, got {x}") for name, x in more.items()),
            *((0 <= x < math.inf, f"Link.{name} must not be negative, got {x}") for name, x in not_negative.items()),
            (self.fading in FADINGS, wrong(self, "fading", "must be power, amplitude or none")),
        )
        fall = self.exponent * math.log10(self.distance)
        level = math.log10(self.power) - fall - math.log10(self.disturbance)
        extreme = f"Link: the signal-to-noise ratio cannot be 1e{level:.0f}: check power, distance and noise"
        require((max(abs(fall), abs(level)) < 300, extreme))

    @property
    def disturbance(self) -> float:
        """Noise and interference in the band, in watts."""
        noise = self.noise.watts * self.bandwidth if isinstance(self.noise, Density) else self.noise
        return self.interference + noise

    @property
    def snr(self) -> float:
        """Signal-to-noise ratio (with interference) at a gain of 1."""
        return float(self.power / self.distance**self.exponent / self.disturbance)


def rate(link: Link) -> float:
    """Return the rate of the link in bits per second."""
    return link.bandwidth * float(efficiency(link.snr, link.fading))


def outage(link: Link) -> float:
    """Return the probability that a packet is lost."""
    return float(losses(link.threshold / link.snr, link.fading))


def efficiency(snr: npt.ArrayLike, fading: Fading = "power") -> Array:
    """Return the spectral efficiency E log2(1 + snr gain), in bits per second and hertz, elementwise.

    >>> efficiency([0.0, 1.0, 1e9]).round(4)
    array([ 0.    ,  0.8603, 29.0646])
    """
    ratios = np.asarray(snr, dtype=np.float64)
    return np.asarray(_RATES[fading](ratios) / math.log(2))


def losses(ratio: npt.ArrayLike, fading: Fading = "power") -> Array:
    """Return the outage probability E[1 - exp(-ratio / gain)], elementwise; ratio is threshold over snr.

    >>> losses([0.0, 0.3375, 1e9]).round(4)
    array([0.    , 0.4638, 1.    ])
    """
    ratios = np.asarray(ratio, dtype=np.float64)
    return np.asarray(np.clip(_LOSSES[fading](ratios), 0.0, 1.0))


def _special() -> Any:
    need("scipy")
    import scipy.special

    return scipy.special


def _power_rate(c: Array) -> Array:
    """Return e^x E1(x) for x = 1 / c; for large x the series 1/x (1 - 1/x (1 - 2/x (1 - 3/x ...)))."""
    with np.errstate(divide="ignore"):
        x = 1 / c
    close = np.minimum(x, FAR)
    series = np.ones_like(x)
    for term in range(TERMS, 0, -1):
        series = 1 - term / np.maximum(x, FAR) * series
    return np.where(x < FAR, np.exp(close) * _special().exp1(close), series * np.minimum(c, 1 / FAR))


def _power_loss(a: Array) -> Array:
    """Return 1 - z K1(z) for z = 2 sqrt(a); near 0 by the series of K1, without the 1 that cancels."""
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
    """Return the integral of c / (1 + c x) e^(-x^2) over the gain x, from that of log(1 + c x) by parts."""
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
    """Return the nodes of the trapezoidal rule: gains, evenly spaced in the logarithm."""
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
