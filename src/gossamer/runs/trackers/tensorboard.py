"""TensorBoard: event files in ``RUN/tensorboard``, or in ``runs/tensorboard`` if the run is kept in memory."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gossamer.runs.trackers.base import PackageTracker, Status

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(PackageTracker):
    """Writes event files with ``torch.utils.tensorboard``."""

    package: ClassVar[str] = "tensorboard"
    writer: "SummaryWriter"
    about: Mapping[str, Any]

    def start(self, about: Mapping[str, Any], id: str | None, folder: Path | None, first: int) -> str:
        """Open an event file; earlier events of the rounds from ``first`` on are discarded when they are read."""
        from torch.utils.tensorboard import SummaryWriter

        aside = Path("runs") / self.package / time.strftime("%Y%m%d-%H%M%S")
        path = folder / self.package if folder else _unused(aside)
        self.about, self.writer = about, SummaryWriter(str(path), purge_step=first if id else None)
        self.writer.add_text("run", f"```json\n{json.dumps(dict(about), indent=1)}\n```", first - 1)
        return str(path)

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write one scalar per number, and flush."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()

    def finish(self, status: Status, summary: Mapping[str, Any]) -> None:
        """Write the hyperparameters with the summary's numbers, and the status; close the file."""
        from torch.utils.tensorboard.summary import hparams

        final = {f"final/{name}": float(value) for name, value in summary.items() if not isinstance(value, str)}
        events: Any = self.writer._get_file_writer()  # add_hparams would write to another folder
        for event in hparams(dict(self.about), final):
            events.add_summary(event)
        for name, value in final.items():
            self.writer.add_scalar(name, value, int(summary["rounds"]))
        self.writer.add_text("status", status, int(summary["rounds"]))
        self.writer.close()


def _unused(path: Path) -> Path:
    """Return a path that does not exist: the same second may start two runs."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found
