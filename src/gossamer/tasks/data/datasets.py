"""Data sets by name. To add one, write a small dataclass with a ``load`` method, and list it in ``DATASETS``.

A data set is written as a spec: ``cifar-10``, or ``cifar-10:norm=imagenet,augment=no``. Its fields are its options. The
loaded data has the complete spec as its name, so that a resumed run loads the same data.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from gossamer.core import specs
from gossamer.core.errors import require
from gossamer.core.extras import need
from gossamer.core.random import Key, fold, permutation
from gossamer.core.random import key as new_key
from gossamer.tasks.data import image_sets, leaf, plays, synthetic, tabular
from gossamer.tasks.data.partition import Index
from gossamer.tasks.data.samples import Data, Samples


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
        train, test = hold_out(samples.labels, tabular.TEST_SHARE, fold(new_key(0), "digits", "test"))
        return Data("digits", samples.take(train), samples.take(test), 10, split="dirichlet:0.3", model="mlp")


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
    most = synthetic.MOST_CLIENTS
    taken = clients * synthetic.SAMPLES * synthetic.DIMENSIONS * 4 / 1e9
    require(
        (
            clients <= most,
            f"the two populations have {synthetic.SAMPLES} samples per client, which take {taken:,.1f} GB for "
            f"{clients:,} clients: use at most {most:,} clients, or another data set",
        )
    )
    drawn = synthetic.two_populations(clients, fold(key, "two-populations"), balanced=balanced)
    samples = Samples(torch.from_numpy(drawn.x), torch.from_numpy(drawn.y), drawn.client)
    # A client's samples are independent draws, so the last fifth can be the test set.
    test = np.arange(len(samples)) % synthetic.SAMPLES >= round((1 - tabular.TEST_SHARE) * synthetic.SAMPLES)
    train, held = samples.take(np.flatnonzero(~test)), samples.take(np.flatnonzero(test))
    return Data("two-populations", train, held, 2, split="natural", model="logistic")


DATASETS: dict[str, type[Source]] = {
    "breast-cancer": tabular.BreastCancer,
    "cifar-10": image_sets.Cifar10,
    "cifar-100": image_sets.Cifar100,
    "diabetes": tabular.Diabetes,
    "digits": Digits,
    "emnist-letters": image_sets.EmnistLetters,
    "fashion-mnist": image_sets.FashionMnist,
    "femnist": leaf.Femnist,
    "linnerud": tabular.Linnerud,
    "mnist": image_sets.Mnist,
    "shakespeare": leaf.Shakespeare,
    "shakespeare-pretrain": plays.ShakespearePretrain,
    "shakespeare-roles": plays.ShakespeareRoles,
    "svhn": image_sets.Svhn,
    "two-populations": TwoPopulations,
    "two-populations-literal": TwoPopulationsLiteral,
}
"""Data sets by their name on the command line."""
