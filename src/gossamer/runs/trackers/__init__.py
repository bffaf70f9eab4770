"""Trackers: a run's configuration, numbers and summary, in TensorBoard, MLflow or Weights & Biases."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.runs.trackers.base import Tracker as Tracker
    from gossamer.runs.trackers.mlflow import MLflow as MLflow
    from gossamer.runs.trackers.tensorboard import TensorBoard as TensorBoard
    from gossamer.runs.trackers.tracking import Tracking as Tracking
    from gossamer.runs.trackers.wandb import Wandb as Wandb

TRACKERS: "Registry[type[Tracker]]" = Registry(
    __name__,
    {
        "tensorboard": "tensorboard.TensorBoard",
        "mlflow": "mlflow.MLflow",
        "wandb": "wandb.Wandb",
    },
)
"""Trackers by the name that the command line uses."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, TRACKERS)
