"""Attacks of hostile clients, to test defences with. Only the simulator uses them; they are not part of a method."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.parts.attacks.alie import LittleIsEnough as LittleIsEnough
    from gossamer.parts.attacks.backdoor import Backdoor as Backdoor
    from gossamer.parts.attacks.base import Attack as Attack
    from gossamer.parts.attacks.base import Collusion as Collusion
    from gossamer.parts.attacks.base import DataAttack as DataAttack
    from gossamer.parts.attacks.base import Scene as Scene
    from gossamer.parts.attacks.base import Triggered as Triggered
    from gossamer.parts.attacks.base import UpdateAttack as UpdateAttack
    from gossamer.parts.attacks.claim_samples import ClaimSamples as ClaimSamples
    from gossamer.parts.attacks.inner_product import InnerProduct as InnerProduct
    from gossamer.parts.attacks.label_flip import LabelFlip as LabelFlip
    from gossamer.parts.attacks.noise import Noise as Noise
    from gossamer.parts.attacks.scale import Scale as Scale
    from gossamer.parts.attacks.sign_flip import SignFlip as SignFlip

ATTACKS: "Registry[type[Attack]]" = Registry(
    __name__,
    {
        "sign-flip": "sign_flip.SignFlip",
        "scale": "scale.Scale",
        "noise": "noise.Noise",
        "claim-samples": "claim_samples.ClaimSamples",
        "alie": "alie.LittleIsEnough",
        "inner-product": "inner_product.InnerProduct",
        "label-flip": "label_flip.LabelFlip",
        "backdoor": "backdoor.Backdoor",
    },
)
"""Attacks by the name that the command line uses."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, ATTACKS)
