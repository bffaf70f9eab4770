"""The models that simulated clients hold, one copy per version instead of one per client.

With a downlink that continues from an earlier version, each client keeps the model of its last download. In a
deployment this is part of the client state on the client's machine. In a simulation, thousands of clients hold only a
few versions. So the stored client state has the number of the version alone, and a model is added to the state when the
client gets a task. Entries of the server state that clients hold in addition to the model are kept with it.

All clients with the same version hold the same model. So a simulated client continues from the latest version that any
client has computed, and a step of the model is computed once, however many clients have missed it. Earlier versions are
dropped, except where tasks that are under way need them.
"""

from dataclasses import dataclass, field

import torch

from gossamer.core.downlink import HELD
from gossamer.core.types import State

ENTRY = "held_models"
"""The entry of a checkpoint."""


@dataclass
class HeldModels:
    """What clients hold, by version.

    Args:
        models: the model of a version as ``params``, and what else clients hold with it
    """

    models: dict[int, State] = field(default_factory=dict)

    @classmethod
    def of(cls, state: State) -> "HeldModels":
        """Return the models of a checkpoint, and remove them from its state."""
        return cls({int(version): model for version, model in state.pop(ENTRY, {}).items()})

    def state(self) -> State:
        """Return the entry of a checkpoint; empty without models."""
        return {ENTRY: {str(version): model for version, model in self.models.items()}} if self.models else {}

    def given(self, state: State, version: int) -> State:
        """Return a client state with the latest model that is known, from the client's version to ``version``."""
        held: State = state.get(HELD, {})
        found = [known for known in self.models if held and int(held["version"]) <= known <= version]
        if not found:
            return state
        latest = max(found)
        return {**state, HELD: {"version": torch.tensor(latest), **self.models[latest]}}

    def taken(self, state: State) -> State:
        """Return a client state without the model of its version, which is kept here."""
        held: State = state.get(HELD, {})
        if "params" not in held:
            return state
        self.models.setdefault(int(held["version"]), {name: held[name] for name in held if name != "version"})
        return {**state, HELD: {"version": held["version"]}}

    def drop(self, version: int) -> None:
        """Drop what no task from ``version`` on needs: all models before the latest one up to it."""
        first = max((known for known in self.models if known <= version), default=version)
        self.models = {known: model for known, model in self.models.items() if known >= first}
