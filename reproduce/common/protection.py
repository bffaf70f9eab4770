"""Methods with differential privacy or secure aggregation, for cells.

The noise of a cell is a number. It was calibrated for the cell's epsilon before, so that a cell runs on a machine
without the accountant; tests compare the numbers with it. Secure aggregation is ``ClearSums``: the same sums, without
masks.
"""

from dataclasses import replace
from importlib import import_module
from typing import Any, Literal, NamedTuple
from unittest import mock

from gossamer import Method, Result, Task, simulate
from gossamer.core.codec import Codec
from gossamer.methods.private import noise_of
from gossamer.methods.secure import secured
from gossamer.parts.codecs.distributed_noise import Skellam
from gossamer.parts.codecs.poisson_binomial import PoissonBinomial
from gossamer.parts.samplers.draws import Poisson, RoundRobin
from gossamer.parts.servers.mean import Mean
from gossamer.parts.servers.private import PrivateMean
from reproduce.common.clear_sums import ClearSums

Mode = Literal["central", "skellam", "bits", "sums"]


class Protection(NamedTuple):
    """How the updates of a cell are protected.

    Args:
        mode: central (noise at the server, Poisson sampling), skellam (noise of clients in sums), bits (random bits in
            sums, one per parameter) or sums (no noise); with noise of clients, they take turns
        clip: the largest norm of an update
        noise: the noise multiplier; with bits, theta
        epsilon: what the noise was calibrated for; none without noise
    """

    mode: Mode
    clip: float = 1.0
    noise: float = 0.0
    epsilon: float | None = None


def protected(method: Method, how: Protection, clients: int, per_round: int) -> Method:
    """Return a method with the protection of a cell."""
    if how.mode == "central":
        assert isinstance(method.server, Mean)
        mean = replace(method.server, weights="uniform")
        server = PrivateMean(mean, clip=how.clip, noise_multiplier=how.noise)
        return method.with_parts(server=server, sampler=Poisson(per_round / clients))
    codec = _codec(how, per_round)
    return secured(method.with_parts(codec=codec, sampler=RoundRobin()) if codec else method, ClearSums())


def _codec(how: Protection, per_round: int) -> Codec | None:
    """Return the codec that adds noise, if one does."""
    if how.mode == "skellam":
        return Skellam(clip=how.clip, noise_multiplier=how.noise, clients=per_round)
    return PoissonBinomial(clip=how.clip, theta=how.noise) if how.mode == "bits" else None


def simulate_private(method: Method, task: Task, **options: Any) -> Result:
    """Simulate a run. Without the accountant, its records state no epsilon: that of the cell is the one to use.

    Clipping without noise has no statement either, and would be refused for that.
    """
    if has_accountant() and noise_of(method) != 0:
        return simulate(method, task, **options)
    with mock.patch("gossamer.engines.kept_run.privacy_of", return_value=None):
        return simulate(method, task, **options)


def has_accountant() -> bool:
    """Return whether dp-accounting is installed, and not only a stand-in for it."""
    try:
        import_module("dp_accounting.gaussian_mechanism")
    except ImportError:
        return False
    return True
