"""What server and nodes must agree on before they work together."""

import hashlib

from gossamer.method import Method
from gossamer.objective import Objective


def fingerprint(method: Method, objective: Objective) -> dict[str, str]:
    """The method, and the names and shapes of the model's tensors, each as a digest."""
    layout = objective.layout
    return {"method": _digest(method.describe()), "model": _digest((layout.shapes, layout.dtype))}


def _digest(thing: object) -> str:
    return hashlib.sha256(repr(thing).encode()).hexdigest()
