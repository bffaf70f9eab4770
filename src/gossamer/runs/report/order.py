"""An order of rows in which neighbours are similar, for heat maps."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def chain(rows: Floats) -> list[int]:
    """Return an order of rows in which neighbours are similar.

    It starts at the row farthest from the mean. Each row is followed by the nearest of the remaining ones. The distance
    is the sum of absolute differences.

    >>> chain(np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8]]))
    [1, 3, 2, 0]
    """
    apart = np.abs(rows[:, None] - rows).sum(axis=2)
    order = [int(np.abs(rows - rows.mean(axis=0)).sum(axis=1).argmax())] if len(rows) else []
    left = set(range(len(rows))) - set(order)
    while left:
        order.append(min(sorted(left), key=lambda index: float(apart[order[-1], index])))
        left.remove(order[-1])
    return order
