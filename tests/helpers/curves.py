"""Read the data of a drawn line."""

from typing import Any

import numpy as np
import numpy.typing as npt


def xdata(axes: Any, line: int = 0) -> npt.NDArray[np.float64]:
    """The x-values of one line of the axes."""
    return np.asarray(axes.lines[line].get_xdata(), dtype=np.float64)


def ydata(axes: Any, line: int = 0) -> npt.NDArray[np.float64]:
    """The y-values of one line of the axes."""
    return np.asarray(axes.lines[line].get_ydata(), dtype=np.float64)


def extents(collection: Any, axis: int) -> list[tuple[float, float]]:
    """Return the smallest and the largest coordinate of each shape of a collection, along an axis."""
    corners = [np.asarray(path.vertices)[:, axis] for path in collection.get_paths()]
    return [(float(each.min()), float(each.max())) for each in corners]
