"""What server and nodes must agree on before they work together."""

import hashlib

from gossamer.method import Method
from gossamer.objective import Objective
from gossamer.views import Full


def fingerprint(method: Method, objective: Objective) -> dict[str, str]:
    """The method, and the names and shapes of the model's tensors, each as a digest."""
    layout = objective.layout
    return {"method": _digest(method.describe()), "model": _digest((layout.shapes, layout.dtype))}


def whole(method: Method) -> Method:
    """The method by which a model is sent to be evaluated: all of it, whatever a client trains."""
    return method.with_parts(view=Full())


def _digest(thing: object) -> str:
    return hashlib.sha256(repr(thing).encode()).hexdigest()
