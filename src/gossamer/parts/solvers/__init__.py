"""Solvers: how a client trains its part of the model."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.core.solver import Gradient as Gradient
    from gossamer.core.solver import Hyperparams as Hyperparams
    from gossamer.core.solver import Loss as Loss
    from gossamer.core.solver import Solver as Solver
    from gossamer.parts.solvers.adam import Adam as Adam
    from gossamer.parts.solvers.personal import Ditto as Ditto
    from gossamer.parts.solvers.personal import PerFedAvg as PerFedAvg
    from gossamer.parts.solvers.personal import PFedMe as PFedMe
    from gossamer.parts.solvers.private import DPSGD as DPSGD
    from gossamer.parts.solvers.probes import GradientProbe as GradientProbe
    from gossamer.parts.solvers.probes import LossProbe as LossProbe
    from gossamer.parts.solvers.schedules import LR_SCHEDULES as LR_SCHEDULES
    from gossamer.parts.solvers.schedules import Constant as Constant
    from gossamer.parts.solvers.schedules import Cosine as Cosine
    from gossamer.parts.solvers.schedules import Exponential as Exponential
    from gossamer.parts.solvers.schedules import InBatches as InBatches
    from gossamer.parts.solvers.schedules import LRSchedule as LRSchedule
    from gossamer.parts.solvers.schedules import Steps as Steps
    from gossamer.parts.solvers.sgd import SGD as SGD
    from gossamer.parts.solvers.sgd import Descent as Descent
    from gossamer.parts.solvers.sgd import PlainDescent as PlainDescent
    from gossamer.parts.solvers.sparse import PruningSGD as PruningSGD
    from gossamer.parts.solvers.sparse import SnapshotSGD as SnapshotSGD
    from gossamer.parts.solvers.sparse import SparseSGD as SparseSGD
    from gossamer.parts.solvers.sparse import ThresholdSGD as ThresholdSGD
    from gossamer.parts.solvers.zeroth_order import KSeed as KSeed
    from gossamer.parts.solvers.zeroth_order import ScaledZerothOrder as ScaledZerothOrder
    from gossamer.parts.solvers.zeroth_order import ZerothOrder as ZerothOrder

SOLVERS: "Registry[type[Solver]]" = Registry(__name__, {"adam": "adam.Adam", "sgd": "sgd.SGD"})
"""Solvers by the name that the command line uses; those of other methods are set by their recipes."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, SOLVERS)
