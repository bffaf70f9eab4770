"""Views: which entries of the model a client holds in a round."""

from gossamer.views.base import BoundView, NestedView, View, ViewMemory
from gossamer.views.bernoulli import Bernoulli
from gossamer.views.channels import Channels
from gossamer.views.full import Full
from gossamer.views.magnitude import Magnitude
from gossamer.views.personal import Personal
from gossamer.views.pruned import Pruned
from gossamer.views.pruned_channels import PrunedChannels
from gossamer.views.windows import Windows

__all__ = [
    "Bernoulli",
    "BoundView",
    "Channels",
    "Full",
    "Magnitude",
    "NestedView",
    "Personal",
    "Pruned",
    "PrunedChannels",
    "View",
    "ViewMemory",
    "Windows",
]
