"""What people see of clients' own masks: figures by round, lines and columns in tables, and the picture on the page."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gossamer import Lossy, Options, fedavg, fedprox, fedspa, simulate, sub_fedavg
from gossamer.analysis.theory.costs import paper_costs
from gossamer.cli import main
from gossamer.cli.rebuild import rebuild
from gossamer.core.bits import bits, unbits
from gossamer.core.method import Method
from gossamer.core.types import State
from gossamer.engines.simulation import Simulation
from gossamer.parts.views.mask_statistics import PAIRED, between, evenly, figures, held, moved, overlaps, row
from gossamer.runs.records import read_about, read_metrics
from gossamer.runs.report import REPORTS, Folder, heat, mask_layers, mask_map, page, tables
from gossamer.runs.report.order import chain
from gossamer.runs.report.summary import summarise
from gossamer.runs.report.text import number, size
from gossamer.testing import tiny_task
from helpers.paths import ROOT
from helpers.records import write_records

Record = dict[str, Any]
Flags = dict[str, Tensor]

FIGURES = ("moved", "density", "overlap")
BY_TENSOR = ("tensors", "tensor_density", "tensor_distance")


def packed(flags: Flags) -> State:
    return {"mask": {name: bits(mask) for name, mask in flags.items()}}


def joined(flags: Flags) -> Tensor:
    return torch.cat([flags[name] for name in sorted(flags)])


def overlap_of(one: Tensor, other: Tensor) -> float:
    """The definition, entry by entry."""
    either = int((one | other).sum())
    return int((one & other).sum()) / either if either else 1.0


def moved_of(old: Tensor, new: Tensor) -> float:
    return int((old & ~new).sum()) / max(1, int(old.sum()))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@st.composite
def clients(draw: st.DrawFn) -> tuple[list[Flags], list[Flags]]:
    """Masks of some clients for two tensors, before and after a round."""
    sizes = {"b": draw(st.integers(1, 200)), "a": draw(st.integers(1, 9))}
    source = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shares = st.sampled_from([0.0, 0.1, 0.5, 1.0])

    def one() -> Flags:
        share = draw(shares)
        return {name: torch.rand(size, generator=source) < share for name, size in sizes.items()}

    many = draw(st.integers(1, 5))
    return [one() for _ in range(many)], [one() for _ in range(many)]


# Counting.


@given(clients())
def test_figures_are_those_of_unpacked_masks(drawn: tuple[list[Flags], list[Flags]]) -> None:
    old, new = ([joined(flags) for flags in side] for side in drawn)
    before, after = ({2 * number: packed(flags) for number, flags in enumerate(side)} for side in drawn)
    like = {name: torch.empty(len(mask)) for name, mask in drawn[0][0].items()}
    found = figures(before, after, like)
    assert found["moved"] == pytest.approx(mean([moved_of(a, b) for a, b in zip(old, new, strict=True)]))
    assert found["density"] == pytest.approx(mean([float(mask.double().mean()) for mask in new]))
    pairs = [overlap_of(new[i], new[j]) for i in range(len(new)) for j in range(i)]
    assert found["overlap"] == (pytest.approx(mean(pairs)) if pairs else None)
    assert found["tensors"] == sorted(like)
    for at, name in enumerate(found["tensors"]):
        turned = [float((one[name] ^ other[name]).double().mean()) for one, other in zip(*drawn, strict=True)]
        density = mean([float(flags[name].double().mean()) for flags in drawn[1]])
        assert found["tensor_density"][at] == pytest.approx(density, rel=1e-3)
        assert found["tensor_distance"][at] == pytest.approx(mean(turned), rel=1e-3)


@given(clients())
def test_overlaps_of_all_pairs_are_those_of_unpacked_masks(drawn: tuple[list[Flags], list[Flags]]) -> None:
    new = drawn[0]
    found = overlaps([row(packed(flags)["mask"]) for flags in new])
    slow = [[overlap_of(joined(one), joined(other)) for other in new] for one in new]
    np.testing.assert_allclose(found, slow, rtol=0, atol=1e-15)


def test_long_masks_are_counted_piece_by_piece() -> None:
    draw = torch.Generator().manual_seed(1)
    flags = [torch.rand(300_001, generator=draw) < share for share in (0.2, 0.5, 0.9)]
    rows = [row({"w": bits(mask)}) for mask in flags]
    assert [held(one) for one in rows] == [int(mask.sum()) for mask in flags]
    slow = [overlap_of(flags[i], flags[j]) for i, j in ((1, 0), (2, 0), (2, 1))]
    assert between(overlaps(rows)).tolist() == slow
    assert moved(rows[0], rows[1]) == moved_of(flags[0], flags[1])


def test_the_order_of_tensors_does_not_matter() -> None:
    a, b = (bits(torch.rand(size, generator=torch.Generator().manual_seed(size)) < 0.5) for size in (13, 70))
    assert np.array_equal(row({"a": a, "b": b}), row({"b": b, "a": a}))


def test_of_a_large_round_clients_that_are_spread_evenly_are_compared() -> None:
    """The first half of the clients have one mask and the second half another, so that half of the pairs are equal."""
    one = torch.arange(64) < 32
    after = {client: packed({"w": one if client < PAIRED else ~one}) for client in range(2 * PAIRED)}
    found = figures(after, after, {"w": torch.empty(64)})
    half = PAIRED // 2
    apart = 2 * half * (half - 1) / (PAIRED * (PAIRED - 1))
    by_tensor = {"tensors": ["w"], "tensor_density": [0.5], "tensor_distance": [0.0]}
    assert found == {"moved": 0.0, "density": 0.5, "overlap": apart, **by_tensor}


@given(st.integers(1, 500), st.integers(1, 50))
def test_an_even_choice_takes_its_steps_as_equal_as_can_be(many: int, most: int) -> None:
    chosen = evenly(range(many), most)
    assert len(chosen) == min(many, most)
    assert chosen[0] == 0
    steps = np.diff([*chosen, many])
    assert steps.max() - steps.min() <= 1


@pytest.mark.parametrize("after", [{}, {3: {"mask": {}}}, {3: {}}])
def test_where_there_are_no_masks_there_are_no_figures(after: dict[int, State]) -> None:
    assert figures(after, after, {}) == dict.fromkeys(FIGURES)


# Records.


def unpacked(simulation: Simulation, client: int) -> Tensor:
    """A client's mask as booleans, the one it starts with if none is stored."""
    view = simulation.method.training.view
    mine = simulation.clients.get(client).get("view") or view.first(client)
    return joined({n: unbits(mask, simulation.like[n].numel()) for n, mask in mine["mask"].items()})


def watched(method: Method, **options: Any) -> tuple[Simulation, list[dict[str, float | None]]]:
    """A run, and each round's figures worked out from the states of its clients before and after it."""
    simulation = Simulation(method, tiny_task(), Options(**options))
    everybody = range(simulation.task.clients)
    states, expected = [unpacked(simulation, client) for client in everybody], []

    def watch(record: Record) -> None:
        nonlocal states
        new = [unpacked(simulation, client) for client in everybody]
        silent = {failure["client"] for failure in record["failures"]} | set(record["lost"])
        heard = [client for client in record["clients"] if client not in silent]
        assert all(torch.equal(states[c], new[c]) for c in everybody if c not in heard)
        pairs = [overlap_of(new[a], new[b]) for a in heard for b in heard if a < b]
        expected.append(
            {
                "moved": mean([moved_of(states[c], new[c]) for c in heard]) if heard else None,
                "density": mean([float(new[c].double().mean()) for c in heard]) if heard else None,
                "overlap": mean(pairs) if pairs else None,
                "heard": len(heard),
            }
        )
        states = new

    simulation.run(None, watch)
    return simulation, expected


METHODS = {
    "one start": fedspa(batch=8),
    "own starts": fedspa(batch=8, own_init=True, regrow="random", density=0.6),
    "fixed": fedspa(batch=8, mask="rsm", own_init=True),
    "pruned": sub_fedavg(batch=8, share=0.2, accuracy=0.0),
}


@pytest.mark.parametrize("name", METHODS)
def test_records_tell_what_the_states_of_clients_tell(name: str) -> None:
    options = {"rounds": 5, "per_round": 3, "failure_rate": 0.2, "channel": Lossy(0.3)}
    simulation, expected = watched(METHODS[name], **options)
    for record, wanted in zip(simulation.metrics, expected, strict=True):
        found = {figure: record["figures"]["masks"][figure] for figure in FIGURES}
        assert found == pytest.approx({figure: wanted[figure] for figure in FIGURES})
    moves = sum((wanted["moved"] or 0.0) * (wanted["heard"] or 0) for wanted in expected)
    assert REPORTS["masks"].summary(simulation.metrics, 5) == {
        **next(
            record["figures"]["masks"]
            for record in reversed(simulation.metrics)
            if record["figures"]["masks"]["density"] is not None
        ),
        "moved_in_all": pytest.approx(moves / 5),
    }
    assert (moves > 0) == (name != "fixed"), "or this shows nothing"
    assert {wanted["heard"] for wanted in expected} >= {0, 1, 2}, "nobody, one alone, and two to compare"


def test_records_of_a_resumed_run_are_the_same(tmp_path: Path) -> None:
    def stop(record: Record, run: Any) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    whole = simulate(METHODS["own starts"], tiny_task(), rounds=4, per_round=3)
    with pytest.raises(KeyboardInterrupt):
        simulate(METHODS["own starts"], tiny_task(), rounds=4, per_round=3, out=tmp_path / "run", callbacks=[stop])
    simulate(METHODS["own starts"], tiny_task(), rounds=4, per_round=3, out=tmp_path / "run", resume=True)
    assert [r["figures"]["masks"] for r in read_metrics(tmp_path / "run")] == [
        r["figures"]["masks"] for r in whole.metrics
    ]


def test_a_method_without_masks_has_none_of_it(tmp_path: Path) -> None:
    result = simulate(fedavg(epochs=1), tiny_task(), rounds=2, out=tmp_path / "run")
    assert not any("figures" in record for record in result.metrics)
    assert result.summary()["figures"] == {}
    assert "mask" not in tables.closing(result.summary())
    assert tables.VALUES not in tables.side_by_side(["a"], [result.summary()])
    tree = ElementTree.fromstring(page.write(Folder(tmp_path / "run", 5, tiny_task().data)).read_text())
    assert "Masks" not in [title.text for title in tree.iter("h2")]


def test_masks_that_leave_nothing_out_have_no_figures_and_no_picture(tmp_path: Path) -> None:
    result = simulate(fedspa(density=1.0), tiny_task(), rounds=1, out=tmp_path / "run")
    assert result.metrics[0]["figures"]["masks"] == dict.fromkeys(FIGURES)
    assert "mask density       –" in tables.closing(result.summary())
    assert "Masks" not in page.write(Folder(tmp_path / "run", 5)).read_text()


# Tables.


def test_lines_and_columns_are_shown(tmp_path: Path) -> None:
    result = simulate(METHODS["own starts"], tiny_task(), rounds=3, out=tmp_path / "run")
    summary = result.summary()
    lines = dict(tables.facts(summary))
    last = result.metrics[-1]["figures"]["masks"]
    assert lines["mask density"].startswith(f"{100 * last['density']:.2f} %")
    assert lines["mask overlap"].startswith(f"{100 * last['overlap']:.2f} %")
    in_all = sum(record["figures"]["masks"]["moved"] for record in result.metrics)
    assert lines["masks moved"].startswith(f"0.00 % of the held entries in the last round, {100 * in_all:.2f} % in all")


def test_values_are_counted_as_the_paper_counts_them() -> None:
    """4 bytes a held value both ways: every client holds as many as its mask and the tensors without one have."""
    spa, whole = (simulate(method, tiny_task(), rounds=3, per_round=2) for method in (fedspa(), fedavg()))
    size = whole.about["parameters"]
    simulation, _ = watched(fedspa(), rounds=1)
    mask = unpacked(simulation, 0)
    many = size - len(mask) + int(mask.sum())
    assert spa.summary()["bytes_values"] == 3 * 2 * 2 * 4 * many
    assert whole.summary()["bytes_values"] == 3 * 2 * 2 * 4 * size
    assert spa.summary()["bytes_values"] < spa.summary()["bytes_up"] + spa.summary()["bytes_down"]
    head, _, first, second = tables.side_by_side(["a", "b"], [spa.summary(), whole.summary()]).splitlines()
    assert re.search(rf"down  {tables.VALUES}  +operations", head)
    assert f"  {48 * many / 1000:.2f} kB  " in first
    assert f"  {48 * size / 1000:.2f} kB  " in second


@pytest.mark.parametrize(
    ("up", "counted"),
    [
        ({"codec.values": 40, "view.mask": 5, "overhead": 9}, 60),
        ({"codec.values": 40, "codec.rest.values": 8, "loss.labels": 1, "refused": 70}, 68),
        ({"codec.values": 40, "codec.quotients": 1, "codec.remainders": 3}, None),
        ({"codec.values": 40, "solver.noise": 4}, None),
        ({"codec.bits": 4, "codec.scale": 4}, None),
        ({}, 20),
    ],
)
def test_only_values_are_counted_as_values(up: dict[str, int], counted: int | None) -> None:
    sent = {"bytes_up": up, "bytes_down": {"down.values": 20, "overhead": 2}}
    result = simulate(fedavg(epochs=1), tiny_task(), rounds=1)
    assert summarise(result.about, [{**result.metrics[0], **sent}])["bytes_values"] == counted


# The picture.


def words(tree: ElementTree.Element) -> str:
    return " ".join(" ".join(tree.itertext()).split())


def pointed(tree: ElementTree.Element) -> dict[tuple[int, int], str]:
    """What each cell tells."""
    said = [str(title.text) for title in tree.iter("title")]
    found = [re.fullmatch(r"clients (\d+) and (\d+): (.*)", line) for line in said]
    return {(int(match[1]), int(match[2])): match[3] for match in found if match}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by the command line: some clients never took part, and some took part twice."""
    run = tmp_path_factory.mktemp("kept") / "run"
    asked = ["fedspa", "--rounds", "3", "--clients", "12", "--per-round", "4", "--epochs", "1", "--own-init"]
    assert main(["run", *asked, "--split", "dirichlet:0.3", "--executor", "one-by-one", "--out", str(run)]) == 0
    return run


def test_the_page_shows_every_two_clients_in_order_of_their_labels(kept: Path) -> None:
    from gossamer.cli.build import make_method, make_task
    from gossamer.cli.request import Request
    from gossamer.engines.export import stand
    from gossamer.runs.checkpoint import read_split
    from gossamer.tasks.data import Split

    about = read_about(kept)
    split = Split.from_tensors(read_split(kept))
    request = Request.read(about["request"])
    task = make_task(request, 0, split)
    run = stand(kept, make_method(request), task)
    assert 0 < len([c for c in range(12) if run.clients.get(c).get("view")]) < 12, "or all took part"
    assert set(run.metrics[0]["clients"]) & set(run.metrics[1]["clients"]), "or nobody moved on"
    assert (kept / "clients/1.safetensors").exists(), "or the older masks are gone"
    states = [unpacked(run, client) for client in range(12)]
    counts = split.counts(task.data.train.labels, task.data.classes)
    order = chain(counts / counts.sum(axis=1, keepdims=True))

    tree = ElementTree.fromstring((kept / "report.html").read_text())
    slow = {(a, b): overlap_of(states[a], states[b]) for a in order for b in order if a != b}
    assert pointed(tree) == {pair: f"{100 * value:.2f} %" for pair, value in slow.items()}
    assert list(pointed(tree)) == list(slow), "rows from top to bottom, and cells from left to right"
    said = words(tree)
    assert f"The mean is {100 * mean(list(slow.values())):.2f} %." in said
    assert "Neighbours have similar label distributions" in said
    assert "Left out" not in said


def test_show_writes_the_same_page_and_tells_the_figures(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (kept / "report.html").read_text()
    assert main(["show", str(kept), "--html"]) == 0
    assert (kept / "report.html").read_text() == before
    capsys.readouterr()
    assert main(["show", str(kept)]) == 0
    last = read_metrics(kept)[-1]["figures"]["masks"]
    assert f"mask overlap       {100 * last['overlap']:.2f} %" in capsys.readouterr().out
    assert main(["show", str(kept), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["masks"].keys() == {*FIGURES, *BY_TENSOR, "moved_in_all"}


def test_the_page_has_a_cell_for_each_tensor_and_round(kept: Path) -> None:
    said = (kept / "report.html").read_text()
    for record in read_metrics(kept):
        found = record["figures"]["masks"]
        for entry in BY_TENSOR[1:]:
            for name, value in zip(found["tensors"], found[entry], strict=True):
                assert f"{name}, round {record['round']}: {100 * value:.2f} %" in said
    assert "Density of the masks by tensor and round" in said


def test_runs_without_figures_by_tensor_have_no_maps_of_them() -> None:
    assert mask_layers.figure([(1, dict.fromkeys(FIGURES, 0.5))]) == ""


def test_a_long_run_shows_evenly_spaced_rounds() -> None:
    figures = {"tensors": ["w"], "tensor_density": [0.5], "tensor_distance": [0.25]}
    said = mask_layers.figure([(at, figures) for at in range(1, 1001)])
    assert f"{said.count('w, round ') // 2}" == f"{mask_layers.SHOWN}"


def test_show_compares_costs_with_the_papers_count(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(kept), "--paper-costs"]) == 0
    said, metrics = capsys.readouterr().out, read_metrics(kept)
    both = [record[way] for record in metrics for way in ("bytes_up", "bytes_down")]
    values = sum(n for kinds in both for kind, n in kinds.items() if kind.endswith("values"))
    assert values < sum(n for kinds in both for n in kinds.values())
    assert size(values) in said
    assert "arxiv.org/abs/2201.11380" in said
    method, task = rebuild(kept, read_about(kept))
    found = paper_costs("fedspa", method, task, metrics)
    assert found.bytes == values
    assert found.flops is not None
    assert number(found.flops) in said


def test_a_method_without_a_papers_count_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(fedprox(), tiny_task(), rounds=1, out=tmp_path / "run")
    assert main(["show", str(tmp_path / "run"), "--paper-costs"]) == 2
    assert "fedprox: no paper's count of costs is known for this method: known for fedspa" in capsys.readouterr().err


def test_compare_says_what_is_counted(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", str(kept)]) == 0
    assert "values only: as FedSpa's paper counts: 4 bytes per held value" in capsys.readouterr().out


def test_a_run_from_python_leaves_out_whose_mask_it_does_not_know(tmp_path: Path) -> None:
    task = tiny_task(clients=8)
    result = simulate(METHODS["own starts"], task, rounds=2, per_round=3, out=tmp_path / "run")
    part = sorted({client for record in result.metrics for client in record["clients"]})
    assert 3 < len(part) < 8
    tree = ElementTree.fromstring(page.write(Folder(tmp_path / "run", 5)).read_text())
    assert {client for pair in pointed(tree) for client in pair} <= set(part)
    assert list(dict.fromkeys(client for client, _ in pointed(tree))) == part, "by number, as there is no data"
    said = words(tree)
    assert "Clients are in order of their numbers: their labels are not known here." in said
    assert f"Left out: {8 - len(part)} clients whose mask has not changed yet" in said


OWN = """
import torch
from gossamer import Task, fedspa

def mine():
    return fedspa(epochs=1, own_init=True, density=DENSITY)

def task():
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(60, 5, generator=draw), torch.arange(60) % 3
    layers = torch.nn.Linear(5, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 3)
    return Task.of(lambda: torch.nn.Sequential(*layers), (x, y), (x, y), clients=6)
"""


@pytest.mark.parametrize(("density", "width"), [("0.25", "8"), ("0.5", "16")])
def test_a_recipe_or_a_task_that_was_changed_gives_no_masks_to_start_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, density: str, width: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN.replace("DENSITY", "0.5").replace("WIDTH", "8"))
    asked = ["--task", "own.py:task", "--rounds", "1", "--per-round", "2", "--executor", "one-by-one", "--out", "run"]
    assert main(["run", "own.py:mine", *asked]) == 0
    assert "Left out" not in Path("run/report.html").read_text()
    Path("own.py").write_text(OWN.replace("DENSITY", density).replace("WIDTH", width))
    assert main(["show", "run", "--html"]) == 0
    assert "Left out: 4 clients whose mask" in Path("run/report.html").read_text()


def test_masks_that_never_move_cannot_be_had_without_the_view(tmp_path: Path) -> None:
    simulate(METHODS["fixed"], tiny_task(), rounds=1, out=tmp_path / "run")
    tree = ElementTree.fromstring(page.write(Folder(tmp_path / "run", 5)).read_text())
    assert "Fewer than two masks are available. Left out: 5 clients" in words(tree)
    assert mask_map.TITLE not in [svg.get("aria-label") for svg in tree.iter("svg")]


def test_of_many_clients_some_that_are_spread_evenly_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_map, "SHOWN", 4)
    task = tiny_task(clients=8)
    simulate(METHODS["own starts"], task, rounds=1, out=tmp_path / "run")
    tree = ElementTree.fromstring(page.write(Folder(tmp_path / "run", 5)).read_text())
    assert sorted({client for client, _ in pointed(tree)}) == [0, 2, 4, 6]
    assert "4 clients of 8 are shown, evenly spaced." in words(tree)


def test_damaged_files_of_clients_are_told_on_the_page(tmp_path: Path) -> None:
    simulate(METHODS["own starts"], tiny_task(), rounds=1, out=tmp_path / "run")
    (tmp_path / "run/clients/1.safetensors").write_bytes(b"<nonsense>")
    tree = ElementTree.fromstring(page.write(Folder(tmp_path / "run", 5)).read_text())
    assert "run/clients/1.safetensors cannot be used: it was altered since it was written" in words(tree)


def test_a_run_without_masks_in_its_records_is_shown_as_ever(tmp_path: Path) -> None:
    """As earlier versions wrote them."""
    result = simulate(METHODS["own starts"], tiny_task(), rounds=2, out=tmp_path / "run")
    old = [{name: value for name, value in record.items() if name != "figures"} for record in result.metrics]
    write_records(tmp_path / "run", old)
    assert main(["show", str(tmp_path / "run")]) == 0
    assert main(["show", str(tmp_path / "run"), "--html"]) == 0
    assert "Masks" not in (tmp_path / "run/report.html").read_text()
    mixed = summarise(result.about, [old[0], result.metrics[1]])
    assert mixed["figures"]["masks"]["density"] == result.metrics[1]["figures"]["masks"]["density"]


@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 2**32))
def test_after_each_client_comes_the_nearest_of_those_left(many: int, labels: int, seed: int) -> None:
    counts = np.random.default_rng(seed).integers(0, 4, (many, labels)).astype(np.float64)
    order = chain(counts)
    assert sorted(order) == list(range(many))
    for place, (one, other) in enumerate(pairwise(order)):
        distance = [np.abs(counts[one] - counts[left]).sum() for left in order[place + 1 :]]
        assert np.abs(counts[one] - counts[other]).sum() == min(distance)


def test_clients_of_the_same_labels_stand_together() -> None:
    groups = np.array([0, 1, 2, 0, 2, 1, 0])
    assert [len(set(groups[chain(np.eye(3)[groups])][a:b])) for a, b in ((0, 2), (2, 4))] == [1, 1]


@pytest.mark.parametrize("many", [2, heat.MARKED, heat.MARKED + 1, 200])
def test_a_picture_has_every_cell_whatever_the_number_of_clients(many: int) -> None:
    alike = np.random.default_rng(many).random((many, many))
    alike = np.maximum(alike, alike.T)
    mesh: Any = heat.figure(list(range(many)), alike).axes[0].collections[0]
    cells = mesh.get_array()
    assert cells.mask.diagonal().all(), "a client and itself are blank"
    apart = ~np.eye(many, dtype=bool)
    np.testing.assert_array_equal(cells[apart], alike[apart])
    opacity = mesh.cmap(mesh.norm(cells))[..., 3]
    assert (np.diff(opacity[apart][np.argsort(alike[apart])]) >= 0).all(), "darker where two are more alike"
    drawn = heat.heat(mask_map.TITLE, list(range(many)), alike)
    tree = ElementTree.fromstring(f"<div>{drawn}</div>")
    assert len(pointed(tree)) == (many * (many - 1) if many <= heat.MARKED else 0)
    assert len(drawn) < 800_000


def test_where_all_are_the_same_there_is_one_shade() -> None:
    square, bar = heat.figure([4, 7, 9], np.ones((3, 3))).axes
    mesh: Any = square.collections[0]
    assert set(mesh.cmap(mesh.norm(mesh.get_array().compressed()))[..., 3].tolist()) == {1.0}
    assert [label.get_text() for label in bar.get_xticklabels()] == ["100.00 %"]


# Words.


def test_every_figure_is_described() -> None:
    told = (ROOT / "docs/runs.md").read_text()
    before, _, after = told.partition("## show --json")
    assert [name for name in FIGURES if f"| `{name}` |" not in before] == []
    assert [name for name in ("masks", "moved_in_all", "bytes_values", *FIGURES) if f"`{name}`" not in after] == []
    assert f"more than {PAIRED} clients those of {PAIRED}" in before
    assert f"more than {mask_map.SHOWN} clients, {mask_map.SHOWN} are shown" in " ".join(after.split())
