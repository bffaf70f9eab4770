"""Data sets by name. To add one, write a small dataclass with a ``load`` method, and list it in ``DATASETS``.

A data set is written as a spec: ``cifar-10``, or ``cifar-10:norm=imagenet,augment=no``. Its fields are its options. The
loaded data has the complete spec as its name, so that a resumed run loads the same data.

**Small tables of scikit-learn**: regression, binary classification, and several targets per sample. A fifth of the
samples is the test set, whatever the run's seed. Features have mean 0 and standard deviation 1 over the training
samples. So have targets that are numbers: an RMSE of 1 is that of predicting the mean.

**Two populations with opposite labels**: the generator of PERM's first experiment (https://arxiv.org/abs/2310.17761).
Client i draws x ~ N(mu_i 1, Sigma) in 60 dimensions with Sigma = diag(k^-1.2). Here mu_i is 0.2 in the first population
and -0.2 in the second. All clients share one direction w ~ N(0.1 * 1, I). The first population labels with sign(w'x),
the second with sign(-w'x). No global model fits both, and a client gains only from its own half.

The literal definition has a flaw. The mean margin w'mu_i is 0.2 sum(w), which has mean 1.2 and standard deviation 1.5.
So one class can hold nearly all labels. As mean and labels flip together, *both* populations have the same majority. A
model that always predicts it then scores as well as a personalized model, and the experiment shows nothing. The
balanced version removes the mean of w, so that sum(w) = 0 and every client's labels are balanced in expectation.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core import specs
from gossamer.core.errors import require
from gossamer.core.extras import need
from gossamer.core.random import Key, fold, generator, permutation
from gossamer.core.random import key as new_key
from gossamer.tasks.data import image_sets, leaf
from gossamer.tasks.data.partition import Index
from gossamer.tasks.data.samples import Data, Samples

TEST_SHARE = 0.2
"""Fraction of the samples that is the test set of a data set without one."""

Table = npt.NDArray[np.float64]


class Source(Protocol):
    """A data set that can be loaded. The first line of its docstring describes it."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the data from files in ``data_dir``, or generate it for ``clients`` clients from ``key``."""
        ...


def load(name: str, *, data_dir: str | Path | None = None, clients: int = 50, key: Key) -> Data:
    """Load the data set of a spec such as ``digits`` or ``cifar-10:norm=imagenet``.

    The folder of the files is ``data_dir``, else the variable GOSSAMER_DATA, else ``data``. Generated data sets draw
    the data of ``clients`` clients from ``key``.
    """
    source = specs.parse(name, DATASETS, "data set")
    require((clients >= 1, f"clients must be >= 1, got {clients}"))
    return replace(source.load(Path(data_dir) if data_dir else None, clients, key), name=specs.spec(source, DATASETS))


def hold_out(labels: Index, share: float, key: Key) -> tuple[Index, Index]:
    """Return training and test indices, both ascending, with a fraction ``share`` of each class in the test set."""
    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = permutation(fold(key, int(label)), len(members))
        test[members[order[: round(share * len(members))]]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


@dataclass(frozen=True)
class Digits:
    """1,797 handwritten digits of 8 x 8 pixels, 10 classes; part of scikit-learn."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the digits; a fifth of each class is the test set."""
        need("sklearn")
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        x = torch.from_numpy(images / 16).float().reshape(-1, 1, 8, 8)
        samples = Samples(x, torch.from_numpy(labels).long())
        # A constant key: the test set is part of the data set and does not depend on the run's seed.
        train, test = hold_out(samples.labels, TEST_SHARE, fold(new_key(0), "digits", "test"))
        return Data("digits", samples.take(train), samples.take(test), 10, split="dirichlet:0.3", model="mlp")


@dataclass(frozen=True)
class Diabetes:
    """Diabetes progression after a year, of 442 patients with 10 measurements: regression; part of scikit-learn."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the patients; a fifth of them is the test set."""
        return _numbers("diabetes", "load_diabetes", split="quantile:2", model="linear")


@dataclass(frozen=True)
class Linnerud:
    """Weight, waist and pulse of 20 people by three exercises: three numbers per sample; part of scikit-learn."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the people; a fifth of them is the test set."""
        return _numbers("linnerud", "load_linnerud", split="iid", model="linear")


@dataclass(frozen=True)
class BreastCancer:
    """Malignant or benign, 569 tumours with 30 measurements: binary, one logit; part of scikit-learn."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the tumours; a fifth of them is the test set."""
        x, y, train, test = _table("breast-cancer", "load_breast_cancer")
        samples, metrics = Samples(_standard(x, train), torch.from_numpy(y).long()), ("accuracy", "auroc")
        both = samples.take(train), samples.take(test)
        return Data("breast-cancer", *both, 2, split="dirichlet:0.3", model="linear", loss="bce", metrics=metrics)


def _numbers(name: str, loader: str, split: str, model: str) -> Data:
    """Return a table whose targets are numbers."""
    x, y, train, test = _table(name, loader)
    samples = Samples(_standard(x, train), _standard(y, train))
    return Data(name, samples.take(train), samples.take(test), 0, split, model, loss="mse")


def _table(name: str, loader: str) -> tuple[Table, Any, Index, Index]:
    """Return features, targets, and the indices of training and test samples, ascending."""
    need("sklearn")
    from sklearn import datasets

    x, y = getattr(datasets, loader)(return_X_y=True)
    # A constant key: the test set is part of the data set and does not depend on the run's seed.
    order = permutation(fold(new_key(0), name, "test"), len(x))
    held = round(TEST_SHARE * len(x))
    return x, y, np.sort(order[held:]), np.sort(order[:held])


def _standard(table: Table, train: Index) -> Tensor:
    """Return columns with mean 0 and standard deviation 1 over the training samples."""
    standard = (table - table[train].mean(axis=0)) / table[train].std(axis=0)
    return torch.from_numpy(np.ascontiguousarray(standard)).float()


DIMENSIONS = 60
SAMPLES = 500
MOST_CLIENTS = 20_000
"""The most clients of a run: their samples take 2.4 GB, and twice that while they are divided into two sets."""
MEAN = 0.2
DIRECTION_MEAN = 0.1


class Populations(NamedTuple):
    """Inputs [n, 60], labels [n], the client of each sample [n], and the direction w [60]."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]
    client: npt.NDArray[np.int64]
    direction: npt.NDArray[np.float64]


def two_populations(clients: int, key: Key, *, balanced: bool = True, samples: int = SAMPLES) -> Populations:
    """Draw ``samples`` samples per client, client after client; the first half has the extra client if odd."""
    direction = generator(fold(key, "direction")).normal(DIRECTION_MEAN, 1.0, DIMENSIONS)
    if balanced:
        direction -= direction.mean()
    client = np.repeat(np.arange(clients), samples)
    side = np.where(client < (clients + 1) // 2, 1, -1)
    x = generator(fold(key, "inputs")).standard_normal((len(client), DIMENSIONS), dtype=np.float32)
    x *= (np.arange(1, DIMENSIONS + 1) ** -0.6).astype(np.float32)  # square root of Sigma's diagonal
    x += (MEAN * side).astype(np.float32)[:, None]
    # Double precision, so that the order of summation does not change labels between machines.
    margin = np.einsum("nd,d->n", x, direction, dtype=np.float64) * side
    return Populations(x, (margin >= 0).astype(np.int64), client, direction)


@dataclass(frozen=True)
class TwoPopulations:
    """Generated: the two halves of the clients have opposite labels (PERM); balanced labels."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Generate the data of all clients."""
        return _two_populations(clients, key, balanced=True)


@dataclass(frozen=True)
class TwoPopulationsLiteral:
    """Generated: the same exactly as PERM defines it; one class may hold nearly all labels."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Generate the data of all clients."""
        return _two_populations(clients, key, balanced=False)


def _two_populations(clients: int, key: Key, balanced: bool) -> Data:
    most = MOST_CLIENTS
    taken = clients * SAMPLES * DIMENSIONS * 4 / 1e9
    require(
        (
            clients <= most,
            f"the two populations have {SAMPLES} samples per client, which take {taken:,.1f} GB for "
            f"{clients:,} clients: use at most {most:,} clients, or another data set",
        )
    )
    drawn = two_populations(clients, fold(key, "two-populations"), balanced=balanced)
    samples = Samples(torch.from_numpy(drawn.x), torch.from_numpy(drawn.y), drawn.client)
    # A client's samples are independent draws, so the last fifth can be the test set.
    test = np.arange(len(samples)) % SAMPLES >= round((1 - TEST_SHARE) * SAMPLES)
    train, held = samples.take(np.flatnonzero(~test)), samples.take(np.flatnonzero(test))
    return Data("two-populations", train, held, 2, split="natural", model="logistic")


DATASETS: dict[str, type[Source]] = {
    "breast-cancer": BreastCancer,
    "cifar-10": image_sets.Cifar10,
    "cifar-100": image_sets.Cifar100,
    "diabetes": Diabetes,
    "digits": Digits,
    "emnist-letters": image_sets.EmnistLetters,
    "fashion-mnist": image_sets.FashionMnist,
    "femnist": leaf.Femnist,
    "linnerud": Linnerud,
    "mnist": image_sets.Mnist,
    "shakespeare": leaf.Shakespeare,
    "shakespeare-pretrain": leaf.ShakespearePretrain,
    "shakespeare-roles": leaf.ShakespeareRoles,
    "svhn": image_sets.Svhn,
    "two-populations": TwoPopulations,
    "two-populations-literal": TwoPopulationsLiteral,
}
"""Data sets by their name on the command line."""
