"""MLflow: a run in the store that MLFLOW_TRACKING_URI names, in the experiment of MLFLOW_EXPERIMENT_NAME."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from gossamer.runs.trackers.base import PackageTracker, Status

EXPERIMENT = "gossamer"
"""The experiment if MLFLOW_EXPERIMENT_NAME is not set."""

ROUND = "round"
ENDS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
LONGEST = 500
"""Characters of a parameter that every store of MLflow accepts."""


class MLflow(PackageTracker):
    """Logs with ``mlflow.MlflowClient``, so that it does not touch a run that the user has opened."""

    package: ClassVar[str] = "mlflow"
    client: Any
    id: str
    last: int

    def start(self, about: Mapping[str, Any], id: str | None, folder: Path | None, first: int) -> str:
        """Create a run with the configuration as parameters, or continue one."""
        from mlflow import MlflowClient

        self.client, self.last = MlflowClient(), 0
        if id is None:
            self.id = self._new(about, folder)
        else:
            known = self.client.get_run(id).data.metrics
            self.id, self.last = id, int(known.get(ROUND, 0))
            self.client.update_run(id, status="RUNNING")
        return self.id

    def _new(self, about: Mapping[str, Any], folder: Path | None) -> str:
        from mlflow.entities import Param

        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self.client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self.client.create_experiment(experiment)
        run: str = self.client.create_run(number, run_name=folder.name if folder else None).info.run_id
        self.client.log_batch(run, params=[Param(_named(k), str(v)[:LONGEST]) for k, v in about.items()])
        return run

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log all numbers in one batch; a round that the run already has is left as it is."""
        if round > self.last:
            self._log({**numbers, ROUND: round}, round)
            self.last = round

    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.id, metrics=[Metric(_named(k), float(v), now, step) for k, v in numbers.items()])

    def finish(self, status: Status, summary: Mapping[str, Any]) -> None:
        """Log the numbers of the summary as ``final/...``, and end the run."""
        final = {f"final/{name}": value for name, value in summary.items() if not isinstance(value, str)}
        self._log(final, int(summary["rounds"]))
        self.client.set_terminated(self.id, ENDS[status])


def _named(name: str) -> str:
    """Return a name that MLflow accepts."""
    return re.sub(r"[^\w\-./ ]", "_", name)
