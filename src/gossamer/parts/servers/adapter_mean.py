"""Mean of low-rank adapters, with the error of averaging their two matrices separately.

The weight of an adapted layer is W + scale B A. The mean of the clients' weights needs the mean of the products, but
the server averages A and B, and the product of the means is another matrix. After each round, the record has

    adapter_error = |sum_k p_k B_k A_k - B A|_F / |sum_k p_k B_k A_k - B_0 A_0|_F        0 / 0 is 0

over all adapted layers together. B_k and A_k are the matrices of client k as the server decodes them, of the client's
rank; B and A are those after the round, B_0 and A_0 those before it, and the weights p_k sum to 1. So the error is
relative to the step that exact averaging would take. It is 0 where A is frozen (FFA-LoRA), and
that of rounding where one client takes part. ``gossamer.parts.servers.stacking`` has no such error.

The model is that of ``Mean``, bit for bit. The products are kept as their factors, and as matrices where these are
smaller. So the memory is that of the round's decoded uploads in float64, at most that of the adapted weights. With R
ranks of all clients together, a norm takes about 2 R^2 (inputs + outputs) operations per layer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from gossamer.core.exchange import Arrival, Assignment
from gossamer.core.server import MeasuredServer
from gossamer.core.types import Params, State
from gossamer.parts.adapters.lora import pairs, rank_dimension
from gossamer.parts.servers.mean import Mean, Sum


@dataclass
class Product:
    """A sum of products of matrices in float64, as its factors."""

    left: Tensor
    right: Tensor

    def plus(self, left: Tensor, right: Tensor) -> "Product":
        """Return the sum with one more product. Factors that are larger than the product are multiplied."""
        lefts, rights = torch.cat([self.left, left.double()], 1), torch.cat([self.right, right.double()])
        (outputs, ranks), inputs = lefts.shape, rights.shape[1]
        if ranks <= min(outputs, inputs):
            return Product(lefts, rights)
        whole = lefts @ rights
        ones = torch.eye(min(outputs, inputs), dtype=whole.dtype, device=whole.device)
        return Product(ones, whole) if outputs < inputs else Product(whole, ones)

    def norm(self) -> float:
        """Return the Frobenius norm: that of the product of the triangular factors, which are small."""
        left, right = torch.linalg.qr(self.left, mode="r").R, torch.linalg.qr(self.right.T, mode="r").R
        return float(torch.linalg.matrix_norm(left @ right.T))


@dataclass
class AdapterSum(Sum):
    """Running weighted sum of updates, and of the clients' products by layer: the names of A and B."""

    products: dict[tuple[str, str], Product] = field(default_factory=dict)
    measured: float = 0.0


@dataclass(frozen=True)
class AdapterMean(Mean, MeasuredServer):
    """Weighted mean of client updates, with the error of averaging the two matrices of adapters separately."""

    replays: ClassVar[bool] = True
    folds_sums: ClassVar[bool] = True
    mean_only: ClassVar[bool] = True

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> AdapterSum:
        """Return an empty sum in the shape of the global model."""
        return AdapterSum(**vars(super().begin(state, assigned)))

    def fold(self, acc: Sum, arrival: Arrival) -> Sum:
        """Add one client's update, multiplied by its weight, and its products."""
        weight = self.weigh(arrival)
        if isinstance(acc, AdapterSum):
            change, start = arrival.change(acc.vector.device), arrival.part.take(arrival.model or acc.like)
            for a, b in pairs(acc.like):
                left, right = start[b] + change[b], start[a] + change[a]
                acc.products[a, b] = _joined(acc.products.get((a, b)), weight * left.flatten(1), right.flatten(1))
            acc.measured += weight
        return self.add(acc, arrival, weight)

    def measure(self, state: State, acc: Sum) -> dict[str, Any]:
        """Return the relative error of averaging A and B separately.

        Return nothing where the server got only sums of updates, or no update, or where there is no adapter.
        """
        adapted = any(rank_dimension(name) is not None for name in acc.like)
        if not (isinstance(acc, AdapterSum) and adapted and 0 < acc.weight == acc.measured):
            return {}
        error = self._distance(acc, state["params"])
        return {"adapter_error": error / self._distance(acc, acc.like) if error else 0.0}

    def _distance(self, acc: AdapterSum, model: Params) -> float:
        """Return the norm of the mean product less the product of a model's matrices, over all layers."""
        norms = [
            Product(product.left / acc.weight, product.right).plus(-model[b].flatten(1), model[a].flatten(1)).norm()
            for (a, b), product in acc.products.items()
        ]
        return math.hypot(*norms)


def _joined(before: Product | None, left: Tensor, right: Tensor) -> Product:
    return before.plus(left, right) if before else Product(left.double(), right.double())
