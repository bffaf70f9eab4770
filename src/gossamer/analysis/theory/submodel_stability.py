"""What the stability of sub-model training depends on: how much the gradients of two clients can differ.

From Deng, Qiao and Mahdavi, "On the convergence and stability of distributed sub-model training", Lemmas 12 and 13.
Theorems 5 and 6 say that models of two data sets that differ in one sample are no farther apart than, up to a constant,
the root of this over sqrt(N n), and a term without masks in it. What is measured: ``gossamer.analysis.stability``.

The paper's Assumption 8 has gradients that change with the weights at rate l; its proofs need that they change so with
the sample. Theorem 5 prints d Psi where the root of Lemma 12 is meant, and p_i + p_j - p_i p_j where the proof has
twice the product: two masks that hold everything never differ. Theorem 6 prints d_m where the proof gives its root, and
Lemma 13 loses a factor 2 in its last line.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from gossamer.core.errors import require


@dataclass(frozen=True)
class DataSpread:
    """How different clients' data is, and how steep one entry can be (Assumptions 8 and 9).

    Args:
        distance: W_1, the largest Wasserstein distance of two clients' data
        lipschitz: l, by how much an entry of the gradient changes with a sample
        gradient: G_inf, the largest entry of a gradient
        weight: W_inf, the largest entry of the weights
    """

    distance: float
    lipschitz: float
    gradient: float
    weight: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            require((value >= 0, f"DataSpread.{field.name} must not be negative, got {value}"))


def random_divergence(shares: Sequence[float], entries: int, smoothness: float, data: DataSpread) -> float:
    """Lemma 12: masked gradients of two clients differ by at most this, squared, on average over random masks."""
    steep = data.gradient**2 + (smoothness * data.weight) ** 2
    moved = (data.lipschitz * data.distance) ** 2
    pairs = [(p, p + q - 2 * p * q) for p in shares for q in shares]
    return max(2 * p * entries * moved + 4 * entries * differ * steep for p, differ in pairs)


def rolling_divergence(largest: int, farthest: int, smoothness: float, data: DataSpread) -> float:
    """Lemma 13: the same for windows, from d_m and D_max."""
    steep = data.gradient**2 + (smoothness * data.weight) ** 2
    return 2 * largest * (data.lipschitz * data.distance) ** 2 + 4 * farthest * steep
