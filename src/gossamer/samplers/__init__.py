"""Samplers: who takes part in a round."""

from gossamer.samplers.base import Pool, Sampler
from gossamer.samplers.by_size import BySize
from gossamer.samplers.power_of_choice import PowerOfChoice
from gossamer.samplers.round_robin import RoundRobin
from gossamer.samplers.uniform import Uniform

__all__ = ["SAMPLERS", "BySize", "Pool", "PowerOfChoice", "RoundRobin", "Sampler", "Uniform"]

SAMPLERS: dict[str, type[Sampler]] = {
    "uniform": Uniform,
    "by-size": BySize,
    "round-robin": RoundRobin,
    "power-of-choice": PowerOfChoice,
}
"""Samplers by the name that the command line uses."""
