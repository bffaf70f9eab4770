"""A server with a statement of privacy, and without noise: what engines and commands do with the statement."""

from dataclasses import dataclass, replace
from typing import ClassVar

from gossamer.core.method import Method
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.types import Clock, State
from gossamer.methods.private import Terms
from gossamer.parts.privacy.accounting import gaussian
from gossamer.parts.samplers.draws import Poisson
from gossamer.parts.servers.mean import Sum, WeightedMean


@dataclass(frozen=True)
class NoisyMean(WeightedMean):
    """The mean of updates, which claims to have noise."""

    private: ClassVar[bool] = True

    noise_multiplier: float = 1.0

    def guarantee(self, participation: Participation) -> Guarantee:
        """Return that of Gaussian noise."""
        return gaussian(self.noise_multiplier, participation)

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Move the model by the mean."""
        return self.moved(state, acc)


def noisy(method: Method, terms: Terms) -> Method:
    """Stand for a mode of differential privacy."""
    rate = terms.per_round / terms.clients
    sampler = replace(Poisson(), rate=rate) if rate < 1 and not terms.own_sampler else method.sampler
    return method.with_parts(server=NoisyMean(noise_multiplier=terms.noise_multiplier), sampler=sampler)
