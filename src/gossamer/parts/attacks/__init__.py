"""Attacks of hostile clients, to test defences with. Only the simulator uses them; they are not part of a method."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.parts.attacks.base import Attack as Attack
    from gossamer.parts.attacks.base import Collusion as Collusion
    from gossamer.parts.attacks.base import DataAttack as DataAttack
    from gossamer.parts.attacks.base import Scene as Scene
    from gossamer.parts.attacks.base import Triggered as Triggered
    from gossamer.parts.attacks.base import UpdateAttack as UpdateAttack
    from gossamer.parts.attacks.on_data import Backdoor as Backdoor
    from gossamer.parts.attacks.on_data import LabelFlip as LabelFlip
    from gossamer.parts.attacks.on_updates import ClaimSamples as ClaimSamples
    from gossamer.parts.attacks.on_updates import InnerProduct as InnerProduct
    from gossamer.parts.attacks.on_updates import LittleIsEnough as LittleIsEnough
    from gossamer.parts.attacks.on_updates import Noise as Noise
    from gossamer.parts.attacks.on_updates import Scale as Scale
    from gossamer.parts.attacks.on_updates import SignFlip as SignFlip

ATTACKS: "Registry[type[Attack]]" = Registry(
    __name__,
    {
        "sign-flip": "on_updates.SignFlip",
        "scale": "on_updates.Scale",
        "noise": "on_updates.Noise",
        "claim-samples": "on_updates.ClaimSamples",
        "alie": "on_updates.LittleIsEnough",
        "inner-product": "on_updates.InnerProduct",
        "label-flip": "on_data.LabelFlip",
        "backdoor": "on_data.Backdoor",
    },
)
"""Attacks by the name that the command line uses."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, ATTACKS)
