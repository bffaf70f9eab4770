"""Weights & Biases, configured by its own environment variables: WANDB_MODE, WANDB_PROJECT, WANDB_DIR and others."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from gossamer.runs.trackers.base import PackageTracker, Status

PROJECT = "gossamer"
"""The project if WANDB_PROJECT is not set."""

EXITS = {"finished": 0, "interrupted": 255, "failed": 1}
"""Exit codes by which W&B shows a run as finished, killed or failed."""


class Wandb(PackageTracker):
    """Logs to a run of its own, so that it does not touch a run that the user has opened."""

    package: ClassVar[str] = "wandb"
    advice: ClassVar[str] = ": run wandb login, or set WANDB_MODE=offline"
    run: Any

    def start(self, about: Mapping[str, Any], id: str | None, folder: Path | None, first: int) -> str:
        """Create a run with the configuration, or continue one."""
        import wandb

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name if folder else None,
            id=id,
            resume="allow" if id else None,
            config=dict(about),
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )
        found: str = self.run.id
        return found

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log all numbers at the step of this round; W&B ignores a step that it already has."""
        self.run.log(dict(numbers), step=round, commit=True)  # else it is kept until the next round

    def finish(self, status: Status, summary: Mapping[str, Any]) -> None:
        """Set the summary as ``final/...``, and end the run."""
        self.run.summary.update({f"final/{name}": value for name, value in summary.items()} | {"status": status})
        self.run.finish(exit_code=EXITS[status])
