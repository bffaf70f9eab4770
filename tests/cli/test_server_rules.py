"""``--server`` with robust rules, and ``--attack``: what is typed, what is recorded, and what is refused."""

from pathlib import Path

import pytest

from gossamer.cli import main
from gossamer.runs.records import read_about, read_metrics

RUN = ["--rounds", "1", "--clients", "8", "--steps", "1", "--executor", "one-by-one", "--out", "run"]
OWN = """
from dataclasses import dataclass
from gossamer.parts.servers.robust import Aggregate, Rule

@dataclass(frozen=True)
class Shortest(Rule):
    least: int = 2

    @property
    def min_updates(self):
        return self.least

    def tolerates(self, updates):
        return 0

    def aggregate(self, updates, memory, key):
        shortest = int(updates.norms().argmin())
        return Aggregate(updates.vector(shortest), used=(shortest,))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)


@pytest.mark.parametrize(
    ("words", "server"),
    [
        (
            "fedavg --server median --weights uniform --server-lr 0.5",
            "Robust(rule=Median(), mean=Mean(weights='uniform', over='cohort', radius=None, server_lr=0.5))",
        ),
        ("signsgd --server trimmed-mean:0.2 --set server.rule.share=0.3", "Robust(rule=TrimmedMean(share=0.3), mean="),
        ("topk --server multi-krum:f=2,m=4", "Robust(rule=MultiKrum(f=2, m=4), mean="),
        ("heterofl --server bucketing:2/clip:1", "Robust(rule=Bucketing(size=2, rule=Clip(norm=1.0, multiple=1.0))"),
        ("fedadam --server geometric-median", "mean=ServerOptimizer("),
        ("fedavg --server own.py:Shortest", "Robust(rule=Shortest(least=2), mean=Mean("),
    ],
)
def test_what_is_recorded(words: str, server: str) -> None:
    assert main(["run", *words.split(), *RUN]) == 0
    assert server in read_about(Path("run"))["method"]["server"]
    (record,) = read_metrics(Path("run"))
    assert record["figures"]["aggregation"]["updates"] == 8
    assert main(["resume", "run", "--rounds", "2"]) == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            "fedavg --server krum:f=3",
            "krum:f=3 needs at least 9 clients per round, and a round has 8: use more clients, a larger "
            "--per-round, or a rule that needs fewer",
        ),
        ("fedavg --server median --per-round 2", "median needs at least 3 clients per round, and a round has 2"),
        (
            "scaffold --server median",
            "--server median with scaffold: median takes the place of a plain mean of updates",
        ),
        ("perm --server median", "and ModelRotation uses the updates in another way"),
        ("onebit-cs --server median", "and SumThenDecode uses the updates in another way"),
        ("local --server median", "--server: local sends nothing"),
        ("fedavg --server medan", "unknown server 'medan': did you mean median?"),
        ("fedavg --server trimmed-mean:0.6", "server 'trimmed-mean:0.6': share must be above 0 and below 0.5, got 0.6"),
        ("fedavg --server krum", "a value is missing: write it as krum:F"),
        ("fedavg --server bucketing:2", "write it as bucketing:SIZE/RULE such as bucketing:2/median"),
        ("fedavg --server own.py:Shortest --set server.rule.least=9", "needs at least 9 clients per round"),
        (
            "fedavg --exclude-after 3 --per-round 4",
            "--exclude-after needs rounds with at least 5 clients, which it compares, and a round has 4: leave it out, "
            "or use more clients, or a larger --per-round",
        ),
        (
            "fedavg --server clip:median,multiple=0",
            "server 'clip:median,multiple=0': multiple must be a positive number",
        ),
        (
            "fedavg --server bucketing:2/trimmed-mean:0.9",
            "server 'bucketing:2/trimmed-mean:0.9': server 'trimmed-mean:0.9': share must be above 0 and below 0.5",
        ),
        (
            "fedavg --server median --down delta",
            "--down delta: clients cannot repeat --server median, which needs the updates of all: use --down "
            "delta:eden:2, or --down dense",
        ),
        ("fedavg --attack alie,share=2", "attack 'alie,share=2': share must be above 0 and below 1, got 2.0"),
        ("fedavg --attack foo", "--attack: unknown attack 'foo': known: alie, backdoor,"),
        ("fedavg --attack scale:x", "attack 'scale:x': factor must be a number, got 'x'"),
        (
            "fedavg --attack scale,share=0.99",
            "--attack scale:share=0.99: share makes 8 of 8 clients hostile: one must be honest, so lower it",
        ),
        ("fedavg --attack backdoor:target=99", "--attack backdoor:target=99: target must be below 10, the number of"),
        ("local --attack noise", "--attack noise: clients of this method send nothing that could be attacked"),
        ("fedavg --max-weight 0.5", "--max-weight must be at least 1, or none, got 0.5"),
    ],
)
def test_what_is_refused(words: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    rest = [word for word in RUN if word not in ("--steps", "1")] if "perm" in words else RUN
    assert main(["run", *words.split(), *rest]) == 2
    assert reason in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_setting_of_a_server_that_is_refused_is_no_second_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--server", "trimmed-mean", "--set", "server.rule.share=0.3"]
    assert main(["run", "fedavg", *words, *RUN]) == 2
    said = capsys.readouterr().err
    assert said == "gossamer: server 'trimmed-mean': a value is missing: write it as trimmed-mean:SHARE\n"
    assert main(["run", "fedavg", *words, "--set", "solver.foo=1", *RUN]) == 2
    assert "2 mistakes" in capsys.readouterr().err, "settings of other parts are checked"
