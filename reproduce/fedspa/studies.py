"""Settings of the FedSpa experiments, and the cells of each study.

The settings most likely to change are at the top. A client's round with VGG11 is 5 epochs of 500 images, 2.3 TFLOP. A
run of 60 rounds with 10 clients each is 1.4 PFLOP without evaluation. ``python -m reproduce fedspa --list`` adds up the
cost.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from reproduce.common.cells import Cell, Studies

ROUNDS = 60
"""Rounds of every cell but the longer ones. The paper has 1,000 on CIFAR-10 and CIFAR-100, 400 on EMNIST-Letters."""
LONGER = 240
"""Rounds of the study ``longer``. By then moving masks reach 75 percent in setting B of the paper, FedAvg does not."""
EVERY = 4
"""Rounds between evaluations of all personalized models on their test sets, and of the global model."""
ALONE_EVERY = ROUNDS // 2
"""The same for ``local``, which also evaluates each of the 100 client models on the whole test set."""
PRUNINGS = 4
"""Prunings to Sub-FedAvg's target. A client takes part about 6 times in 60 rounds, and 100 times in the paper."""

SEEDS = (0, 1, 2)
EPOCHS, BATCH = 5, 128
SCHEDULE, WEIGHT_DECAY, CLIP = "exponential:0.998", 5e-4, 10.0
RATE = 0.1


def pruning(target: float) -> dict[str, float]:
    """Return Sub-FedAvg's target and the share per pruning that reaches it in time, rounded up to a hundredth."""
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
"""The rows of Table 1: recipe and parameters. FedSpa's moving (DST) and static (RSM) masks have density 0.5."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dst-0.2": ("dst", {"density": 0.2}),
    "dst-0.4": ("dst", {"density": 0.4}),
    "dst-0.6": ("dst", {"density": 0.6}),
    "dst-0.8": ("dst", {"density": 0.8}),
    "sub-fedavg-0.2": ("sub-fedavg", pruning(0.2)),
    "sub-fedavg-0.8": ("sub-fedavg", pruning(0.8)),
    "sub-fedavg-hybrid": ("sub-fedavg", {"prune": "hybrid"}),
    "dst-uniform": ("dst", {"distribution": "uniform"}),
    "dst-uniform-weights": ("dst", {"distribution": "uniform-weights"}),
    "dst-own": ("dst", {"own_init": True}),
    "rsm-own": ("rsm", {"own_init": True}),
    "dst-random": ("dst", {"regrow": "random"}),
}
"""Other densities, and the ablations: the row that each varies, and the parameters that it changes."""


class Data(NamedTuple):
    """A data set of the experiments. Fashion-MNIST, not in the paper, replaces EMNIST-Letters where that is missing.

    Args:
        model: network
        forward: operations of a forward pass of one sample
        train: number of training samples
        test: number of test samples
        gammas: Dirichlet concentrations of settings A and B
        targets: accuracies whose rounds Table 2 gives
        batch: batch size
        samples: training samples per client; 0 partitions all samples
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
    """Return the partition of a setting: IID, or a Dirichlet draw of each client's label shares."""
    return "iid" if setting == "iid" else f"dirichlet-client:{SETS[data].gammas[SETTINGS.index(setting) - 1]}"


def where(data: str, setting: str, rounds: int) -> str:
    """Return a setting as part of the names of cells and plots, with its rounds where these differ from the default."""
    return f"{data}-{setting}" if rounds == ROUNDS else f"{data}-{setting}{rounds}"


def cell(data: str, setting: str, method: str, seed: int = 0, rounds: int = ROUNDS) -> Cell:
    """Return the cell of a method or a variant."""
    base, more = VARIANTS.get(method, (method, {}))
    name, own = METHODS[base]
    made = SETS[data]
    return Cell(
        name=f"fedspa-{where(data, setting, rounds)}-{method}-{seed}",
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


def variant(cell: Cell) -> str:
    """Return the method or variant of a cell: the part of its name between setting and seed."""
    return cell.name.removeprefix(f"fedspa-{cell.data}-").partition("-")[2].rpartition("-")[0]


def grid(data: str, setting: str, methods: Iterable[str], seed: int = 0) -> Iterator[Cell]:
    """Return the cells of several methods in one setting."""
    return (cell(data, setting, method, seed) for method in methods)


DENSITIES = ("dst-0.2", "dst-0.4", "dst-0.6", "dst-0.8")
"""The sparsities 0.8, 0.6, 0.4 and 0.2 of Table 3. The fifth, 0.5, is the row ``dst``."""
BASELINES = ("ditto", "sub-fedavg", "subsampling", "local")


def claims(seed: int = 0) -> Iterator[Cell]:
    """The main claims: DST is best on non-IID data, RSM matches FedAvg on IID data, ERK beats uniform densities."""
    yield from grid("cifar-10", "b", ("dst", "rsm", "fedavg", "dst-uniform"), seed)
    yield from grid("cifar-10", "iid", ("rsm", "fedavg", "dst"), seed)
    yield from grid("cifar-10", "a", ("dst", "rsm", "fedavg"), seed)


def baselines() -> Iterator[Cell]:
    """The other rows of Table 1."""
    for setting in ("b", "iid", "a"):
        yield from grid("cifar-10", setting, BASELINES)


def densities() -> Iterator[Cell]:
    """Figures 1 and 4 and Table 3: densities in addition to 0.5."""
    yield from grid("cifar-10", "b", (*DENSITIES, "sub-fedavg-0.2", "sub-fedavg-0.8"))


def ablations() -> Iterator[Cell]:
    """Figures 6 and 7, and Figure 5 on IID data."""
    yield from grid("cifar-10", "b", ("dst-random", "dst-own", "rsm-own", "dst-uniform-weights"))
    yield from grid("cifar-10", "iid", ("rsm-own", "dst-own", "dst-uniform", "dst-random", "dst-uniform-weights"))


def hybrid() -> Iterator[Cell]:
    """Sub-FedAvg that also prunes channels of convolutions; not in the paper."""
    for setting in ("b", "iid", "a"):
        yield from grid("cifar-10", setting, ("sub-fedavg-hybrid",))


LONGER_METHODS = ("dst", "fedavg", "rsm", "dst-uniform", "dst-uniform-weights")


def longer() -> Iterator[Cell]:
    """The claims about non-IID data, with four times the rounds."""
    return (cell("cifar-10", "b", method, rounds=LONGER) for method in LONGER_METHODS)


def seeds() -> Iterator[Cell]:
    """More seeds of the main claims."""
    for seed in SEEDS[1:]:
        yield from claims(seed)


def fashion(seed: int = 0) -> Iterator[Cell]:
    """The claims on a data set that is small enough for a CPU."""
    yield from grid("fashion-mnist", "b", LONGER_METHODS, seed)
    yield from grid("fashion-mnist", "iid", ("rsm", "fedavg", "dst"), seed)


def fashion_seeds() -> Iterator[Cell]:
    """More seeds of ``fashion``."""
    for seed in SEEDS[1:]:
        yield from fashion(seed)


def fashion_densities() -> Iterator[Cell]:
    """Table 3 on a data set that is small enough for a CPU."""
    for setting in ("b", "iid"):
        yield from grid("fashion-mnist", setting, DENSITIES)


def emnist_letters() -> Iterator[Cell]:
    """EMNIST-Letters with LeNet5."""
    for setting in ("b", "iid", "a"):
        yield from grid("emnist-letters", setting, METHODS)


def cifar_100() -> Iterator[Cell]:
    """CIFAR-100 with ResNet18-GN, the data set of the paper's ablations: Tables 1, 3 and 4, and Figures 4 to 7."""
    for setting in ("b", "iid", "a"):
        yield from grid("cifar-100", setting, METHODS)
    for setting in ("b", "iid", "a"):
        yield from grid("cifar-100", setting, VARIANTS)


STUDIES: Studies = {
    "claims": claims,
    "baselines": baselines,
    "densities": densities,
    "ablations": ablations,
    "hybrid": hybrid,
    "longer": longer,
    "seeds": seeds,
    "fashion": fashion,
    "fashion-seeds": fashion_seeds,
    "fashion-densities": fashion_densities,
    "emnist-letters": emnist_letters,
    "cifar-100": cifar_100,
}
DEFAULT = ("claims", "baselines", "densities", "ablations", "longer")
"""Studies that run by default, the most important first."""


def cost(cell: Cell) -> float:
    """Return the rough cost of a run in units of 10^15 operations: training, and evaluation of all models."""
    data, evaluations = SETS[cell.data], -(-cell.rounds // cell.eval_every)
    trained = (
        3 * cell.rounds * cell.per_round * (EPOCHS * data.train / cell.clients + data.batch * (cell.method == "fedspa"))
    )
    tested = evaluations * data.test * (cell.clients if cell.method == "local" else 2)
    return (trained + tested) * data.forward / 1e15
