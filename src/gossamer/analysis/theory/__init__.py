"""The papers' results as functions.

FedMRN (``masking``), sub-model training (``submodels``, ``submodel_masks``, ``submodel_bounds``,
``submodel_stability``), PERM (``mixtures``, ``mixture_bounds``), FedSpa (``personal_masks``, ``costs``), and training
over lossy links (``wireless``, ``participation``).
"""

from gossamer.analysis.theory.masking import (
    BoundSetting,
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
from gossamer.analysis.theory.mixture_bounds import (
    MixtureSetting,
    single_loop_gap,
    two_stage_gap,
    weights_error,
    weights_shift,
)
from gossamer.analysis.theory.mixtures import Mixture, step_size
from gossamer.analysis.theory.participation import absence, participation, participation_printed, received_mean
from gossamer.analysis.theory.personal_masks import PersonalSetting, mask_drift, personal_bound, personal_rate
from gossamer.analysis.theory.smooth import project
from gossamer.analysis.theory.submodel_bounds import (
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
from gossamer.analysis.theory.submodel_masks import Masks
from gossamer.analysis.theory.submodel_stability import (
    DataSpread,
    random_divergence,
    random_stability,
    random_stability_printed,
    rolling_divergence,
    rolling_stability,
    rolling_stability_printed,
)
from gossamer.analysis.theory.submodels import Loss, Masked, task_losses
from gossamer.analysis.theory.wireless import CORRECTIONS, WirelessSetting, gradient_bound, reconstruction_error

__all__ = [
    "CORRECTIONS",
    "BoundSetting",
    "DataSpread",
    "Loss",
    "Masked",
    "Masks",
    "Mixture",
    "MixtureSetting",
    "PersonalSetting",
    "SubmodelSetting",
    "Terms",
    "WirelessSetting",
    "absence",
    "excess_risk",
    "gradient_bound",
    "mask_drift",
    "masking_error",
    "measured_error",
    "noise_magnitude",
    "nonconvex_bound",
    "nonconvex_rate",
    "participation",
    "participation_printed",
    "personal_bound",
    "personal_rate",
    "progressive_factor",
    "progressive_factor_by_entry",
    "project",
    "random_distance",
    "random_distance_printed",
    "random_divergence",
    "random_rate",
    "random_stability",
    "random_stability_printed",
    "random_stationarity",
    "received_mean",
    "reconstruction_error",
    "residual",
    "rolling_distance",
    "rolling_divergence",
    "rolling_rate",
    "rolling_stability",
    "rolling_stability_printed",
    "rolling_stationarity",
    "shift",
    "single_loop_gap",
    "step_size",
    "strongly_convex_bound",
    "strongly_convex_rate",
    "task_losses",
    "two_stage_gap",
    "weights_error",
    "weights_shift",
]
