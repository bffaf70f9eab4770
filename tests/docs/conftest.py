"""The site is built once in a session of tests, however many processes share it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from helpers.paths import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder with the pages, as ``make docs`` builds them."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    folder, log = shared / "site", shared / "site.log"
    with FileLock(shared / "site.lock"):
        if not log.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
            env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
            log.write_text(f"{done.returncode}\n{done.stderr}")
    code, _, said = log.read_text().partition("\n")
    assert code == "0", said
    return folder
