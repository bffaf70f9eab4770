"""Download of sums: a client computes the model from the initial one, and from K numbers.

Qin et al., https://arxiv.org/abs/2312.06353 (FedKSeed): with 4096 directions, a download takes 16 kB, whatever the size
of the model and whatever rounds a client has missed. All machines build the initial model from the same seed or file. A
download has a checksum of the model, and a client whose model differs refuses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from gossamer.core import wire
from gossamer.core.downlink import BoundDownlink, Downlink, Received
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.random import Key
from gossamer.core.sections import SectionArrays
from gossamer.core.types import Clock, Layout, Params, Payload, State
from gossamer.core.untrusted import check_names
from gossamer.core.wire import expect, finite
from gossamer.parts.servers.sums import SUMS, SeedModel, SeedSums

if TYPE_CHECKING:
    from gossamer.core.bound import BoundExchange

CHECKSUM = "checksum"


@dataclass(frozen=True)
class SendSums(Downlink):
    """Sends the sums of ``SeedSums`` in place of the model."""

    known: ClassVar[bool] = True

    def bind(self, exchange: "BoundExchange") -> "BoundSendSums":
        """Return the downlink of an exchange whose server is ``SeedSums``."""
        server = exchange.server
        if not isinstance(server, SeedSums) or server.model is None:
            raise ConfigError("SendSums needs the server SeedSums, and KSeed() with Seeds(candidates)")
        return BoundSendSums(server.model)


class BoundSendSums(BoundDownlink):
    """Sends sums, for one network.

    Args:
        model: the model of some sums
    """

    name = "SendSums()"

    def __init__(self, model: SeedModel) -> None:
        self.model = model

    def write(
        self, state: State, clock: Clock, held: int, models: Sequence[Params], layout: Layout, key: Key
    ) -> Payload:
        """Return the sums, and a checksum of the model."""
        return {SUMS: state[SUMS], CHECKSUM: _checksum(layout, models[0])}

    def read(
        self, payload: Payload, unread: SectionArrays, layout: Layout, key: Key, clock: Clock, state: State
    ) -> Received:
        """Return the model of the sums."""
        check_names(payload, {SUMS, CHECKSUM})
        sums = finite(expect(payload, SUMS, layout.dtype, self.model.size), SUMS)
        wanted = expect(payload, CHECKSUM, torch.int64, 1)
        model = self.model.at(sums)
        if not torch.equal(_checksum(layout, model), wanted.cpu()):
            raise PayloadError("the model of the sums is not that of the server: the initial models may differ")
        return Received((model,))


def _checksum(layout: Layout, model: Params) -> torch.Tensor:
    return torch.tensor([wire.checksum(wire.array_bytes(layout.flatten(model)))])
