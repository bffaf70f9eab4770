"""What people see of who learns from whom: groups in words, figures in tables, the picture on the page, and help."""

import json
import re
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gossamer import METHODS, fedavg, simulate
from gossamer.cli import main
from gossamer.cli.build import make_task
from gossamer.cli.build_method import make_method
from gossamer.cli.flags import flags
from gossamer.cli.request import Request
from gossamer.core import files
from gossamer.engines import Options
from gossamer.engines.export import stand
from gossamer.engines.simulation import Simulation
from gossamer.methods import perm, perm_two_stage
from gossamer.parts.servers import mixing as servers
from gossamer.runs.checkpoint import read_server, read_split
from gossamer.runs.records import read_about, read_metrics
from gossamer.runs.report import Folder, heat, mixing, page, tables, text
from gossamer.runs.report.mixing import WeightCluster, weights_of
from gossamer.runs.report.summary import summarise
from gossamer.tasks.data import Split
from gossamer.testing import tiny_task
from helpers.paths import ROOT

ASKED = shlex.split("--data two-populations --clients 6 --rounds 8 --warmup 2 --steps 4 --executor one-by-one")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by the command line, in which some losses are capped."""
    run = tmp_path_factory.mktemp("kept") / "run"
    assert main(["run", "perm", *ASKED, "--bound", "0.08", "--out", str(run)]) == 0
    return run


# Groups.


@st.composite
def squares(draw: st.DrawFn) -> Tensor:
    """Weights of some clients, many of them 0."""
    many = draw(st.integers(1, 12))
    source = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    drawn = torch.rand(many, many, generator=source, dtype=torch.float64) + torch.eye(many)
    drawn *= torch.rand(many, many, generator=source) < draw(st.sampled_from([0.1, 0.3, 0.8]))
    drawn += 1e-3 * torch.eye(many)
    return drawn / drawn.sum(1, keepdim=True)


def everybody(square: Tensor) -> mixing.Mixing:
    return weights_of({"weights": square}, torch.ones(len(square), dtype=torch.bool))


def slow_groups(square: Tensor) -> list[WeightCluster]:
    """The definition: who can be reached by steps between clients whose mean weight is above 1 / (2 N)."""
    many = len(square)
    joined = (square + square.T) / 2 > 1 / (2 * many)
    left, found = set(range(many)), []
    while left:
        members, edge = set(), {min(left)}
        while edge:
            members |= edge
            edge = {j for i in edge for j in range(many) if joined[i, j]} - members
        left -= members
        clients = sorted(members)
        found.append(WeightCluster(clients, float(square[clients][:, clients].sum()) / len(clients)))
    return sorted(found, key=lambda group: (-len(group.clients), group.clients[0]))


def assert_same(found: list[WeightCluster], others: list[WeightCluster]) -> None:
    assert [group.clients for group in found] == [group.clients for group in others]
    assert [group.within for group in found] == pytest.approx([group.within for group in others])


@given(squares())
def test_groups_are_those_of_the_definition(square: Tensor) -> None:
    assert_same(mixing.groups(everybody(square)), slow_groups(square))


@given(squares())
def test_few_weights_a_client_give_the_groups_of_their_square(square: Tensor) -> None:
    much, who = square.sort(dim=1, descending=True)
    few = {"who": who[:, :3], "much": much[:, :3]}
    found = mixing.groups(weights_of(few, torch.ones(len(square), dtype=torch.bool)))
    assert_same(found, slow_groups(servers.square(few, len(square))))


@given(squares(), st.integers(0, 1000))
def test_clusters_give_the_groups_of_their_square(between: Tensor, seed: int) -> None:
    """Clients of a cluster have the same samples, and a cluster has a weight for itself, so that it is a group."""
    count = len(between)
    between = (between + torch.eye(count).double()) / 2
    cluster = torch.from_numpy(np.random.default_rng(seed).permutation(np.repeat(np.arange(count), 3)))
    kept = {"cluster": cluster, "share": torch.full((3 * count,), 1 / 3).double(), "between": between}
    clustered, full = weights_of(kept, torch.ones(3 * count, dtype=torch.bool)), servers.square(kept, 3 * count)
    assert_same(mixing.groups(clustered), slow_groups(full))
    order = list(range(3 * count))
    for each in (1, 4):
        assert mixing.blocks(clustered, order, each) == pytest.approx(mixing.blocks(everybody(full), order, each))


def test_a_long_chain_is_one_group() -> None:
    square = (torch.eye(500) + torch.eye(500).roll(1, 0)).double() / 2
    order = torch.randperm(500, generator=torch.Generator().manual_seed(1))
    assert_same(mixing.groups(everybody(square[order][:, order])), [WeightCluster(list(range(500)), 1.0)])


def test_a_client_with_few_samples_belongs_to_those_that_it_learns_from() -> None:
    """Others have little weight for it, in proportion to its samples; its own for them counts too."""
    samples = torch.tensor([100, 100, 100, 20, 100, 100])
    z = torch.zeros(6, 6)
    z[:4, 4:] = z[4:, :4] = 1e3
    weights = servers.waterfill(z, samples, 10.0)
    assert weights[0, 3] < 1 / 12
    assert [group.clients for group in mixing.groups(everybody(weights))] == [[0, 1, 2, 3], [4, 5]]


def test_who_was_not_compared_yet_is_in_no_group_and_not_drawn() -> None:
    weights = servers.even(5).clone()
    weights[:2] = torch.tensor([0.75, 0.25, 0, 0, 0])
    known = weights_of({"weights": weights}, torch.tensor([True, True, False, False, False]))
    found = mixing.groups(known)
    assert found == [WeightCluster([0, 1], 1.0)]
    assert [*mixing.described(found, 5)][1:] == [
        "0-1: 2 clients, 100.00 % of their weight within the group",
        "not compared yet: 3 clients",
    ]
    assert mixing.blocks(known, mixing.ordered(known, found)).tolist() == [[0.75, 0.25], [0.75, 0.25]]


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranges_name_all_numbers_or_say_how_many_are_left(numbers: set[int]) -> None:
    said = text.ranges(sorted(numbers))
    pieces = re.findall(r"(\d+)-(\d+)|(\d+)(?=,|$| and)", re.sub(r" and (\d+) more$", "", said))
    named = [n for a, b, one in pieces for n in (range(int(a), int(b) + 1) if a else [int(one)])]
    more = re.search(r" and (\d+) more$", said)
    assert named == sorted(numbers)[: len(named)]
    assert len(named) + (int(more[1]) if more else 0) == len(numbers)
    assert len(pieces) == text.RANGES or not more


def test_thousands_of_clients_take_a_few_lines() -> None:
    pairs = [WeightCluster([3 * n, 3 * n + 1], 0.75) for n in range(1000)]
    alone = [WeightCluster([3 * n + 2], 0.5 + n / 1998) for n in range(1000)]
    said = list(mixing.described([WeightCluster(list(range(3000, 3500)), 1.0), *pairs, *alone], 3500))
    assert said == [
        f"1,001 groups of clients that learn from each other ({mixing.RULE})",
        "3000-3499: 500 clients, 100.00 % of their weight within the group",
        *(f"{3 * n}-{3 * n + 1}: 2 clients, 75.00 % of their weight within the group" for n in range(4)),
        "and 996 more groups of 2 clients",
        "alone: 2, 5, 8, 11, 14, 17 and 994 more: 1,000 clients, 75.00 % of their weight on themselves",
    ]


# Tables.


def test_show_tells_what_the_records_tell(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = read_metrics(kept)
    last, visits = (
        metrics[-1]["figures"]["mixing"],
        [record["figures"]["visits"] for record in metrics if "visits" in record["figures"]],
    )
    assert len(visits) == 6, "models go round after the warm-up"
    total = {kind: sum(visit[kind] for visit in visits) for kind in ("trained", "skipped", "capped", "idle")}
    assert total["trained"] > visits[-1]["trained"] > 0, "or a line shows nothing"

    capsys.readouterr()
    assert main(["show", str(kept)]) == 0
    said = capsys.readouterr().out
    assert f"own weight         {100 * last['own']:.2f} %" in said
    assert f"learns from        {last['peers']:.1f} clients in effect (median), lambda {last['lam']:.4g}" in said
    now = ", ".join(f"{visits[-1][kind]} {kind}" for kind in total)
    assert f"visits             {now} (in the last round)" in said
    in_all = ", ".join(f"{many} {kind}" for kind, many in total.items())
    assert f"visits in all      {in_all}\n" in said
    epoch, rounds = visits[-1]["epoch"], visits[-1]["epoch_rounds"]
    assert f"epochs             {epoch} finished, the last one of {rounds} round" in said
    assert "2 groups of clients" in said
    assert "\n  0-2: 3 clients, 100.00 % of their weight within the group\n  3-5: 3 clients, 100.00 %" in said

    assert main(["show", str(kept), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["figures"]["mixing"] == {**last, "groups": facts["figures"]["mixing"]["groups"]}
    assert facts["figures"]["visits"] == {**visits[-1], **{f"{kind}_in_all": many for kind, many in total.items()}}
    assert [group["clients"] for group in facts["figures"]["mixing"]["groups"]] == [[0, 1, 2], [3, 4, 5]]
    assert [group["within"] for group in facts["figures"]["mixing"]["groups"]] == pytest.approx([1.0, 1.0])


def test_compare_has_columns_where_any_run_mixes(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    simulate(fedavg(epochs=1), tiny_task(), rounds=1, out="avg")
    last = read_metrics(kept)[-1]
    assert main(["compare", "avg", str(kept)]) == 0
    head, _, first, second = capsys.readouterr().out.splitlines()[:4]
    assert head.endswith("own weight  learns from  visits  idle")
    assert re.search(r"( +–){4}$", first)
    visits = summarise(read_about(kept), read_metrics(kept))["figures"]["visits"]
    assert second.split()[-5:] == [
        f"{100 * last['figures']['mixing']['own']:.2f}",
        "%",
        f"{last['figures']['mixing']['peers']:.1f}",
        f"{visits['trained_in_all']}",
        f"{visits['idle_in_all']}",
    ]


def test_a_method_without_mixing_has_none_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = simulate(fedavg(epochs=1), tiny_task(), rounds=1, out=tmp_path / "run")
    assert result.summary()["figures"] == {}
    assert "own weight" not in tables.closing(result.summary())
    assert "own weight" not in tables.side_by_side(["run"], [result.summary()])
    assert "Who learns" not in page.write(Folder(tmp_path / "run", 5)).read_text()
    assert main(["show", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"] == {}


def test_in_the_warm_up_there_are_no_visits(tmp_path: Path) -> None:
    summary = simulate(perm(warmup=5, steps=1), tiny_task(), rounds=1).summary()
    lines = dict(tables.facts(summary))
    assert "own weight" in lines
    assert "visits" not in lines
    assert tables.side_by_side(["a"], [summary]).splitlines()[0].endswith("own weight  learns from")


def test_before_clients_are_compared_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(perm_two_stage(warmup=5, steps=1), tiny_task(), rounds=1, out=tmp_path / "run")
    assert main(["show", str(tmp_path / "run")]) == 0
    assert "learn from each other" not in capsys.readouterr().out
    assert "Who learns" not in page.write(Folder(tmp_path / "run", 5)).read_text()


def test_a_damaged_checkpoint_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(perm(warmup=0, steps=1), tiny_task(), rounds=1, out=tmp_path / "run")
    (tmp_path / "run/checkpoints/1/server.safetensors").write_bytes(b"<nonsense>")
    assert main(["show", str(tmp_path / "run")]) == 0
    assert "groups of clients that learn from each other are unknown: " in capsys.readouterr().out
    assert main(["show", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["mixing"]["groups"] is None
    drawn = page.write(Folder(tmp_path / "run", 5)).read_text()
    assert "checkpoints/1/server.safetensors cannot be used: it was altered since it was written" in drawn


# The picture.


def picture(tree: ElementTree.Element) -> ElementTree.Element:
    (svg,) = (svg for svg in tree.iter("svg") if svg.get("aria-label") == mixing.TITLE)
    return svg


def pointed(tree: ElementTree.Element) -> dict[tuple[int, int], str]:
    """What each cell tells."""
    said = [str(title.text) for title in picture(tree).iter("title")]
    found = [re.fullmatch(r"client (\d+) from client (\d+): (.*)", line) for line in said]
    return {(int(match[1]), int(match[2])): match[3] for match in found if match}


def test_the_page_shows_every_weight_with_groups_together(kept: Path) -> None:
    tree = ElementTree.fromstring((kept / "report.html").read_text())
    square = servers.square(read_server(kept)["mixing"], 6)
    assert float(square[:3, 3:].sum() + square[3:, :3].sum()) == 0, "the halves have nothing for each other"
    slow = {(i, j): f"{100 * float(square[i, j]):.2f} %" for i in range(6) for j in range(6) if square[i, j] > 0}
    assert pointed(tree) == slow
    assert (square.diagonal() > 0).all(), "a client and itself are shown"
    order = list(dict.fromkeys(row for row, _ in pointed(tree)))
    assert sorted(order[:3]) == [0, 1, 2]
    said = " ".join(" ".join(tree.itertext()).split())
    assert "0-2: 3 clients, 100.00 % of their weight within the group" in said
    titles = [str(caption.text) for caption in tree.iter("figcaption")]
    assert {"Weight of a client for itself (%)", "Visits of models to clients"} <= set(titles)
    dots = [title.text for title in tree.iter("title")]
    for record in read_metrics(kept):
        assert f"median: {100 * record['figures']['mixing']['own']:.4g} at {record['round']}" in dots
        assert f"median: {record['figures']['mixing']['peers']:.4g} at {record['round']}" in dots
    assert "capped: 0 at 1" not in dots, "there are no visits in the warm-up"


def test_show_writes_the_same_page(kept: Path) -> None:
    before = (kept / "report.html").read_text()
    assert main(["show", str(kept), "--html"]) == 0
    assert (kept / "report.html").read_text() == before


@given(squares(), st.integers(1, 5), st.integers(0, 2**32))
def test_blocks_are_means_over_rows_and_sums_over_columns(square: Tensor, each: int, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(square)).tolist()
    parts = [order[start : start + each] for start in range(0, len(order), each)]
    slow = [[float(square[rows][:, columns].sum(1).mean()) for columns in parts] for rows in parts]
    found = mixing.blocks(everybody(square), order, each)
    np.testing.assert_allclose(found, slow, atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 1)


def test_of_many_clients_several_share_a_row(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixing, "SHOWN", 2)
    tree = ElementTree.fromstring(f"<div>{mixing.mixing_map(kept)}</div>")
    assert len(list(picture(tree).iter("title"))) == 2, "each half for itself"
    assert "3 neighbours share a row and a column" in "".join(tree.itertext())


def test_clients_with_similar_weights_are_neighbours() -> None:
    """Odd and even ones in one group, with different strengths, stand apart."""
    square = torch.tensor([[5.0, 3.0] * 3, [3.0, 5.0] * 3] * 3).double() / 24
    found = everybody(square)
    (group,) = mixing.groups(found)
    order = mixing.ordered(found, [group])
    assert {frozenset(order[:3]), frozenset(order[3:])} == {frozenset({0, 2, 4}), frozenset({1, 3, 5})}


def test_shades_begin_where_they_are_told_to() -> None:
    """Weights that are all alike are equally dark, and not shaded by what little they differ."""
    shares = np.array([[0.50, 0.49], [0.49, 0.50]])
    none = np.zeros((2, 2), dtype=bool)
    ends = {}
    for lowest in (None, 0.0):
        mesh: Any = heat.heat_figure([4, 7], shares, blank=none, lowest=lowest).axes[0].collections[0]
        ends[lowest] = mesh.cmap(mesh.norm(mesh.get_array()))[..., 3].round(2)
    assert ends[None].tolist() == [[1.0, 0.19], [0.19, 1.0]]
    assert ends[0.0].tolist() == [[1.0, 1.0], [1.0, 1.0]]


# Words.


@pytest.mark.parametrize("name", ["perm", "perm-two-stage", "sub-fedavg", "fedsparsify", "fedavg-pruned"])
def test_every_flag_has_a_meaning(name: str) -> None:
    assert [flag.word for flag in flags(METHODS[name], name) if not flag.meaning] == []


def test_a_recipe_means_by_a_flag_what_the_part_of_a_stage_says() -> None:
    told = {flag.word: flag.meaning for flag in flags(perm, "perm")}
    assert (
        told["--clusters"]
        == "compute weights between this number of clusters; none has 50 if there are more than 2,000 clients"
    )
    assert told["--warmup"].startswith("rounds before the rotation starts"), "of the last exchange, where both have one"


def test_fields_of_early_exchanges_are_refused_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "perm", *ASKED, "--set", "before.server.lr=1"]) == 2
    said = "--set before.server.lr=1: fields of earlier exchanges cannot be set: use the recipe's flags"
    assert said in capsys.readouterr().err


def test_every_figure_is_described() -> None:
    told = (ROOT / "docs/runs.md").read_text()
    before, _, after = told.partition("## show --json")
    assert [name for name in ("own", "peers", "lam") if f"| `{name}` |" not in before] == []
    assert [name for name in ("trained", "skipped", "capped", "epoch") if f"| `{name}` |" not in before] == []
    assert [name for name in ("mixing", "visits", "groups", "capped_in_all") if f"`{name}`" not in after] == []
    assert f"More than {mixing.SHOWN} clients" in after


# Export.


def test_an_exported_client_is_its_own_model(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = read_about(kept)
    request = Request.read(about["request"])
    method, task = make_method(request), make_task(request, 0, Split.from_tensors(read_split(kept)))
    live = Simulation(method, task, Options(rounds=8))
    live.run(None, lambda record: None)
    models: list[dict[str, Any]] = []
    for client in (1, 4):
        assert main(["export", str(kept), "--client", str(client), "--out", str(kept / f"export/{client}")]) == 0
        assert f"the personalized model of client {client}" in capsys.readouterr().out
        models.append(files.from_tensors(kept / f"export/{client}/model.safetensors"))
        own, again = live.client_params(client), stand(kept, method, task).client_params(client)
        assert models[-1].keys() == own.keys()
        assert all(torch.equal(models[-1][name], own[name]) and torch.equal(own[name], again[name]) for name in own)
    assert not any(torch.equal(models[0][name], models[1][name]) for name in models[0]), "each has another"
    assert not any(torch.equal(models[0][name], tensor) for name, tensor in live.deployed().items()), "nor that of all"
