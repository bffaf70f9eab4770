"""The command ``resume``."""

from pathlib import Path

from gossamer.cli import user_files
from gossamer.cli.build import assemble
from gossamer.cli.common import open_run, warn
from gossamer.cli.parser import Parser
from gossamer.cli.request import Request
from gossamer.cli.run import go
from gossamer.core.errors import ConfigError
from gossamer.runs.folder import read_split
from gossamer.runs.trackers.tracking import Tracking
from gossamer.tasks.data.partition import Split


def resume(words: list[str]) -> int:
    """``gossamer resume RUN``."""
    parser = Parser(prog="gossamer resume", description="Continue an interrupted run.")
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    path = Path(parser.parse_args(words).run)
    about = open_run(path)
    if "deployment" in about:
        from gossamer.cli import deploy  # Flower is an extra

        return deploy.resume(path, about)
    if about["request"] is None:
        raise ConfigError(f"{path} was started from Python: run its script again with resume=True")
    user_files.check_unchanged(about["request"]["digests"])
    split = Split.from_tensors(read_split(path))
    simulation = assemble(Request.read(about["request"]), about["options"], split)
    simulation.tracking = Tracking.resumed(path, warn)
    return go(simulation, simulation.restore(path))
