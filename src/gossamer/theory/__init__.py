"""What is proved, as functions: of FedMRN (``masking``) and of sub-model training (``submodels``, and its bounds)."""

from gossamer.theory.masking import (
    Setting,
    masking_error,
    measured_error,
    noise_magnitude,
    nonconvex_bound,
    nonconvex_rate,
    progressive_factor,
    progressive_factor_by_entry,
    strongly_convex_bound,
    strongly_convex_rate,
)
from gossamer.theory.submodel_bounds import (
    SubmodelSetting,
    Terms,
    excess_risk,
    random_distance,
    random_distance_printed,
    random_rate,
    random_stationarity,
    residual,
    rolling_distance,
    rolling_rate,
    rolling_stationarity,
    shift,
)
from gossamer.theory.submodel_masks import Masks
from gossamer.theory.submodel_stability import DataSpread, random_divergence, rolling_divergence
from gossamer.theory.submodels import Loss, Masked, project, task_losses

__all__ = [
    "DataSpread",
    "Loss",
    "Masked",
    "Masks",
    "Setting",
    "SubmodelSetting",
    "Terms",
    "excess_risk",
    "masking_error",
    "measured_error",
    "noise_magnitude",
    "nonconvex_bound",
    "nonconvex_rate",
    "progressive_factor",
    "progressive_factor_by_entry",
    "project",
    "random_distance",
    "random_distance_printed",
    "random_divergence",
    "random_rate",
    "random_stationarity",
    "residual",
    "rolling_distance",
    "rolling_divergence",
    "rolling_rate",
    "rolling_stationarity",
    "shift",
    "strongly_convex_bound",
    "strongly_convex_rate",
    "task_losses",
]
