"""Forms: what server and clients hold, and the network's tensors that follow from it.

Mostly they hold the network's own tensors. But they may hold something else of the same shapes, such as scores from
which masks over frozen weights are drawn, and train that.
"""

from gossamer.forms.base import Form, Weights
from gossamer.forms.supermask import Supermask

__all__ = ["Form", "Supermask", "Weights"]
