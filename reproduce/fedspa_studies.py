"""What the FedSpa experiments run: the setting, what the paper says, and the cells of each study.

All that is likely to be changed stands at the top. A client's round with VGG11 is 5 epochs of 500 images, 2.3 TFLOP, so
a run of 60 rounds with 10 clients each is 1.4 PFLOP, evaluation not counted. ``python reproduce/fedspa.py --list`` adds
that up.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from cells import Cell

ROUNDS = 60
"""Of every cell but the longer ones. The paper has 1,000 on CIFAR-10 and CIFAR-100, and 400 on EMNIST-Letters."""
LONGER = 240
"""Of the study ``longer``: by then the paper's moving masks are at 75 per cent in setting B, and FedAvg is not."""
EVERY = 4
"""Evaluate every so many rounds: all clients' models on their own test sets, and the server's on the whole."""
ALONE_EVERY = ROUNDS // 2
"""The same of clients that train alone: each one's model is evaluated on the whole test set too, a hundred times."""
PRUNINGS = 4
"""How many prunings lead Sub-FedAvg to its target: a client takes part about 6 times in 60 rounds, in the paper 100."""

SEEDS = (0, 1, 2)
EPOCHS, BATCH = 5, 128
SCHEDULE, WEIGHT_DECAY, CLIP = "exponential:0.998", 5e-4, 10.0
RATE = 0.1


def pruning(target: float) -> dict[str, float]:
    """Sub-FedAvg's target, and the share that reaches it in so many prunings: a hundredth too much at most."""
    return {"target": target, "share": int(100 * (1 - target ** (1 / PRUNINGS)) + 1) / 100}


METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "dst": ("fedspa", {"epochs": EPOCHS}),
    "rsm": ("fedspa", {"epochs": EPOCHS, "mask": "rsm"}),
    "ditto": ("ditto", {"epochs": 2, "personal_epochs": 3, "lam": 0.5}),
    "fedavg": ("fedavg", {"epochs": EPOCHS}),
    "sub-fedavg": ("sub-fedavg", {"epochs": EPOCHS, **pruning(0.5)}),
    "local": ("local", {"epochs": EPOCHS}),
    "subsampling": ("subsample", {"epochs": EPOCHS, "share": 0.5, "rescale": False}),
}
"""The rows of Table 1; FedSpa's moving masks (DST) and static ones (RSM) at density 0.5."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dst-0.2": ("dst", {"density": 0.2}),
    "dst-0.8": ("dst", {"density": 0.8}),
    "sub-fedavg-0.2": ("sub-fedavg", pruning(0.2)),
    "sub-fedavg-0.8": ("sub-fedavg", pruning(0.8)),
    "sub-fedavg-hybrid": ("sub-fedavg", {"prune": "hybrid"}),
    "dst-uniform": ("dst", {"init": "uniform"}),
    "dst-own": ("dst", {"own_init": True}),
    "rsm-own": ("rsm", {"own_init": True}),
    "dst-random": ("dst", {"regrow": "random"}),
}
"""Other densities, and the ablations, each with the row that it is a variant of."""


class Data(NamedTuple):
    """A data set of the paper's; Fashion-MNIST stands in for EMNIST-Letters, which it does not have.

    forward: operations of a forward pass of one sample
    train, test: how many samples there are
    gammas: concentrations of its settings A and B
    targets: accuracies of which Table 2 has the rounds
    batch: images of a batch
    samples: of a client, where not all that there are are dealt
    """

    model: str
    forward: float
    train: int
    test: int
    gammas: tuple[float, float]
    targets: tuple[int, ...]
    batch: int = BATCH
    samples: int = 0


SETS = {
    "cifar-10": Data("vgg11", 305.7e6, 50_000, 10_000, (0.5, 0.3), (30, 40, 50, 60, 70)),
    "cifar-100": Data("resnet18-gn", 1110.9e6, 50_000, 10_000, (0.2, 0.1), (10, 20, 30, 40)),
    "emnist-letters": Data("lenet5", 4.6e6, 124_800, 20_800, (0.2, 0.1), (70, 80, 85, 90)),
    "fashion-mnist": Data("lenet5", 4.6e6, 20_000, 10_000, (0.2, 0.1), (70, 80, 85, 90), batch=20, samples=200),
}
SETTINGS = ("iid", "a", "b")


def split(data: str, setting: str) -> str:
    """How samples are dealt in a setting: at random, or by a Dirichlet draw of each client's labels."""
    return "iid" if setting == "iid" else f"dirichlet-client:{SETS[data].gammas[SETTINGS.index(setting) - 1]}"


def place(data: str, setting: str, rounds: int) -> str:
    """A setting as the names of cells and pictures have it; with its rounds, if these are not the usual ones."""
    return f"{data}-{setting}" if rounds == ROUNDS else f"{data}-{setting}{rounds}"


def cell(data: str, setting: str, method: str, seed: int = 0, rounds: int = ROUNDS) -> Cell:
    """One run of the tables: of a method, or of a variant of one."""
    base, more = VARIANTS.get(method, (method, {}))
    name, own = METHODS[base]
    made = SETS[data]
    return Cell(
        name=f"fedspa-{place(data, setting, rounds)}-{method}-{seed}",
        method=name,
        given={"lr": RATE, "batch": made.batch, **own, **more},
        data=data,
        model=made.model,
        split=split(data, setting),
        seed=seed,
        rounds=rounds,
        schedule=SCHEDULE,
        eval_every=(ALONE_EVERY if method == "local" else EVERY) * rounds // ROUNDS,
        executor="captured-plain",
        solver={"weight_decay": WEIGHT_DECAY, "clip": CLIP},
        samples=made.samples,
    )


def grid(data: str, setting: str, methods: Iterable[str], seed: int = 0) -> Iterator[Cell]:
    """Several methods in one setting."""
    return (cell(data, setting, method, seed) for method in methods)


BASELINES = ("ditto", "sub-fedavg", "subsampling", "local")


def claims(seed: int = 0) -> Iterator[Cell]:
    """What the paper says above all: DST is best where labels differ, RSM is FedAvg where not, ERK beats uniform."""
    yield from grid("cifar-10", "b", ("dst", "rsm", "fedavg", "dst-uniform"), seed)
    yield from grid("cifar-10", "iid", ("rsm", "fedavg", "dst"), seed)
    yield from grid("cifar-10", "a", ("dst", "rsm", "fedavg"), seed)


def baselines() -> Iterator[Cell]:
    """The other rows of Table 1."""
    for setting in ("b", "iid", "a"):
        yield from grid("cifar-10", setting, BASELINES)


def densities() -> Iterator[Cell]:
    """Figures 1 and 4: densities 0.2 and 0.8, beside the 0.5 of the rows above."""
    yield from grid("cifar-10", "b", ("dst-0.2", "dst-0.8", "sub-fedavg-0.2", "sub-fedavg-0.8"))


def ablations() -> Iterator[Cell]:
    """Figures 6 and 7, and Figure 5 where labels do not differ."""
    yield from grid("cifar-10", "b", ("dst-random", "dst-own", "rsm-own"))
    yield from grid("cifar-10", "iid", ("rsm-own", "dst-own", "dst-uniform", "dst-random"))


def hybrid() -> Iterator[Cell]:
    """Sub-FedAvg that prunes channels of convolutions, which the paper has no row for."""
    for setting in ("b", "iid", "a"):
        yield from grid("cifar-10", setting, ("sub-fedavg-hybrid",))


PATIENT = ("dst", "fedavg", "rsm", "dst-uniform")


def longer() -> Iterator[Cell]:
    """What the paper says of clients whose labels differ, with four times the rounds."""
    return (cell("cifar-10", "b", method, rounds=LONGER) for method in PATIENT)


def seeds() -> Iterator[Cell]:
    """More seeds of what matters most."""
    for seed in SEEDS[1:]:
        yield from claims(seed)


def fashion(seed: int = 0) -> Iterator[Cell]:
    """The claims on images that are learnt soon enough for a CPU."""
    yield from grid("fashion-mnist", "b", PATIENT, seed)
    yield from grid("fashion-mnist", "iid", ("rsm", "fedavg", "dst"), seed)


def fashion_seeds() -> Iterator[Cell]:
    """More seeds of them."""
    for seed in SEEDS[1:]:
        yield from fashion(seed)


def emnist_letters() -> Iterator[Cell]:
    """EMNIST-Letters with LeNet5."""
    for setting in ("b", "iid", "a"):
        yield from grid("emnist-letters", setting, METHODS)


def cifar_100() -> Iterator[Cell]:
    """CIFAR-100 with ResNet18-GN, on which the paper has its ablations."""
    for setting in ("b", "iid", "a"):
        yield from grid("cifar-100", setting, METHODS)
    yield from grid("cifar-100", "b", VARIANTS)


STUDIES: dict[str, Callable[[], Iterator[Cell]]] = {
    "claims": claims,
    "baselines": baselines,
    "densities": densities,
    "ablations": ablations,
    "hybrid": hybrid,
    "longer": longer,
    "seeds": seeds,
    "fashion": fashion,
    "fashion-seeds": fashion_seeds,
    "emnist-letters": emnist_letters,
    "cifar-100": cifar_100,
}
DEFAULT = ("claims", "baselines", "densities", "ablations", "longer")
"""What is run unless something else is asked for, the most important first."""


def cost(cell: Cell) -> float:
    """A run's operations in units of 10^15, roughly: training, and evaluation of all models."""
    data, evaluations = SETS[cell.data], -(-cell.rounds // cell.eval_every)
    trained = (
        3 * cell.rounds * cell.per_round * (EPOCHS * data.train / cell.clients + data.batch * (cell.method == "fedspa"))
    )
    tested = evaluations * data.test * (cell.clients if cell.method == "local" else 2)
    return (trained + tested) * data.forward / 1e15
