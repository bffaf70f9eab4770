"""Solvers: how a client trains its part of the model."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.core.solver import ForwardSolver as ForwardSolver
    from gossamer.core.solver import Gradient as Gradient
    from gossamer.core.solver import Hyperparams as Hyperparams
    from gossamer.core.solver import PerSampleSolver as PerSampleSolver
    from gossamer.core.solver import Solver as Solver
    from gossamer.core.solver import SolverMemory as SolverMemory
    from gossamer.parts.solvers.adam import Adam as Adam
    from gossamer.parts.solvers.batches import InBatches as InBatches
    from gossamer.parts.solvers.ditto import Ditto as Ditto
    from gossamer.parts.solvers.dp_sgd import DPSGD as DPSGD
    from gossamer.parts.solvers.gradient_probe import GradientProbe as GradientProbe
    from gossamer.parts.solvers.k_seed import KSeed as KSeed
    from gossamer.parts.solvers.per_fedavg import PerFedAvg as PerFedAvg
    from gossamer.parts.solvers.pfedme import PFedMe as PFedMe
    from gossamer.parts.solvers.pruning import PruningSGD as PruningSGD
    from gossamer.parts.solvers.scaled_zeroth_order import ScaledZerothOrder as ScaledZerothOrder
    from gossamer.parts.solvers.schedules import LR_SCHEDULES as LR_SCHEDULES
    from gossamer.parts.solvers.schedules import Constant as Constant
    from gossamer.parts.solvers.schedules import Cosine as Cosine
    from gossamer.parts.solvers.schedules import Exponential as Exponential
    from gossamer.parts.solvers.schedules import LRSchedule as LRSchedule
    from gossamer.parts.solvers.schedules import Steps as Steps
    from gossamer.parts.solvers.sgd import SGD as SGD
    from gossamer.parts.solvers.snapshot import SnapshotSGD as SnapshotSGD
    from gossamer.parts.solvers.sparse_sgd import SparseSGD as SparseSGD
    from gossamer.parts.solvers.threshold_sgd import ThresholdSGD as ThresholdSGD
    from gossamer.parts.solvers.zeroth_order import ZerothOrder as ZerothOrder

SOLVERS: "Registry[type[Solver]]" = Registry(__name__, {"adam": "adam.Adam", "sgd": "sgd.SGD"})
"""Solvers by the name that the command line uses; those of other methods are set by their recipes."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, SOLVERS)
