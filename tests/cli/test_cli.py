"""The command line, as its users meet it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gossamer import METHODS, fedavg, simulate
from gossamer.cli import main
from gossamer.cli.flags import flags
from gossamer.cli.inspect import distinct
from gossamer.core.errors import RunError
from gossamer.engines.executors import EXECUTORS
from gossamer.engines.simulation import Simulation
from gossamer.runs.folder import RunFolder
from gossamer.runs.records import read_metrics
from gossamer.runs.report import page
from gossamer.runs.report.progress import Progress

RECIPES = '''
from functools import partial
from typing import Literal, Optional

from gossamer import SGD, Dense, Full, Mean, Method, compose, fedavg


def mine(
    lr: float, lambda_: float = 0.1, fast: bool = False, mode: Literal["up", "down"] = "up", top: Optional[int] = None,
    plain=3, bare=None,
):
    """My own recipe.

    lambda_: how strong the pull is
    """
    assert isinstance(plain, int) and isinstance(fast, bool)
    return compose(Full(), SGD(lr, epochs=plain, momentum=0.5 if fast else 0.0, proximal=lambda_), Dense(), Mean())


def number():
    return 3


def fails(x=1):
    return {}[x]


def clash(rounds: int = 3):
    return fedavg()


def strange(x: "Nowhere" = 1):
    return fedavg()


def bare():
    return fedavg(epochs=1)


gentle = partial(fedavg, lr=0.01)
thing = 3
'''

TASKS = """
import torch
from torch import nn

from gossamer import Task

def arrays(n, seed):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 0).long()

def task():
    return Task.of(lambda: nn.Linear(4, 2), arrays(60, 1), arrays(20, 2), clients=5)

def broken():
    return Task.of(lambda: nn.Linear(3, 2), arrays(60, 1), arrays(20, 2), clients=5)

def unbuilt():
    return Task.of(lambda: nn.Nothing(), arrays(60, 1), arrays(20, 2), clients=5)

made = task()
number = 3
"""

NEEDS = "gossamer: this needs {}: pip install 'gossamer[{}]'\n"
SMALL = "--clients 6 --per-round 3 --epochs 1"


class Said(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def mistakes(self) -> list[str]:
        """What is listed as wrong."""
        lines = self.err.splitlines()
        return [lines[0].removeprefix("gossamer: ")] if len(lines) == 1 else [line[4:] for line in lines[1:]]


Gossamer = Callable[[str], Said]


@pytest.fixture
def gossamer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gossamer:
    """Runs a command line in an empty folder with two files of the user's; clients one by one, if it names nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(RECIPES)
    (tmp_path / "tasks.py").write_text(TASKS)

    def call(line: str) -> Said:
        words = shlex.split(line)
        how = ["--executor", "one-by-one"] if words[:1] == ["run"] and words[1:] and "--executor" not in words else []
        status = main([*words, *how])
        return Said(status, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended, to look at."""
    path = tmp_path_factory.mktemp("runs") / "done"
    assert main(f"run fedavg --rounds 2 {SMALL} --failure-rate 0.3 --executor one-by-one --out {path}".split()) == 0
    return path


def listing() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


def stop_after(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C once so many rounds are done."""
    shown = Progress.__call__

    def call(self: Progress, record: dict[str, Any]) -> None:
        shown(self, record)
        if record["round"] == rounds:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "__call__", call)


def lasting(path: Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """What must not depend on interruptions: the metrics but for seconds and memory, and all tensors."""
    metrics = [{k: v for k, v in r.items() if k not in ("seconds", "memory_bytes")} for r in read_metrics(path)]
    tensors = {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*.safetensors"))}
    return metrics, tensors


# Mistakes.

REFUSED = [
    ("run fedavg --rounds 0", "--rounds must be at least 1, got 0"),
    ("run fedavg --clients 0", "--clients must be at least 1, got 0"),
    ("run fedavg --clients ten", "--clients must be a whole number, got 'ten'"),
    ("run fedavg --per-round 0", "--per-round must be at least 1, got 0"),
    ("run fedavg --clients 5 --per-round 6", "--per-round is 6, but there are only 5 clients"),
    ("run fedavg --task tasks.py:task --per-round 6", "--per-round is 6, but there are only 5 clients"),
    ("run fedavg --seed -1", "--seed must not be negative, got -1"),
    ("run fedavg --failure-rate 2", "--failure-rate must be in [0, 1], got 2.0"),
    ("run fedavg --eval-every 0", "--eval-every must be at least 1, got 0"),
    ("run fedavg --device tpu", "unknown device 'tpu': known: cpu, cuda"),
    ("run fedavg --executor nope", "unknown executor 'nope'"),
    ("run fedavg --channel nope", "unknown channel 'nope': known: fleet, lossy, perfect, wireless"),
    ("run fedavg --channel lossy:2", "channel 'lossy:2': loss must be in [0, 1], got 2.0"),
    ("run fdavg", "unknown method 'fdavg': did you mean fedavg? known: centralised"),
    ("run fedavg --data nope", "unknown data set 'nope': known: breast-cancer, cifar-10"),
    ("run fedavg --data-dir nope", "--data-dir: there is no folder nope"),
    ("run fedavg --split nope", "unknown split 'nope': known: dirichlet"),
    ("run fedavg --split dirichlet:-1", "split 'dirichlet:-1': alpha must be a positive number, got -1"),
    ("run fedavg --split natural", "this data has no natural owners"),
    ("run fedavg --clients 9999", "9999 clients with 1 samples or more need 9999 samples, digits has 1438"),
    ("run fedavg --model nope", "unknown model 'nope': known: cnn-gn, cnn2"),
    ("run fedavg --model cnn4", "cnn4 needs images of at least 16 x 16, got 8 x 8"),
    ("run fedavg --lr x", "--lr must be a number, got 'x'"),
    ("run fedavg --lr -1e-3", "--lr must be a positive number, got -0.001"),
    ("run onebit-cs --retain signs", "--retain signs needs one matrix for all rounds: --no-fresh"),
    ("run fedavg --lr nan", "--lr must be a positive number, got nan"),
    ("run fedavg --weights most", "--weights must be one of batches, samples, uniform, got 'most'"),
    ("run fedavg --epochs 3 --steps 4", "--epochs and --steps were both given: choose one"),
    (
        "run fedsgd --epochs 3",
        "unknown flag --epochs: fedsgd has --lr, --weights; gossamer run fedsgd --help",
    ),
    ("run fedavg --epoch 3", "unknown flag --epoch: did you mean --epochs?"),
    (
        "run fedavg --bogus 3",
        "unknown flag --bogus: fedavg has --lr, --epochs, --steps, --batch, --weights, --server-lr;",
    ),
    ("run fedavg -x", "unknown flag -x: fedavg has"),
    ("run fedavg --epochs", "--epochs needs a value: --epochs N"),
    ("run fedavg --epochs --rounds=0", "--epochs needs a value"),
    ("run fedavg extra", "'extra' is not a flag"),
    ("run", "name a method first: gossamer run METHOD [flags]"),
    ("run --rounds 3", "name a method first: gossamer run METHOD [flags]"),
    ("run fedavg --set solver", "--set solver: write it as part.field=value"),
    ("run fedavg --set sover.lr=1", "--set sover.lr=1: unknown part 'sover': did you mean solver?"),
    ("run fedavg --set solver.nope=1", "--set solver.nope=1: SGD has no field 'nope': it has batch, clip"),
    ("run fedavg --set view.nope=1", "--set view.nope=1: Full has no field 'nope': it has none"),
    ("run fedavg --set solver.momentum=2", "--set solver.momentum=2: SGD.momentum must be in [0, 1), got 2.0"),
    ("run fedavg --set solver.momentum=x", "--set solver.momentum=x: momentum must be a number, got 'x'"),
    ("run fedavg --set solver.schedule=x", "--set solver.schedule=x: unknown schedule 'x': known: constant"),
    ("run fedavg --set solver.lr.x=1", "--set solver.lr.x=1: SGD.lr has no fields"),
    ("run perm --set server.clients=3", "--set server.clients=3: ModelRotation has no field 'clients': it has "),
    ("run perm --lambda inf", "--lambda must be finite and not negative, got inf"),
    ("run perm-two-stage --lambda nan", "--lambda must be finite and not negative, got nan"),
    ("run eden --set codec.codec.bits=9", "--set codec.codec.bits=9: Eden.bits must be a whole number from 1 to 8"),
    ("run fedavg --codec edan", "unknown codec 'edan': did you mean eden?"),
    ("run fedavg --codec eden:x", "codec 'eden:x': bits must be a whole number, got 'x'"),
    ("run fedavg --down masked-noise", "--down: masked noise can encode a small update, not a model"),
    ("run fedavg --down delta:edn:2", "codec 'delta:edn:2': unknown codec 'edn': did you mean eden?"),
    (
        "run fedmrn --down delta:foo",
        "unknown codec 'foo': known: dense, discrete-gaussian, drive, eden, fixed-point, ",
    ),
    ("run fedmrn --down delta:foo", "sign, skellam, sparse, subsample, sum, ternary, topk"),
    ("run fedmrn --down delta:sum:2", "codec 'delta:sum:2': unknown codec 'sum:2': did you mean sum?"),
    (
        "run fedmrn --down delta:",
        "codec 'delta:': nothing follows the colon: write it as delta, delta:sum, or delta:CODEC such as delta:eden:2",
    ),
    ("run fedmrn --down delta:dense", "codec 'delta:dense': a dense change is as long as the whole model"),
    ("run fedavg --codec eden:", "codec 'eden:': nothing follows the colon: write it as eden[:bits=1,coded=False]"),
    ("run fedavg --down delta", "Delta needs a codec that compresses the uploads, got codec=Dense(dtype='model')"),
    ("run fedadam --codec eden --down delta", "Delta cannot repeat the aggregation: ServerOptimizer does not"),
    ("run fedmrn --down delta:sum", "Delta(sums_only=True) cannot send sums: uploads are not whole numbers"),
    (
        "run fedmrn --common-noise",
        "--alpha must be a number, such as 0.1: with auto, every client has scales of its own",
    ),
    ("run fedprox --mu -1", "--mu must not be negative, got -1.0"),
    ("run perm --capacities 3", "--capacities must be in (0, 1], got 3.0"),
    ("run fedavg --init nope", "--init: there is no file or run nope"),
    ("run fedavg --until acc=0.9", "--until: unknown metric 'acc'"),
    ("run fedavg --precision tf32", "--precision tf32 needs a GPU: use --device cuda or --precision bf16"),
    ("run klms --down eden", "KLMS needs scores that both sides know: use Dense() or Delta(), --down dense or --down"),
    ("run local --codec eden", "--codec: local sends nothing"),
    ("run fedpm --codec eden", "--codec: fedpm sends masks, which have their own codec"),
    ("run fedavg --out full", "--out full is not empty"),
    ("run fedavg --out .", "--out .: the run needs a new folder"),
    ("run fedavg --out ''", "--out .: the run needs a new folder"),
    ("run fedavg --out mine.py", "--out mine.py: mine.py is a file, not a folder"),
    ("run fedavg --out mine.py/x/y", "--out mine.py/x/y: mine.py is a file, not a folder"),
    ("run fedavg --task tasks.py:task --data digits --split iid", "leave out --data, --split"),
    ("run fedavg --task nope.py:task", "--task nope.py:task: there is no file nope.py"),
    ("run fedavg --task tasks.py", "--task tasks.py: write it as file.py:name"),
    ("run fedavg --task tasks.py:tusk", "--task tasks.py:tusk: unknown name 'tusk': did you mean task?"),
    ("run fedavg --task tasks.py:number", "--task tasks.py:number: must be a gossamer.Task or a function that"),
    (
        "run fedavg --task tasks.py:arrays",
        "--task tasks.py:arrays: it takes arguments, which only a deployment passes",
    ),
    ("run fedavg --task tasks.py:broken", "the model fails on a batch of samples of shape 4"),
    ("run fedavg --task tasks.py:unbuilt", "has no attribute 'Nothing' (tasks.py, line 18)"),
    ("run nope.py:mine", "method nope.py:mine: there is no file nope.py"),
    ("run mine.py", "method mine.py: write it as file.py:name"),
    ("run mine.py:mime", "method mine.py:mime: unknown name 'mime': did you mean mine?"),
    ("run mine.py:thing", "method mine.py:thing: must be a function that returns a Method"),
    ("run mine.py:number", "method mine.py:number: must return a Method, got int"),
    ("run mine.py:fails", "method mine.py:fails fails: KeyError: 1 (mine.py, line 25)"),
    ("run mine.py:clash", "mine.py:clash: its parameter 'rounds' clashes with --rounds: rename it"),
    ("run mine.py:strange", "mine.py:strange: its parameters cannot be read: NameError"),
    ("run mine.py:mine", "--lr must be given"),
    ("run mine.py:mine --lr 1 --fast=3", "--fast takes no value, got '3': write --fast or --no-fast"),
    ("run mine.py:mine --lr 1 --mode left", "--mode must be one of down, up, got 'left'"),
    ("run mine.py:mine --lr 1 --top x", "--top must be a whole number or none, got 'x'"),
    ("resume nope", "nope is not a run: there is no run.json in it"),
    ("show full", "full is not a run: there is no run.json in it"),
    ("compare nope", "nope is not a run"),
    ("runs nope", "there is no folder nope"),
    ("methods nope", "unknown method 'nope'"),
    ("shw", "unknown command 'shw': did you mean show?"),
    ("show", "the following arguments are required: RUN"),
    ("show full --json --html", "not allowed with argument"),
    ("data show --split nope", "unknown split 'nope'"),
    ("data show --out split.gif", "--out split.gif: must end in .png, .pdf or .svg"),
    ("data show --out nowhere/split.png", "--out nowhere/split.png: there is no writable folder nowhere"),
]


@pytest.mark.parametrize(("line", "said"), REFUSED, ids=[line for line, _ in REFUSED])
def test_a_mistake_is_one_clear_line_and_nothing_is_written(gossamer: Gossamer, line: str, said: str) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    before = listing()
    refused = gossamer(line)
    assert refused.status == 2
    assert refused.out == ""
    assert said in refused.err
    assert refused.err.startswith("gossamer: ")
    assert refused.err.count("\n") == 1 or "--rounds=0" in line
    assert listing() == before


def test_settings_without_effect_are_noticed(gossamer: Gossamer) -> None:
    words = "--clients 3 --rounds 2 --steps 1 --executor one-by-one"
    said = gossamer(f"run perm {words} --warmup 2 --statistics train:9 --out a")
    assert said.status == 0
    assert said.err.splitlines()[:2] == [
        "gossamer: --statistics train:9: the network has no static batch norms, so only the batch size of the "
        "evaluation changes",
        "gossamer: --warmup is 2, and the run has 2 rounds: no round follows the warm-up",
    ]
    assert gossamer(f"run perm {words} --warmup 1 --out b").err.splitlines()[0] == "b: 2 rounds"


def test_independent_mistakes_are_listed_at_once_and_each_once(gossamer: Gossamer) -> None:
    before = listing()
    flags = "--rounds 0 --clients 4 --per-round 5 --model cnn4 --split nope --lr x --batch 0 --steps --bogus 1"
    refused = gossamer(f"run fedavg {flags} --set solver.nope=1 --set solver.clip=-1 --out mine.py more")
    assert refused.status == 2
    assert len(refused.mistakes) == 12
    assert refused.err.startswith("gossamer: 12 mistakes:\n")
    for said in ("--rounds must", "--per-round is 5", "cnn4 needs", "unknown split", "--lr must", "--batch must"):
        assert sum(said in mistake for mistake in refused.mistakes) == 1
    for said in ("--steps needs", "--bogus", "--set solver.nope=1", "--set solver.clip=-1", "--out mine.py", "'more'"):
        assert sum(said in mistake for mistake in refused.mistakes) == 1
    assert listing() == before


def test_every_part_of_a_method_says_what_is_wrong_by_flags(gossamer: Gossamer) -> None:
    flags = "--measurements 0 --share 0 --retain signs --no-fresh --accumulate --lr -1 --ratio 2"
    said = gossamer(f"run onebit-cs {flags}").mistakes
    assert [mistake.partition(" ")[0] for mistake in said] == [
        "--measurements",
        "--share",
        "--retain",
        "--lr",
        "--ratio",
    ]
    assert "--retain signs keeps the signs of one round, so use --no-accumulate, or use --retain change" in said


def test_mistakes_are_found_whatever_the_method_the_data_or_the_task(gossamer: Gossamer) -> None:
    assert len(gossamer("run nope --rounds 0 --lr 3 --data nope --split nope --model nope --clients 0").mistakes) == 6
    assert len(gossamer("run mine.py:nope --task nope.py:x --seed -1 --data digits").mistakes) == 4
    assert len(gossamer("data show --data nope --split nope --clients x --seed y --out a/b.gif").mistakes) == 6
    assert len(gossamer("compare a b c --out x.gif").mistakes) == 4


def test_the_place_of_a_run_is_not_taken_twice(gossamer: Gossamer, finished: Path) -> None:
    refused = gossamer(f"run fedavg --out {finished}")
    assert refused.status == 2
    assert "resume the run that is there" in refused.err


# Help.


@pytest.mark.parametrize("line", ["--help", "show --help", "compare --help", "data --help", "data show --help"])
def test_help_at_every_level(gossamer: Gossamer, capsys: pytest.CaptureFixture[str], line: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(line.split())
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("usage: gossamer")


def test_the_bare_command_and_run_help_themselves(gossamer: Gossamer) -> None:
    assert "COMMAND" in gossamer("").out
    assert "METHOD is a name of `gossamer methods`" in gossamer("run --help").out
    shared = gossamer("run heterofl --help").out
    assert shared.count("\n  --fleet ") == 1
    assert "--capacities X|SIZE,... " in shared
    assert all(name in shared for name in EXECUTORS)
    said = gossamer("run fedprox --rounds 0 --help")
    assert said.status == 0
    assert "--mu X " in said.out
    assert "--eval-every K " in said.out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("gossamer 0.")


def test_methods_lists_every_method_and_the_flags_of_one(gossamer: Gossamer) -> None:
    for name in ("fedavg", "fedsgd", "fedprox", "local", "centralised"):
        assert f"\n{name} " in gossamer("methods").out
    said = gossamer("methods fedprox").out
    assert "\n--mu X " in said
    assert "strength of the proximal term" in said
    assert re.search(r"\nsolver +SGD\(lr=0.1", said)


@pytest.mark.parametrize("name", METHODS)
def test_every_flag_says_what_it_means(name: str) -> None:
    assert [flag.word for flag in flags(METHODS[name], name) if not flag.meaning] == []


def test_a_recipe_in_a_file_has_its_flags_read_off(gossamer: Gossamer) -> None:
    said = gossamer("methods mine.py:mine").out
    for wanted in ("mine.py:mine: My own recipe.", "--lr X ", "required", "--lambda X ", "how strong the pull is"):
        assert wanted in said
    for wanted in ("--fast/--no-fast ", "--mode up|down ", "--top N|none ", "--plain N ", "--bare VALUE "):
        assert wanted in said
    assert "It has no flags." in gossamer("methods mine.py:bare").out
    assert "--lr X" in gossamer("methods mine.py:gentle").out


def test_data_list_says_how_each_split_is_written(gossamer: Gossamer) -> None:
    said = gossamer("data list").out
    for wanted in (
        "digits ",
        "two-populations-literal ",
        "dirichlet:ALPHA[,min_samples=1] ",
        "iid[:min_samples=1] ",
        "cnn8 ",
    ):
        assert wanted in said


def test_data_show_draws_a_split(gossamer: Gossamer) -> None:
    said = gossamer("data show --data digits --split labels:2 --clients 7 --out split.png")
    assert said.status == 0
    assert "clients            7\n" in said.out
    assert Path("split.png").read_bytes().startswith(b"\x89PNG")


# Runs.


def test_a_run_ends_with_a_table_its_place_and_a_page(gossamer: Gossamer) -> None:
    said = gossamer(f"run fedavg --rounds 2 {SMALL} --lr 0.2")
    assert said.status == 0
    assert said.err.splitlines()[0] == "runs/fedavg-digits: 2 rounds"
    assert [line[:9] for line in said.err.splitlines()[1:]] == ["round 1/2", "round 2/2"]
    assert "\naccuracy " in said.out
    assert "run in runs/fedavg-digits: gossamer show runs/fedavg-digits\n" in said.out
    assert Path("runs/fedavg-digits/report.html").read_text().startswith("<!DOCTYPE html>")
    assert "SGD(lr=0.2, epochs=1" in gossamer("show runs/fedavg-digits").out


def test_the_next_run_takes_the_next_place(gossamer: Gossamer, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "run fedsgd --data two-populations --clients 4 --rounds 1"
    create = RunFolder.create.__func__  # type: ignore[attr-defined]

    def beaten(cls: type[RunFolder], path: Path, *rest: Any) -> RunFolder:
        monkeypatch.setattr(RunFolder, "create", classmethod(create))
        path.mkdir(parents=True)
        (path / "theirs").touch()
        raise RunError("somebody else was there first")

    monkeypatch.setattr(RunFolder, "create", classmethod(beaten))
    assert gossamer(line).status == 0
    assert gossamer(line).status == 0
    names = sorted(path.name for path in Path("runs").iterdir())
    assert names == ["fedsgd-two-populations", "fedsgd-two-populations-2", "fedsgd-two-populations-3"]
    assert [path.name for path in Path("runs/fedsgd-two-populations").iterdir()] == ["theirs"]


def test_flags_of_a_recipe_in_a_file_reach_it(gossamer: Gossamer) -> None:
    flags = "--lr 0.3 --lambda 0.2 --fast --mode down --top 3 --plain 2 --bare anything"
    said = gossamer(f"run mine.py:mine {flags} --task tasks.py:task --rounds 1 --set server.weights=uniform --out it")
    assert said.status == 0
    parts = json.loads(gossamer("show it --json").out)["parts"]
    assert "SGD(lr=0.3, epochs=2, " in parts["solver"]
    assert "momentum=0.5" in parts["solver"]
    assert "proximal=0.2" in parts["solver"]
    assert "uniform" in parts["server"]
    assert gossamer("run mine.py:gentle --no-fast").status == 2


def test_a_file_is_run_once_and_leaves_nothing_beside_it(gossamer: Gossamer) -> None:
    Path("counted.py").write_text(RECIPES + "with open('count', 'a') as file:\n    file.write('x')\n")
    assert gossamer("run counted.py:bare --task tasks.py:made --rounds 1").status == 0
    assert Path("count").read_text() == "x"
    assert sorted(p.name for p in Path().iterdir()) == ["count", "counted.py", "mine.py", "runs", "tasks.py"]


@pytest.mark.parametrize("missing", ["rich", "matplotlib", "sklearn"])
def test_a_run_needs_no_more_than_it_uses(gossamer: Gossamer, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in [missing, *(name for name in sys.modules if name.startswith(f"{missing}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    assert gossamer("run fedsgd --data two-populations --clients 4 --rounds 1 --out it").status == 0
    shown, compared = gossamer("show it --html"), gossamer("compare it --out it.png")
    assert shown.status == (missing == "matplotlib")
    assert "fedsgd" in compared.out
    if missing == "matplotlib":
        assert shown.err == NEEDS.format("matplotlib", "plot")
        assert (compared.status, compared.err) == (1, NEEDS.format("matplotlib", "plot"))
    if missing == "sklearn":
        assert gossamer("run fedavg").err == NEEDS.format("sklearn", "data")


def test_a_page_that_cannot_be_drawn_fails_no_run(gossamer: Gossamer, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(*args: Any) -> str:
        raise ValueError("no ink")

    monkeypatch.setattr(page, "render", draw)
    said = gossamer("run fedsgd --task tasks.py:task --rounds 1 --out it")
    assert said.status == 0
    assert said.err.endswith("gossamer: no report.html was written: no ink\n")
    assert "report in" not in said.out


def test_a_run_in_which_every_client_fails_says_why_and_where_it_is_kept(gossamer: Gossamer) -> None:
    Path("sick.py").write_text(
        "from gossamer import SGD, Full, compose\n"
        "class Sick(SGD):\n"
        "    def step(self, *args):\n"
        "        raise ValueError('out of memory')\n"
        "def recipe():\n"
        "    return compose(Full(), Sick())\n"
    )
    said = gossamer("run sick.py:recipe --task tasks.py:task --rounds 9 --out it")
    assert said.status == 1
    wanted = "all 5 clients failed in round 1: ValueError: out of memory; no round was finished: delete it"
    assert wanted in said.err
    assert read_metrics(Path("it")) == []
    again = gossamer("resume it")
    assert again.status == 1
    assert wanted in again.err


# Interruptions.


@pytest.mark.parametrize(
    "what",
    [
        f"fedavg {SMALL} --channel lossy:0.2 --eval-every 2",
        "local --data two-populations --clients 6 --per-round 3",
        "mine.py:mine --lr 0.1 --fast --task tasks.py:task --per-round 3 --set solver.schedule=steps:1+2,0.5",
    ],
)
def test_a_run_that_was_interrupted_ends_like_one_that_was_not(
    gossamer: Gossamer, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    line = f"run {what} --rounds 4 --executor one-by-one"  # what auto measures may differ between two runs
    assert gossamer(f"{line} --out whole").status == 0
    with monkeypatch.context() as patched:
        stop_after(2, patched)
        stopped = gossamer(f"{line} --out parts")
    assert stopped.status == 130
    assert stopped.out == ""
    assert stopped.err.splitlines()[-1] == "stopped after round 2 of 4; continue with: gossamer resume parts"
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    resumed = gossamer("resume ../parts")
    monkeypatch.chdir("..")
    assert resumed.status == 0
    assert resumed.err.splitlines()[0] == "../parts: 2 rounds left"
    assert lasting(Path("parts")) == lasting(Path("whole"))
    assert gossamer("show parts").out.splitlines()[0].endswith("parts (finished)")


def test_any_codec_goes_into_any_method_and_stays_on_resume(
    gossamer: Gossamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"run fedprox --rounds 2 {SMALL} --executor one-by-one --codec eden:2 --down dense:float16"
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        assert gossamer(f"{line} --out some").status == 130
    assert gossamer("resume some").status == 0
    assert gossamer(f"{line} --out whole").status == 0
    assert lasting(Path("some")) == lasting(Path("whole"))
    assert gossamer(f"run fedprox --rounds 2 {SMALL} --executor one-by-one --out plain").status == 0
    few, many = (json.loads(gossamer(f"show {run} --json").out) for run in ("whole", "plain"))
    assert few["bytes_up"] < many["bytes_up"] / 5
    assert few["bytes_down"] == pytest.approx(many["bytes_down"] / 2, rel=0.05)


def test_what_is_inside_a_part_can_be_set(gossamer: Gossamer) -> None:
    assert gossamer(f"run eden --rounds 1 {SMALL} --set codec.codec.bits=3 --out r").status == 0
    assert "Eden(bits=3, coded=False)" in json.loads(Path("r/run.json").read_text())["method"]["codec"]


def test_resuming_a_finished_run_says_so(gossamer: Gossamer, finished: Path) -> None:
    before = lasting(finished)
    said = gossamer(f"resume {finished}")
    assert said.status == 0
    more = f"gossamer resume {finished} --rounds N gives it more rounds"
    assert said.err == f"{finished}: already finished; {more}\n"
    assert "\naccuracy " in said.out
    assert lasting(finished) == before


def test_a_run_can_be_stopped_before_its_first_round(gossamer: Gossamer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Simulation, "round", interrupt)
        assert gossamer("run fedsgd --task tasks.py:task --rounds 2 --out it").status == 130
    facts = json.loads(gossamer("show it --json").out)
    assert (facts["rounds"], facts["accuracy"], facts["state"]) == (0, None, "interrupted")
    assert gossamer("show it").status == 0
    assert gossamer("show it --html").status == 0
    assert gossamer("compare it").status == 0
    assert gossamer("resume it").status == 0


@pytest.mark.parametrize(("file", "said"), [("mine.py", "mine.py was changed"), ("tasks.py", "tasks.py was changed")])
def test_a_changed_file_is_refused_on_resume(
    gossamer: Gossamer, monkeypatch: pytest.MonkeyPatch, file: str, said: str
) -> None:
    with monkeypatch.context() as patched:
        stop_after(1, patched)
        gossamer("run mine.py:bare --task tasks.py:task --rounds 2 --out it")
    original = Path(file).read_text()
    Path(file).write_text(original.replace("epochs=1", "epochs=2").replace("manual_seed(seed)", "manual_seed(3)"))
    refused = gossamer("resume it")
    assert refused.status == 1
    assert said in refused.err
    assert "restore it, or start a new run" in refused.err
    Path(file).write_text(original)
    assert gossamer("resume it").status == 0


def test_a_file_that_is_gone_is_missed_on_resume(gossamer: Gossamer, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        stop_after(1, patched)
        gossamer("run mine.py:bare --task tasks.py:task --rounds 2 --out it")
    Path("mine.py").rename("moved.py")
    refused = gossamer("resume it")
    assert refused.status == 2
    assert "mine.py, which is missing: restore it" in refused.err


def test_a_busy_run_is_not_resumed_but_can_be_looked_at(gossamer: Gossamer, finished: Path) -> None:
    folder = RunFolder.open(finished)
    try:
        assert json.loads(gossamer(f"show {finished} --json").out)["state"] == "running"
        refused = gossamer(f"resume {finished}")
        assert refused.status == 1
        assert "another process is working in" in refused.err
    finally:
        folder.close()


def test_a_run_from_python_is_resumed_in_python(gossamer: Gossamer, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.cli.build import make_task
    from gossamer.cli.request import Request

    task = make_task(Request("", data="two-populations", clients="3"), 0, None)
    simulate(fedavg(epochs=1), task, rounds=1, out="it")
    refused = gossamer("resume it")
    assert refused.status == 2
    assert "run its script again with resume=True" in refused.err
    assert gossamer("show it").status == 0
    assert gossamer("show it --html").status == 0


# Looking.

WANTED = {
    *("method", "data", "model", "clients", "rounds", "seed"),
    *("accuracy", "loss", "personal_accuracy", "worst_tenth_accuracy"),
    *("bytes_up", "bytes_down", "flops", "seconds", "joules", "failures"),
}


def strict(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def test_show_prints_one_object_for_programs(gossamer: Gossamer, finished: Path) -> None:
    facts = strict(gossamer(f"show {finished} --json").out)
    assert set(facts) >= WANTED
    assert (facts["method"], facts["data"], facts["model"]) == ("fedavg", "digits", "mlp")
    assert (facts["clients"], facts["per_round"], facts["rounds"], facts["seed"]) == (6, 3, 2, 0)
    assert facts["personal_accuracy"] is not None
    assert facts["bytes_up"] == sum(sum(r["bytes_up"].values()) for r in read_metrics(finished)) > 0
    assert facts["state"] == "finished"


def test_a_diverged_run_is_still_strict_json(gossamer: Gossamer) -> None:
    gossamer(f"run fedavg --lr 1e30 --rounds 1 {SMALL} --out it")
    facts = strict(gossamer("show it --json").out)
    assert facts["rounds"] == 1


def test_looking_leaves_no_trace(gossamer: Gossamer, finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    (finished / "run.lock").unlink()
    for line in (f"show {finished}", f"show {finished} --json", f"runs {finished.parent}"):
        assert gossamer(line).status == 0
    assert set(finished.rglob("*")) == before.keys() - {finished / "run.lock"}


def test_runs_lists_what_is_there_and_says_what_is_damaged(gossamer: Gossamer) -> None:
    for name in ("bad", "good", "worse"):
        assert gossamer(f"run fedsgd --task tasks.py:task --rounds 1 --out all/{name}").status == 0
    Path("all/bad/run.json").write_text("{")
    Path("all/worse/metrics.jsonl").write_text("{\n")
    Path("all/.half-made").mkdir()
    Path("all/.half-made/run.json").touch()
    said = gossamer("runs all")
    assert said.status == 0
    rows = {line.split()[0]: line.split()[-1] for line in said.out.splitlines()[2:5]}
    assert rows == {"bad": "damaged", "good": "finished", "worse": "damaged"}
    assert "bad is damaged: all/bad/run.json cannot be used" in said.out
    assert "worse is damaged: all/worse/metrics.jsonl cannot be used" in said.out
    assert ".half-made" not in said.out
    assert gossamer("show all/bad").status == 1


def test_an_empty_folder_has_no_runs(gossamer: Gossamer) -> None:
    said = gossamer("runs .")
    assert (said.status, said.out) == (0, "there are no runs in .\n")


def test_runs_of_the_same_name_stay_apart_when_compared(gossamer: Gossamer) -> None:
    for path, seed in (("a/run", 1), ("b/run", 2)):
        gossamer(f"run fedsgd --task tasks.py:task --rounds 1 --seed {seed} --out {path}")
    before = sorted(Path().rglob("*"))
    plain = gossamer("compare a/run b/run")
    assert plain.status == gossamer("show a/run").status == 0
    assert sorted(Path().rglob("*")) == before  # no file is written unless asked for
    said = gossamer("compare a/run b/run a/run/ --out compare.png")
    assert said.status == 0
    assert [line.split()[1:3] for line in said.out.splitlines()[2:4]] == [["fedsgd", "seed=1"], ["fedsgd", "seed=2"]]
    assert [line.split()[0] for line in said.out.splitlines()[2:4]] == ["a/run", "b/run"]
    assert "these runs also differ in: seed" in said.out
    assert said.out.endswith("curves in compare.png\n")
    assert Path("compare.png").read_bytes().startswith(b"\x89PNG")


def test_names_are_as_short_as_they_can_be() -> None:
    assert distinct([Path("x/a"), Path("y/b")]) == ["a", "b"]
    assert distinct([Path("x/a"), Path("y/a"), Path("y/b")]) == ["x/a", "y/a", "y/b"]


# As programs start it.


def python(*words: str, **options: Any) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *words], **{**pipes, **options})


def test_control_c_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    flags = ["run", "fedsgd", "--data", "two-populations", "--clients", "4", "--rounds", "100000", "--out", "it"]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell has what it starts with & ignore it
    process = python("-m", "gossamer", *flags, "--executor", "one-by-one", cwd=tmp_path, preexec_fn=heed)
    assert process.stderr is not None
    metrics = tmp_path / "it/metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") > 1):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "continue with: gossamer resume it" in err
    assert out == ""


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    process = python("-m", "gossamer", "data", "list", cwd=tmp_path, stdout=write)
    os.close(write)
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")


def test_the_core_and_its_help_need_torch_and_numpy_alone(tmp_path: Path) -> None:
    extras = ("rich", "matplotlib", "sklearn", "safetensors", "scipy")
    code = f"import sys; sys.modules.update(dict.fromkeys({extras!r})); from gossamer.cli import main; "
    process = python("-c", code + "sys.exit(main(['methods', 'fedprox']) or main(['data', 'list']))", cwd=tmp_path)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "--mu X" in out


def test_warnings_are_lines_without_a_place_in_the_source(tmp_path: Path) -> None:
    flags = ("--alpha", "1e-6", "--rounds", "1", "--clients", "5", "--steps", "1", "--executor", "one-by-one")
    _, err = python("-m", "gossamer", "run", "fedmrn", *flags, cwd=tmp_path).communicate()
    (line,) = [line for line in err.splitlines() if "warning" in line.lower()]
    assert line.startswith("gossamer: warning: the noise magnitude alpha=1e-06 is small")
    assert ".py" not in err
