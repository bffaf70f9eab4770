"""What is proved, as functions.

Of FedMRN (``masking``), of sub-model training (``submodels``, and its bounds), of PERM (``mixtures``), and of
training over links that lose messages (``wireless``, ``heard``).
"""

from gossamer.theory.heard import absence, heard_mean, participation, participation_printed
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
from gossamer.theory.mixtures import Mixture, step_size
from gossamer.theory.smooth import project
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
from gossamer.theory.submodels import Loss, Masked, task_losses
from gossamer.theory.wireless import CORRECTIONS, WirelessSetting, gradient_bound, reconstruction_error

__all__ = [
    "CORRECTIONS",
    "DataSpread",
    "Loss",
    "Masked",
    "Masks",
    "Mixture",
    "Setting",
    "SubmodelSetting",
    "Terms",
    "WirelessSetting",
    "absence",
    "excess_risk",
    "gradient_bound",
    "heard_mean",
    "masking_error",
    "measured_error",
    "noise_magnitude",
    "nonconvex_bound",
    "nonconvex_rate",
    "participation",
    "participation_printed",
    "progressive_factor",
    "progressive_factor_by_entry",
    "project",
    "random_distance",
    "random_distance_printed",
    "random_divergence",
    "random_rate",
    "random_stationarity",
    "reconstruction_error",
    "residual",
    "rolling_distance",
    "rolling_divergence",
    "rolling_rate",
    "rolling_stationarity",
    "shift",
    "step_size",
    "strongly_convex_bound",
    "strongly_convex_rate",
    "task_losses",
]
