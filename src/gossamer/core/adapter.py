"""Adapter interface: train few tensors of a network, or few tensors beside it.

An adapter changes the network before a run: it freezes parameters, and adds trainable ones. Frozen parameters are not
exchanged, because all machines build the network from the same seed and the same initial weights. So only the tensors
of the adapter travel, and every view, solver, codec and server works on them as on any other model.

A complete adapter that trains the biases alone (BitFit, https://arxiv.org/abs/2106.10199):

    @dataclass(frozen=True)
    class Biases(Adapter):
        def adapt(self, network):
            for name, parameter in network.named_parameters():
                parameter.requires_grad_(name.endswith("bias"))
            return network
"""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from gossamer.core.errors import ConfigError
from gossamer.core.fields import CheckedFields


class Adapter(CheckedFields, ABC):
    """Changes a network so that few tensors are trained."""

    @abstractmethod
    def adapt(self, network: nn.Module) -> nn.Module:
        """Return the network to train. May modify and return ``network``.

        The network must compute the same as before, and initial weights are already in it. New tensors are drawn from
        torch's generator, which is seeded. Raises ``ConfigError`` if there is nothing to adapt.
        """

    def merge(self, network: nn.Module) -> nn.Module:
        """Return a network of the original form that computes the same as ``network``, an adapted one.

        Called for the result of a run and for exports. May modify and return ``network``. By default, it is returned
        as it is.
        """
        return network

    def to_peft(self, network: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the adapter of an adapted network as PEFT stores it: its tensors and its configuration.

        Called for exports. Raises ``ConfigError`` if PEFT has no such adapter, as by default.
        """
        raise ConfigError(f"{self!r} has no form that PEFT can read: export the merged model instead")
