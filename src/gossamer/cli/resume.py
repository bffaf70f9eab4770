"""The command ``resume``."""

from pathlib import Path

from gossamer.cli.build import one_method, whole_task
from gossamer.cli.common import open_run, warn
from gossamer.cli.flags import value
from gossamer.cli.parser import Parser
from gossamer.cli.rebuild import reopened
from gossamer.cli.run import go
from gossamer.core.errors import Mistakes
from gossamer.engines.control import Until

CONTROL = {"rounds": int, "until": Until, "patience": int}
"""The options that a run may change when it is continued, and their types."""


def resume(words: list[str]) -> int:
    """``gossamer resume RUN [flags]``."""
    asked = _parser().parse_args(words)
    path, mistakes = Path(asked.run), Mistakes()
    about = mistakes.attempt(open_run, path)
    given = {name: text for name in CONTROL if (text := getattr(asked, name)) is not None}
    control = {name: mistakes.attempt(value, f"--{name}", text, CONTROL[name]) for name, text in given.items()}
    method = mistakes.attempt(one_method, asked.method) if asked.method else None
    task = mistakes.attempt(whole_task, asked.task) if asked.task else None
    mistakes.settle()
    assert about is not None  # or there were mistakes
    if "deployment" in about:
        from gossamer.cli import deploy  # Flower is an extra

        return deploy.resume(path, about, control)
    simulation = reopened(path, about, method, task, warn)
    return go(simulation, simulation.reopen(path, **control))


def _parser() -> Parser:
    about = "Continue an interrupted run, or give a finished run more rounds."
    parser = Parser(prog="gossamer resume", description=about)
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("--rounds", metavar="R", help="new number of rounds; finished rounds stay as they are")
    parser.add_argument("--until", metavar="METRIC=X", help="new target that ends the run")
    parser.add_argument("--patience", metavar="N", help="new number of evaluations without improvement")
    parser.add_argument("--method", metavar="FILE.py:NAME", help="the method of a run from Python")
    parser.add_argument("--task", metavar="FILE.py:NAME", help="the task of a run from Python")
    return parser
