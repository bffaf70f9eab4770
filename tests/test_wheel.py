"""The wheel holds all files of the package, and works where it is installed, far from the repository."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from helpers.paths import ROOT

PACKAGE = ROOT / "src/gossamer"


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without the settings of this process, and return its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_", "PYTEST_"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources, so that nothing is written to the repository."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(PACKAGE, copy / "src/gossamer", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", copy / "dist", cwd=copy)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of a new environment with the wheel; dependencies come from this one, but not its gossamer."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    python = home / "bin/python"
    run(*(sys.executable, "-m", "pip", "--python", python), "install", "--no-deps", "--no-index", wheel, cwd=home)
    # a path in a .pth file is searched last, and .pth files there, such as that of an editable gossamer, are not read
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    wanted = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    assert {"gossamer/py.typed", "gossamer/cli/template/project.toml"} <= wanted
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == wanted


def test_commands_work_from_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "python", "-c", "import gossamer; print(gossamer.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    version = run(installed / "python", "-m", "gossamer", "--version", cwd=tmp_path)
    assert version == run(installed / "gossamer", "--version", cwd=tmp_path)
    assert "fedsgd" in run(installed / "gossamer", "methods", cwd=tmp_path)
    run(installed / "gossamer", "run", "fedsgd", "--rounds", "2", "--out", tmp_path / "run", cwd=tmp_path)
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "run/report.html").is_file()
