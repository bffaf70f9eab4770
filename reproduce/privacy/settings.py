"""What all runs of the study share: data, clients, rounds, and the noise of each epsilon.

Differential privacy of clients needs many of them: 3,000 clients with 20 images each of Fashion-MNIST, and 2,500 with
20 each of CIFAR-10, 150 per round, 40 rounds, delta = clients^-1.1.

Central privacy has Poisson sampling, which amplifies it. The noise of distributed privacy needs a fixed number of
clients, and no tight amplification is known for it. So clients take turns there: each takes part in 2 of the 40 rounds,
and epsilon is that of 2 rounds.

The noise was calibrated before by the accountant of Gossamer. A test computes it again.
"""

from typing import NamedTuple

EPSILONS = (1.0, 2.0, 4.0, 8.0)
PER_ROUND, ROUNDS = 150, 40
VISITS = 2
"""Rounds in which a client of Fashion-MNIST takes part if clients take turns."""


class Setting(NamedTuple):
    """A data set and its clients.

    Args:
        title: its name in tables
        data: its name in Gossamer
        clients: the number of clients
        unit: factor of all learning rates, clipping norms and scales that are tried
    """

    title: str
    data: str
    clients: int
    unit: float = 1.0


SETTINGS = {
    "fashion": Setting("Fashion-MNIST", "fashion-mnist", 3000),
    "cifar": Setting("CIFAR-10", "cifar-10", 2500, unit=1 / 3),
}

NOISE = {
    ("fashion", "central"): (1.359, 0.966, 0.723, 0.548),
    ("cifar", "central"): (1.506, 1.039, 0.7636, 0.5736),
    ("fashion", "skellam"): (4.82, 2.613, 1.437, 0.8119),
    ("fashion", "bits"): (0.0338, 0.0603, 0.1027, 0.1658),
}
"""The noise multiplier for each of ``EPSILONS``, by data and mode; with bits, theta."""


def noise(setting: str, mode: str, epsilon: float | None) -> float:
    """Return the noise for an epsilon; 0 for none."""
    return 0.0 if epsilon is None else NOISE[setting, mode][EPSILONS.index(epsilon)]
