"""The term that determines the stability of sub-model training: the divergence between gradients of two clients.

From Deng, Qiao and Mahdavi, "On the convergence and stability of distributed sub-model training", Lemmas 12 and 13,
https://arxiv.org/abs/2511.06132. By Theorems 5 and 6, the distance between models of two data sets that differ in one
sample has two terms, up to a constant: the root of this divergence over sqrt(N n), and a term without masks.
``gossamer.analysis.stability`` measures the distance.

Assumption 8 states that gradients change with the weights at rate l; the proofs need that they change with the sample
at that rate. Theorem 5 prints d Psi instead of the root of Lemma 12. It prints p_i + p_j - p_i p_j, where the proof has
twice the product: two full masks never differ. Theorem 6 prints d_m where the proof gives its root. Lemma 13 loses a
factor 2 in its last line.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from gossamer.core.errors import require


@dataclass(frozen=True)
class DataSpread:
    """Heterogeneity of the clients' data, and bounds on single entries (Assumptions 8 and 9).

    Args:
        distance: W_1, the maximum Wasserstein distance between two clients' data
        lipschitz: l, the Lipschitz constant of a gradient entry in the sample
        gradient: G_inf, the maximum entry of a gradient
        weight: W_inf, the maximum entry of the weights
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
    """Lemma 12: bound on the expected squared difference of two clients' masked gradients, for random masks."""
    steep = data.gradient**2 + (smoothness * data.weight) ** 2
    moved = (data.lipschitz * data.distance) ** 2
    pairs = [(p, p + q - 2 * p * q) for p in shares for q in shares]
    return max(2 * p * entries * moved + 4 * entries * differ * steep for p, differ in pairs)


def rolling_divergence(largest: int, farthest: int, smoothness: float, data: DataSpread) -> float:
    """Lemma 13: the same bound for windows, from d_m and D_max."""
    steep = data.gradient**2 + (smoothness * data.weight) ** 2
    return 2 * largest * (data.lipschitz * data.distance) ** 2 + 4 * farthest * steep
