"""Samplers: which clients take part in a round."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.core.sampler import Pool as Pool
    from gossamer.core.sampler import Sampler as Sampler
    from gossamer.parts.samplers.by_size import BySize as BySize
    from gossamer.parts.samplers.poisson import Poisson as Poisson
    from gossamer.parts.samplers.power_of_choice import PowerOfChoice as PowerOfChoice
    from gossamer.parts.samplers.round_robin import RoundRobin as RoundRobin
    from gossamer.parts.samplers.uniform import Uniform as Uniform

SAMPLERS: "Registry[type[Sampler]]" = Registry(
    __name__,
    {
        "uniform": "uniform.Uniform",
        "by-size": "by_size.BySize",
        "round-robin": "round_robin.RoundRobin",
        "poisson": "poisson.Poisson",
        "power-of-choice": "power_of_choice.PowerOfChoice",
    },
)
"""Samplers by the name that the command line uses."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, SAMPLERS)
