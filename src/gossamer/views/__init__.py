"""Views: which entries of the model a client holds in a round."""

from gossamer.views.base import Evidence, Network, View
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
    "Channels",
    "Evidence",
    "Full",
    "Magnitude",
    "Network",
    "Personal",
    "Pruned",
    "PrunedChannels",
    "View",
    "Windows",
]
