"""Published workloads by their own parameters, with the source of every number.

NumPy is the only dependency: the page and the tests need no other.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from board import sources

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Published:
    """A published time.

    Args:
        seconds: of the whole run; ``None`` if it was not found
        text: how it is shown
        hardware: what it was measured on
        source: file and table
    """

    seconds: float | None
    text: str
    hardware: str
    source: str


@dataclass(frozen=True)
class Workload:
    """One published federated training job.

    Args:
        title: heading on the page
        net: network, by its name in ``networks.py``
        data: data set, by its name in ``samples.py``
        clients: number of clients
        cohort: clients per round
        samples: training samples of all clients together
        spread: standard deviation of the clients' numbers of samples, divided by their mean; 0 if all are equal
        batch: batch size
        epochs: local epochs
        lr: local learning rate
        rounds: published number of rounds
        published: published time
        sources: numbers of this workload and the file that each comes from
        notes: what differs from the published run
        timed: clients per timed round, if not the cohort; times are multiplied accordingly
        eager: whether the compiler is left out, because the network takes too long to compile
        small: whether sizes are reduced for a test
    """

    title: str
    net: str
    data: str
    clients: int
    cohort: int
    samples: int
    spread: float
    batch: int
    epochs: int
    lr: float
    rounds: int
    published: Published
    sources: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    timed: int | None = None
    eager: bool = False
    small: bool = False

    @property
    def count(self) -> int:
        """Number of clients per timed round."""
        return self.timed or self.cohort

    @property
    def scale(self) -> float:
        """Factor from a timed round to a round of the whole cohort."""
        return self.cohort / self.count

    def sizes(self) -> Numbers:
        """Return the number of samples of each client: equal, or log-normal with the published total."""
        if not self.spread:
            return np.full(self.clients, self.samples // self.clients)
        sigma = math.sqrt(math.log(1 + self.spread**2))
        drawn = np.random.default_rng(0).lognormal(0, sigma, self.clients)
        sizes: Numbers = np.maximum(1, np.round(drawn / drawn.sum() * self.samples)).astype(np.int64)
        sizes[sizes.argmax()] += self.samples - sizes.sum()
        return sizes

    def describe(self) -> str:
        """Describe the job in one line."""
        spread = f" on average (standard deviation {self.spread:.1f} of it)" if self.spread else ""
        return (
            f"{self.clients:,} clients with {self.samples / self.clients:,.0f} samples{spread}, "
            f"{self.cohort} per round, "
            f"{plural(self.epochs, 'local epoch')}, batch {self.batch}, learning rate {self.lr}, {self.rounds:,} rounds"
        )


def plural(number: int, word: str) -> str:
    return f"{number} {word}{'s'[: number > 1]}"


def cohort(clients: int, count: int, number: int) -> list[int]:
    """Return the clients of a round, in client order: the same for all systems."""
    drawn = np.random.default_rng((1, number)).choice(clients, count, replace=False)
    return sorted(map(int, drawn))


def reduced(work: Workload, count: int | None = None, small: bool = False) -> Workload:
    """Return a workload with fewer clients per round, or with tiny sizes for a test."""
    if small:
        work = replace(work, clients=6, cohort=3, samples=36, batch=2, rounds=5, timed=None, small=True)
    return replace(work, timed=count) if count and count != work.cohort else work


BLAZEFL_NOTES = (
    "The split is uniform here, two classes per client there; it does not change the speed.",
    "The time is read from a plot, not from a table; the plot could not be checked here. An earlier README names one "
    "A100 with 12 virtual cores instead.",
)

WORKLOADS = {
    "femnist": Workload(
        "FLUTE: FEMNIST, CNN",
        net="cnn-femnist",
        data="femnist",
        clients=3_400,
        cohort=10,
        samples=671_585,
        spread=0.4,
        batch=20,
        epochs=1,
        lr=0.1,
        rounds=1_500,
        published=Published(502, "8:22", sources.FLUTE_GPUS, sources.FLUTE_TIMES),
        sources=sources.FEMNIST,
        notes=(
            "FLUTE's table says 1,500 rounds; its config.yaml says 800. The table counts here.",
            "Clients' sizes were not found. Log-normal ones are assumed, with a standard deviation of 0.4 of the mean.",
        ),
    ),
    "fed-cifar100": Workload(
        "FLUTE: Fed-CIFAR-100, ResNet18 with group norm",
        net="resnet18-gn",
        data="cifar100",
        clients=500,
        cohort=10,
        samples=50_000,
        spread=0,
        batch=20,
        epochs=1,
        lr=0.1,
        rounds=4_000,
        published=Published(6_121, "1:42:01", sources.FLUTE_GPUS, sources.FLUTE_TIMES),
        sources=sources.FED_CIFAR100,
        notes=(
            "The group norm has 32 channels per group, as the file says. FLUTE's table names group norm, but its class "
            "calls `resnet18()`, which makes batch norms and 1,000 outputs. Here it is group norm and 100 outputs.",
        ),
    ),
    "shakespeare": Workload(
        "FLUTE: Shakespeare, LSTM of two layers",
        net="lstm2",
        data="shakespeare",
        clients=715,
        cohort=10,
        samples=3 * 16_068,
        spread=1.7,
        batch=4,
        epochs=1,
        lr=0.8,
        rounds=1_200,
        published=Published(1_310, "21:50", sources.FLUTE_GPUS, sources.FLUTE_TIMES),
        sources=sources.SHAKESPEARE,
        notes=(
            "An example is cut into sequences of 80 characters. How many there are was not found: 3 per example are "
            "assumed. Clients' sizes were not found: log-normal ones with a standard deviation of 1.7 of the mean.",
        ),
        eager=True,
    ),
    "pfl-cifar10": Workload(
        "pfl-research: CIFAR-10, CNN with dropout",
        net="cnn-pfl",
        data="cifar10",
        clients=1_000,
        cohort=50,
        samples=50_000,
        spread=0,
        batch=10,
        epochs=1,
        lr=0.1,
        rounds=1_500,
        published=Published(None, "not found", sources.PFL_GPU, sources.PFL_PAPER),
        sources=sources.PFL_CIFAR10,
    ),
    "blazefl-cnn": Workload(
        "BlazeFL: CIFAR-10, CNN",
        net="cnn-blazefl",
        data="cifar10",
        clients=100,
        cohort=100,
        samples=50_000,
        spread=0,
        batch=50,
        epochs=5,
        lr=0.1,
        rounds=5,
        published=Published(30, "about 0:30", sources.BLAZEFL_GPUS, sources.BLAZEFL_TIMES),
        sources=sources.BLAZEFL,
        notes=BLAZEFL_NOTES,
        timed=20,
    ),
    "blazefl-resnet18": Workload(
        "BlazeFL: CIFAR-10, ResNet18",
        net="resnet18",
        data="cifar10",
        clients=100,
        cohort=100,
        samples=50_000,
        spread=0,
        batch=50,
        epochs=5,
        lr=0.1,
        rounds=5,
        published=Published(115, "about 1:55", sources.BLAZEFL_GPUS, sources.BLAZEFL_TIMES),
        sources=sources.BLAZEFL,
        notes=(*BLAZEFL_NOTES, "The network is torchvision's ResNet18 with batch norm and 10 outputs."),
        timed=20,
    ),
}
