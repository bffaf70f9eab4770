"""Commands that only look at runs and methods start without torch, NumPy, matplotlib and Flower."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer import fedavg, perm, simulate
from gossamer.cli import COMMANDS
from gossamer.methods.registry import ENTRIES
from gossamer.testing import tiny_task

HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "jinja2", "flwr", "safetensors")

STUB = """
import sys


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {heavy!r}:
            raise AssertionError(f"{{name}} was imported")
        return None


sys.meta_path.insert(0, Refuse())
from gossamer.cli import main

sys.exit(main({words!r}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "done"
    simulate(fedavg(epochs=1), tiny_task(), rounds=2, out=path)
    return path


def started(*words: str, heavy: tuple[str, ...] = HEAVY) -> str:
    """What a command prints in a process in which importing a heavy package is an error."""
    code = STUB.format(heavy=heavy, words=list(words))
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_help_lists_every_command() -> None:
    said = started("--help")
    assert [name for name, command in COMMANDS.items() if f"\n  {name}" not in said] == []
    assert [command.help for command in COMMANDS.values() if command.help not in said] == []


def test_methods_are_listed_by_family_with_their_papers() -> None:
    said = started("methods")
    lines = said.splitlines()
    for name, entry in ENTRIES.items():
        (line,) = (line for line in lines if line.split()[:1] == [name])
        assert entry.link in line
        headings = [line for line in lines[: lines.index(line)] if line.isupper()]
        assert headings[-1] == entry.family.upper()


def test_runs_are_listed(run: Path) -> None:
    assert "finished" in started("runs", str(run.parent))


def test_a_run_is_shown(run: Path) -> None:
    assert f"{run} (finished)" in started("show", str(run))
    assert json.loads(started("show", str(run), "--json"))["rounds"] == 2


def test_groups_of_clients_are_read_without_torch(tmp_path: Path) -> None:
    simulate(perm(warmup=0, steps=1), tiny_task(), rounds=1, out=tmp_path / "run")
    shown = json.loads(started("show", str(tmp_path / "run"), "--json", heavy=("torch", "matplotlib")))
    assert shown["figures"]["mixing"]["groups"]


def test_help_of_looking_commands(run: Path) -> None:
    for name in ("runs", "show", "compare", "methods"):
        code = STUB.format(heavy=HEAVY, words=[name, "--help"])
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.startswith(f"usage: gossamer {name}")) == (0, True), done.stderr


def test_every_command_has_its_function() -> None:
    from importlib import import_module

    for command in COMMANDS.values():
        assert callable(getattr(import_module(f"gossamer.cli.{command.module}"), command.function))
