"""``gossamer widths``, and capacities, fleets and width rules as flags."""

import json
import tomllib
from pathlib import Path

import pytest

from gossamer.cli import main
from gossamer.core.random import key
from gossamer.core.specs import read
from gossamer.fleet.capacity import Room
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task
from gossamer.tasks.widths import Widths, ties

QUICK = ("--epochs", "1", "--executor", "one-by-one")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_groups_and_what_each_capacity_comes_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "--model", "mlp", "--capacities", "1,1/4"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1", "200", "1.weight[0],", "1.bias[0],", "3.weight[1]"] in lines
    by_share = {line[0]: line[1] for line in lines if len(line) > 3 and "%" in line}
    assert by_share == {"1": "55,210", "0.25": f"{64 * 50 + 50 + 50 * 50 + 50 + 50 * 10 + 10:,}"}


def test_the_rule_as_a_file_is_the_rule(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "--model", "mlp", "--toml"]) == 0
    written = capsys.readouterr().out
    objective = Objective(Task.named("digits", model="mlp", clients=5), "cpu", key(0))
    stated = Widths.stated(ties(tomllib.loads(written)), objective.initial())
    assert stated.sizes == objective.widths().sizes
    assert stated.axes == objective.widths().axes
    assert stated.labels == objective.widths().labels
    (place / "rule.toml").write_text(written)
    run = ["run", "heterofl", "--model", "mlp", "--clients", "4", "--rounds", "2", *QUICK, "--capacities", "1/2,1/4"]
    assert main([*run, "--out", "derived"]) == 0
    assert main([*run, "--out", "stated", "--ties", "rule.toml"]) == 0
    derived, by_hand = (last(place / name) for name in ("derived", "stated"))
    assert derived["accuracy"] == by_hand["accuracy"]
    assert derived["bytes_up"] == by_hand["bytes_up"]


CONCATENATED = """
import torch
from torch import nn
from gossamer import Task

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.o = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(14, 3)

    def forward(self, x):
        first = self.a(x).relu()
        return self.o(torch.cat([first, self.b(first).relu()], 1))

class Written(Net):
    def forward(self, x):
        first = self.a(x).relu().view(-1, 8)
        return self.o(torch.cat([first, self.b(first).relu()], 1))

class Wrong(Net):
    def forward(self, x):
        return self.b(x)

class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.o = nn.Linear(6, 4), nn.Linear(6, 5), nn.Linear(20, 3)

    def forward(self, x):
        return self.o((self.a(x)[:, :, None] * self.b(x)[:, None]).flatten(1))

def task(network=Net):
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    y = torch.arange(40) % 3
    return Task.of(network, (x, y), (x, y), clients=2)

def written(): return task(Written)
def wrong(): return task(Wrong)
def products(): return task(Products)
"""


@pytest.mark.slow
def test_a_rule_with_concatenations_goes_through_a_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "own.py").write_text(CONCATENATED)
    assert main(["widths", "--task", "own.py:task", "--toml"]) == 0
    written = capsys.readouterr().out
    assert '"o.weight[1][8:14]",' in written
    (place / "rule.toml").write_text(written)
    run = ["run", "heterofl", "--task", "own.py:task", "--rounds", "2", "--capacities", "1/2,1/4"]
    assert main([*run, "--out", "derived"]) == 0
    assert main([*run, "--out", "stated", "--ties", "rule.toml"]) == 0
    derived, by_hand = (last(place / name) for name in ("derived", "stated"))
    assert [derived[name] for name in ("loss", "bytes_up")] == [by_hand[name] for name in ("loss", "bytes_up")]


def test_products_of_channels_are_told_but_not_written_to_a_file(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "own.py").write_text(CONCATENATED)
    assert main(["widths", "--task", "own.py:products"]) == 0
    assert "o.weight[1] times others" in capsys.readouterr().out
    assert main(["widths", "--task", "own.py:products", "--toml"]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert "o.weight[1] holds products of channels, which cannot be written by hand" in found.err


def test_groups_are_told_also_where_a_width_is_written_out_and_which_capacities_fail(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "own.py").write_text(CONCATENATED)
    assert main(["widths", "--task", "own.py:written", "--capacities", "1,1/2,1/4"]) == 2
    found = capsys.readouterr()
    lines = [line.split() for line in found.out.splitlines()]
    assert ["a", "8", "a.weight[0],", "a.bias[0],", "b.weight[1],", "o.weight[1][0:8]"] in lines
    assert [line[0] for line in lines if len(line) > 3 and "%" in line] == ["1"]
    assert "does not work with 0.5 of its channels: the model fails on a batch of samples of shape 6 at layer b" in (
        found.err
    )
    assert "does not work with 0.25 of its channels" in found.err
    assert main(["run", "heterofl", "--task", "own.py:written", "--capacities", "1500B", "--rounds", "1"]) == 2
    assert "does not work with 0.5 of its channels" in capsys.readouterr().err


def test_a_network_that_does_not_work_at_all_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "own.py").write_text(CONCATENATED)
    assert main(["widths", "--task", "own.py:wrong"]) == 2
    assert "the model fails on a batch of samples of shape 6 at layer b (Linear)" in capsys.readouterr().err


def last(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return found


def test_a_fleet_decides_who_holds_how_much(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "fleet.toml").write_text(
        '[[device]]\nname = "large"\nclients = 1\nmemory = "1 GB"\nflops = 1e9\n'
        '[[device]]\nname = "small"\nclients = 1\nmemory = "60 kB"\nflops = 1e9\n'
    )
    run = ["run", "heterofl", "--model", "mlp", "--clients", "4", "--rounds", "1", *QUICK]
    assert main([*run, "--out", "fleet", "--fleet", "fleet.toml"]) == 0
    assert main([*run, "--out", "sizes", "--capacities", "1GB,60kB"]) == 0
    assert main([*run, "--out", "shares", "--capacities", "1,1/8"]) == 0
    sent = [last(place / name)["bytes_up"] for name in ("fleet", "sizes", "shares")]
    assert sent[0] == sent[1] == sent[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--capacities", "1/2,x"], "--capacities must be a number or a size such as 64MB, got '1/2,x'"),
        (["--capacities", "3/2"], "capacities must be in (0, 1], got 1.5"),
        (["--capacities", "1kB"], "a device has 1,000 bytes of memory, but training the smallest share, 1/16"),
        (["--ties", "none.toml"], "--ties: none.toml: cannot be read"),
        (["--fleet", "none.toml"], "--fleet: none.toml: cannot be read"),
        (["--by", "coordinate", "--capacities", "8MB"], "masks take as much memory as the whole model"),
        (["--by", "rows"], "--by must be one of channel, coordinate, got 'rows'"),
        (["--model", "logistic"], "no channels"),
        (["--statistics", "median"], "unknown statistics 'median'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    words: list[str], said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "heterofl", "--rounds", "1", "--clients", "3", *words]) == 2
    assert said in capsys.readouterr().err
    assert list(place.iterdir()) == []


def test_a_rule_that_does_not_fit_is_refused_with_every_mistake(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "rule.toml").write_text('"a" = ["1.weight[0]", "1.bias[1]"]\n"b" = ["1.weight[0]", "7 x 3.weight[0]"]\n')
    assert main(["run", "heterofl", "--model", "mlp", "--ties", "rule.toml", "--rounds", "1"]) == 2
    said = capsys.readouterr().err
    for words in ("'1.bias[1]' of group a is no dimension", "'1.weight[0]' of group b belongs to group a already"):
        assert words in said
    assert "'7 x 3.weight[0]' of group b does not fit: that dimension has 200 entries" in said


def test_widths_refuses_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "--capacities", "2,1/2", "--batch", "x"]) == 2
    said = capsys.readouterr().err
    assert "--batch must be a whole number, got 'x'" in said
    assert "--capacities must be in (0, 1], got 2" in said


@pytest.mark.parametrize("batch", ["0", "-4"])
def test_a_batch_has_a_sample_at_least(batch: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "--model", "mlp", "--batch", batch]) == 2
    assert f"--batch must be at least 1, got {batch}" in capsys.readouterr().err


def test_fractions_and_sizes_are_read() -> None:
    assert read("1/4", float) == 0.25
    assert read("8MB", float | Room) == Room(8_000_000)
    assert read("1,1/2", tuple[float, ...]) == (1.0, 0.5)
    for wrong in ("1/0", "1/", "a/2", "1/2/3"):
        with pytest.raises(ValueError, match="a number"):
            read(wrong, float)
    with pytest.raises(ValueError, match="a whole number"):
        read("4/2", int)
