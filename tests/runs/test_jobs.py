"""Jobs in processes of their own: what they return, what they may use, and how they end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gossamer import ConfigError
from gossamer.runs.jobs import Ended, Job, Local, shares, spread, visible_gpus
from helpers.inline import Inline

SCRIPT = """
import sys
from pathlib import Path

from gossamer.runs.jobs import Job, Local, spread
from test_jobs import sleep

with Local(1) as launcher:  # no guard of __main__: a worker imports no script
    list(spread([Job("one", sleep, (sys.argv[1],))], launcher))
"""


def double(number: int) -> Any:
    print("doubling", number)
    return 2 * number


def fail() -> None:
    raise OSError("No space left on device")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def about() -> Any:
    return os.getpid(), sorted(os.sched_getaffinity(0)), os.environ.get("CUDA_VISIBLE_DEVICES")


def sleep(file: str) -> None:
    try:
        new = Path(file + ".new")
        new.write_text(str(os.getpid()))
        new.replace(file)  # once the file is there, no interrupt is lost within its closing
        time.sleep(60)
    except KeyboardInterrupt:
        Path(file).write_text("interrupted")
        raise


def written(file: Path) -> str:
    """What a job writes to a file, once it has."""
    while not file.exists() or not file.read_text():
        time.sleep(0.02)
    return file.read_text()


def test_one_that_fails_or_dies_does_not_stop_the_others(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    jobs = [Job("a", double, (21,), log=log), Job("b", fail), Job("c", die), Job("d", about), Job("e", about)]
    with Local(2, gpus=["5", "7"], fresh=False) as launcher:
        ended = {each.job.name: each for each in spread(jobs, launcher)}
    assert (ended["a"].value, ended["a"].error) == (42, None)
    assert log.read_text() == "doubling 21\n"
    assert ended["b"].error == "OSError('No space left on device')"
    assert ended["c"].error == "its process was killed by signal 9: out of memory?"
    mine = sorted(os.sched_getaffinity(0))
    for name in ("d", "e"):
        pid, cores, gpu = ended[name].value
        assert pid != os.getpid()
        assert (cores, gpu) in [(list(share.cores), share.gpu) for share in shares(mine, 2, ["5", "7"])]
    assert sorted(os.sched_getaffinity(0)) == mine


def test_leaving_interrupts_what_runs(tmp_path: Path) -> None:
    def leave() -> None:
        with Local(1) as launcher:
            launcher.submit(Job("one", sleep, (str(tmp_path / "pid"),)))
            written(tmp_path / "pid")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert (tmp_path / "pid").read_text() == "interrupted"


def test_a_killed_parent_leaves_no_worker(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "script.py"), str(tmp_path / "pid")], env=env)
    worker = int(written(tmp_path / "pid"))
    os.kill(worker, 0)  # it is there
    parent.kill()
    parent.wait()
    while Path(f"/proc/{worker}").exists() and "Z" not in Path(f"/proc/{worker}/stat").read_text().split():
        time.sleep(0.02)  # the test ends when the worker does


def test_jobs_that_have_no_time_do_not_start() -> None:
    jobs = [Job(str(number), double, (number,)) for number in range(4)]
    assert [each.value for each in spread(jobs, Inline(2))] == [0, 2, 4, 6]
    assert list(spread(jobs, Inline(2), seconds=0)) == []
    late = Inline(1)
    found: list[Ended] = list(spread(jobs, late, seconds=0.05, tick=lambda: time.sleep(0.1)))
    assert [each.value for each in found] == [0]


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="jobs must be at least 1"):
        Local(0)
    with pytest.raises(ConfigError, match="torch finds no GPU"):
        visible_gpus()
