"""A partition in which labels go with the kind of device: what a slow device knows, fast devices hardly know."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gossamer.core.random import Key
from gossamer.tasks.data.partition import Index
from gossamer.tasks.data.partitioners import Reads, shuffled_by_class

BY_DEVICE = "by-device:"
"""The beginning of the text of such a partition in a cell; the share follows."""


@dataclass(frozen=True)
class ByDevice:
    """A share of each class goes to one kind of device, the rest evenly to all clients.

    A fleet with as many kinds as classes, each with as many clients, gives client c the kind c modulo classes. The
    share of class k goes to the clients of kind k.

    Args:
        share: the share of a class that goes to one kind
        min_samples: minimum number of samples per client
    """

    reads: ClassVar[Reads] = "classes"
    share: float
    min_samples: int = 1

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Return the owner of each sample."""
        index, start = shuffled_by_class(labels, classes, key)
        owner = np.empty(len(labels), dtype=np.int64)
        everybody = np.arange(clients)
        for label in range(classes):
            mine = index[start[label] : start[label + 1]]
            own = everybody[everybody % classes == label]
            count = round(self.share * len(mine))
            owner[mine[:count]] = own[np.arange(count) % len(own)]
            owner[mine[count:]] = everybody[(label * clients // classes + np.arange(len(mine) - count)) % clients]
        return owner
