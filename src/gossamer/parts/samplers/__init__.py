"""Samplers: which clients take part in a round."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.core.sampler import Pool as Pool
    from gossamer.core.sampler import Sampler as Sampler
    from gossamer.parts.samplers.draws import BySize as BySize
    from gossamer.parts.samplers.draws import Poisson as Poisson
    from gossamer.parts.samplers.draws import PowerOfChoice as PowerOfChoice
    from gossamer.parts.samplers.draws import RoundRobin as RoundRobin
    from gossamer.parts.samplers.draws import Uniform as Uniform

SAMPLERS: "Registry[type[Sampler]]" = Registry(
    __name__,
    {
        "uniform": "draws.Uniform",
        "by-size": "draws.BySize",
        "round-robin": "draws.RoundRobin",
        "poisson": "draws.Poisson",
        "power-of-choice": "draws.PowerOfChoice",
    },
)
"""Samplers by the name that the command line uses."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, SAMPLERS)
