"""A server with a statement of privacy, and without noise: what engines and commands do with the statement."""

from dataclasses import dataclass, replace

from gossamer.core.method import Method
from gossamer.core.privacy import Guarantee, Participation, PrivatePart
from gossamer.methods.private import Terms
from gossamer.parts.privacy.accounting import gaussian
from gossamer.parts.samplers.draws import Poisson
from gossamer.parts.servers.mean import Mean


@dataclass(frozen=True)
class NoisyMean(Mean, PrivatePart):
    """The mean of updates, which claims to have noise."""

    noise_multiplier: float = 1.0

    def guarantee(self, participation: Participation) -> Guarantee:
        """Return that of Gaussian noise."""
        return gaussian(self.noise_multiplier, participation)


def noisy(method: Method, terms: Terms) -> Method:
    """Stand for a mode of differential privacy."""
    rate = terms.per_round / terms.clients
    sampler = replace(Poisson(), rate=rate) if rate < 1 and not terms.own_sampler else method.sampler
    return method.with_parts(server=NoisyMean(noise_multiplier=terms.noise_multiplier), sampler=sampler)
