"""Workloads, data and partitions for all systems. NumPy is the only dependency: each system has its own libraries.

| | W1 | W2 | W3 |
|---|---|---|---|
| data | 100 clients with 600 images each, IID | the same | 10,000 clients with 60 each (images used ten times) |
| network | MLP 784-200-200-10 | four convolutions with group norm (`cnn-gn`) | W1's |
| round | 10 clients, 5 epochs, batch 20 | 10 clients, 2 epochs, batch 64 | 10, 100 or 1,000 clients, as W1 |

SGD with learning rate 0.05 throughout. ``w2-2`` is W2 with 2 clients per round, for a quick test. ``bert`` is a BERT of
four layers with dropout, from ``transformers``: 8 clients with 64 random texts of 64 tokens each, and two classes.
``files`` reads 100,000 random images from PNG files, one file each: 1,000 clients with 100 files, 20 per round, one
epoch, batch 20, W1's network. ``held`` is the same with images in memory. ``registered`` is W3 with 100,000 clients.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FILE = "fashion_mnist.npz"
MEAN, SPREAD = 0.2860, 0.3530
TRAIN, TEST, SIDE, CLASSES = 60_000, 10_000, 28, 10
VOCABULARY, TOKENS, KINDS = 1_000, 64, 2

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Workload:
    """One federated training job."""

    net: str
    clients: int
    cohort: int
    shard: int
    epochs: int
    batch: int
    lr: float = 0.05
    files: bool = False

    def describe(self) -> str:
        """Describe the job in one line."""
        return (
            f"{self.net}, {self.clients:,} clients of {self.shard}, {self.cohort:,} per round, "
            f"{self.epochs} epochs of batches of {self.batch}"
        )

    @property
    def samples(self) -> int:
        """Number of training samples."""
        return self.clients * self.shard if self.net == "bert" or self.files else TRAIN

    def shards(self) -> Array:
        """Return indices of samples, [clients, shard]: IID, with images reused until every client has a shard."""
        rng = np.random.default_rng(0)
        need = self.clients * self.shard
        order = np.concatenate([rng.permutation(self.samples) for _ in range(-(-need // self.samples))])
        return order[:need].reshape(self.clients, self.shard)


WORKLOADS = {
    "w1": Workload("mlp", clients=100, cohort=10, shard=600, epochs=5, batch=20),
    "w2": Workload("cnn-gn", clients=100, cohort=10, shard=600, epochs=2, batch=64),
    "w2-2": Workload("cnn-gn", clients=100, cohort=2, shard=600, epochs=2, batch=64),
    "w3-10": Workload("mlp", clients=10_000, cohort=10, shard=60, epochs=5, batch=20),
    "w3-100": Workload("mlp", clients=10_000, cohort=100, shard=60, epochs=5, batch=20),
    "w3-1000": Workload("mlp", clients=10_000, cohort=1_000, shard=60, epochs=5, batch=20),
    "registered": Workload("mlp", clients=100_000, cohort=1_000, shard=60, epochs=5, batch=20),
    "bert": Workload("bert", clients=8, cohort=8, shard=64, epochs=1, batch=16),
    "files": Workload("mlp", clients=1_000, cohort=20, shard=100, epochs=1, batch=20, files=True),
    "held": Workload("mlp", clients=1_000, cohort=20, shard=100, epochs=1, batch=20),
}


class Images(NamedTuple):
    """Inputs, images of shape [samples, 28, 28] or texts of shape [samples, 64], and their labels."""

    x: Array
    y: Array


def load(folder: str, work: Workload) -> tuple[Images, Images]:
    """Return training and test samples: Fashion-MNIST from ``folder``, standardized; random samples without it."""
    if work.net == "bert":
        return texts(work.samples, 1), texts(256, 2)
    path = Path(folder) / FILE
    if not path.is_file():
        return made_up(TRAIN, 1), made_up(TEST, 2)
    with np.load(path) as stored:
        return _images(stored["x_train"], stored["y_train"]), _images(stored["x_test"], stored["y_test"])


def origin(folder: str) -> str:
    """Describe the images of ``load``."""
    return "Fashion-MNIST" if (Path(folder) / FILE).is_file() else "random images of Fashion-MNIST's shape"


def made_up(n: int, seed: int) -> Images:
    """Return ten random patterns with noise: of the size of the real images, and learnable."""
    patterns = np.random.default_rng(0).standard_normal((CLASSES, SIDE, SIDE), dtype=np.float32)
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=n)
    x = rng.standard_normal((n, SIDE, SIDE), dtype=np.float32)
    x += 0.1 * patterns[labels]
    return Images(x, labels)


def texts(n: int, seed: int) -> Images:
    """Return random tokens; those of the second class come from the upper half of the vocabulary more often."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(KINDS, size=n)
    upper = rng.random((n, TOKENS)) < 0.4 + 0.2 * labels[:, None]
    return Images(rng.integers(VOCABULARY // 2, size=(n, TOKENS)) + upper * (VOCABULARY // 2), labels)


def _images(pixels: Array, labels: Array) -> Images:
    x = pixels.astype(np.float32)
    x /= 255  # in place, to keep the peak of memory low
    x -= MEAN
    x /= SPREAD
    return Images(x, labels.astype(np.int64))
