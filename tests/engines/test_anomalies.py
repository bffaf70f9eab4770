"""The anomaly report: who is named, what is kept of an upload, and who is excluded."""

import math
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gossamer
from gossamer import METHODS, ConfigError, Method, Task, fedavg, simulate
from gossamer.cli import main
from gossamer.core.exchange import Arrival
from gossamer.core.random import key
from gossamer.core.types import Part
from gossamer.engines.anomalies import FEWEST, SKETCH, AnomalyWatch, Exclusion, Limit, far, to_centre
from gossamer.engines.flower.settings import Settings
from gossamer.runs.report.summary import anomalies_of
from gossamer.testing import tiny_task

KEY = key(7)


def digits(split: str = "iid", clients: int = 12) -> Task:
    return Task.named("digits", clients=clients, split=split)


def noted(updates: list[torch.Tensor], samples: list[int] | None = None) -> AnomalyWatch:
    watch = AnomalyWatch(KEY)
    for client, update in enumerate(updates):
        change = {"w": update}
        watch.note(Arrival.of(client, Part(), change, samples[client] if samples else 10), update)
    return watch


def cohort(size: int = 3000, clients: int = 10) -> list[torch.Tensor]:
    """Updates with a common direction, and noise of the same norm."""
    generator = torch.Generator().manual_seed(1)
    common = torch.randn(size, generator=generator)
    return [common + torch.randn(size, generator=generator) for _ in range(clients)]


@pytest.mark.parametrize("size", [50, 1024, 1500, 20_000])
def test_sketches_keep_cosines(size: int) -> None:
    updates, watch = cohort(size, 20), AnomalyWatch(KEY)
    sketches = torch.stack([watch.sketch(update) for update in updates])
    assert sketches.shape == (20, min(size, SKETCH))
    exact, short = (torch.nn.functional.normalize(torch.stack(list(each)), dim=1) for each in (updates, sketches))
    error = (exact @ exact.T - short @ short.T).abs()
    assert float(error.max()) <= (0 if size <= SKETCH else 5 / math.sqrt(SKETCH)) + 1e-6


def test_a_sketch_uses_every_entry() -> None:
    watch = AnomalyWatch(KEY)
    for size in (10, 1025, 3001):
        columns = torch.stack([watch.sketch(column).abs().sum() for column in torch.eye(size)[:: size // 5]])
        assert torch.equal(columns, torch.ones_like(columns))


def test_an_honest_cohort_has_no_anomaly() -> None:
    assert noted(cohort()).report() == []


def test_norm_direction_and_weight_are_named() -> None:
    updates = cohort()
    updates[2], updates[5] = updates[2] * 100, -updates[5]
    found = noted(updates, [10, 12, 9, 10, 2**62, 10, 10, 11, 10, 8]).report()
    assert [mine["client"] for mine in found] == [2, 4, 5]
    assert found[0].keys() == {"client", "norm"}
    assert found[0]["norm"] == pytest.approx(100, rel=0.1)
    assert found[1] == {"client": 4, "weight": pytest.approx(2**62 / 10, rel=0.01)}
    assert found[2].keys() == {"client", "direction"}
    assert found[2]["direction"] < -0.2


def test_a_minority_of_hostile_clients_does_not_move_the_statistics() -> None:
    updates = cohort(clients=11)
    for client in range(5):
        updates[client] = -1000 * updates[client]
    assert [mine["client"] for mine in noted(updates).report()] == [0, 1, 2, 3, 4]


def test_small_cohorts_silent_clients_and_overflows() -> None:
    updates = cohort(clients=FEWEST - 1)
    assert noted([*updates[:-1], updates[-1] * 1000]).report() == []
    updates = cohort()
    updates[1], updates[3] = torch.zeros(3000), torch.full((3000,), 3e38)
    assert noted([torch.zeros(3000)] * 10).report() == noted([torch.full((3000,), 3e38)] * 10).report() == []
    found = noted(updates).report()
    assert [mine["client"] for mine in found] == [3]
    assert math.isfinite(found[0]["norm"])


def test_parts_of_different_sizes_are_compared_per_entry() -> None:
    watch = AnomalyWatch(KEY)
    for client, size in enumerate((2000, 2000, 1000, 500, 100, 100)):
        whole = torch.zeros(2000)
        whole[:size] = 1.0
        watch.note(Arrival.of(client, Part(), {"w": torch.ones(size)}, 10), whole)
    assert watch.measures()["norm"] == pytest.approx(dict.fromkeys(range(6), 0.0), abs=1e-6)
    assert watch.report() == []


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.floats(0.1, 3), st.floats(1, 8))
def test_far_is_the_rule_that_is_documented(values: list[float], least: float, deviations: float) -> None:
    found = far(dict(enumerate(values)), Limit(deviations, least))
    centre = float(torch.tensor(values, dtype=torch.float64).quantile(0.5))
    spread = 1.4826 * float((torch.tensor(values, dtype=torch.float64) - centre).abs().quantile(0.5))
    assert centre == pytest.approx(median(values))
    limit = centre + max(least, deviations * spread)
    clear = {client for client, value in enumerate(values) if abs(value - limit) > 1e-9}
    assert found.keys() & clear == {client for client in clear if values[client] > limit}


def test_the_centre_is_a_median() -> None:
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert to_centre(vectors)[3] == pytest.approx(-1)


# Runs.


@pytest.mark.parametrize("name", ["fedavg", "signsgd", "fedmrn", "eden", "heterofl", "onebit-cs", "fedpm", "fedspa"])
def test_a_client_that_multiplies_its_update_is_named(name: str) -> None:
    """FedPM sends masks, which cannot be multiplied: nobody is named."""
    result = simulate(METHODS[name](), digits(), rounds=1, attack="scale:100,share=0.05")
    named = {mine["client"] for mine in result.anomalies}
    assert named == (set() if name == "fedpm" else set(result.about["hostile"]))


@pytest.mark.parametrize("split", ["iid", "dirichlet:0.3", "labels:2"])
@pytest.mark.parametrize("seed", [0, 1])
def test_nobody_is_named_in_honest_runs(split: str, seed: int) -> None:
    task = Task.named("digits", clients=12, split=split, seed=seed)
    result = simulate(fedavg(epochs=2), task, rounds=4, seed=seed)
    assert result.anomalies == []
    assert not any("anomalies" in record or "excluded" in record for record in result.metrics)


def test_models_do_not_depend_on_the_report() -> None:
    models = [simulate(fedavg(), digits(), rounds=2, anomalies=on).model.state_dict() for on in (True, False)]
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())


@pytest.mark.slow
def test_executors_name_the_same_clients() -> None:
    found = [
        simulate(fedavg(), digits(), rounds=2, attack="scale:-30,share=0.1", executor=executor).anomalies
        for executor in ("one-by-one", "side-by-side")
    ]
    assert found[0] == found[1] != []


def attacked(path: Path, **more: Any) -> Any:
    given = {"rounds": 6, "attack": "scale:-30,share=0.1", "exclude_after": 2, **more}
    return simulate(fedavg(steps=5), digits(), out=path, **given)


def test_a_client_is_excluded_after_rounds_with_anomalies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = attacked(tmp_path / "run")
    (hostile,) = result.about["hostile"]
    assert [hostile in record["clients"] for record in result.metrics] == [True, True, False, False, False, False]
    assert [record.get("excluded") for record in result.metrics] == [None, None, *[[hostile]] * 4]
    (mine,) = result.anomalies
    assert (mine["client"], mine["rounds"], mine["excluded"]) == (hostile, [1, 2], True)
    assert mine["reasons"].keys() == {"norm", "direction"}
    assert main(["show", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert f"excluded           client {hostile}" in shown
    assert "times the cohort's; cosine -" in shown
    assert "<h2>Anomalies</h2>" in result.report().read_text()


def test_a_resumed_run_keeps_the_exclusion(tmp_path: Path) -> None:
    whole = attacked(tmp_path / "whole")

    def stop(record: Any, run: Any) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attacked(tmp_path / "cut", callbacks=stop)
    resumed = gossamer.resume(tmp_path / "cut")
    assert [record["clients"] for record in resumed.metrics] == [record["clients"] for record in whole.metrics]
    assert resumed.anomalies == whole.anomalies
    one, other = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def record(clients: list[int], named: list[int], failed: int | None = None) -> dict[str, Any]:
    failures = [] if failed is None else [{"client": failed, "reason": "late"}]
    anomalies = [{"client": client, "norm": 9.0} for client in named]
    return {"round": 1, "clients": clients, "failures": failures, "lost": [], "anomalies": anomalies}


def test_rounds_without_an_upload_do_not_count() -> None:
    exclusion = Exclusion(2, 10)
    records = [record([1, 2], [1]), record([1, 2], [], failed=1), record([2], []), record([1, 2], [1])]
    assert [exclusion.update(records[:n]) for n in range(5)] == [[], [], [], [], [1]]


def test_old_anomalies_are_forgotten() -> None:
    exclusion = Exclusion(2, 10)
    records = [record([1], [1]), *[record([1], [])] * 3, record([1], [1])]
    assert exclusion.update(records) == []
    assert exclusion.update([*records, record([1], [1])]) == [1]


def test_every_second_round_is_enough() -> None:
    records = [record([1], [1] if number % 2 else []) for number in range(6)]
    assert Exclusion(3, 10).update(records) == [1]


def test_a_majority_stays_and_none_excludes_nobody() -> None:
    everybody = [record(list(range(5)), list(range(5)))] * 4
    assert Exclusion(1, 5).update(everybody) == [0, 1]
    assert Exclusion(None, 5).update(everybody) == []


def test_reports_have_the_most_extreme_values() -> None:
    first = {**record([1, 2], []), "anomalies": [{"client": 1, "norm": 9.0, "direction": -0.3}]}
    second = {**record([1, 2], []), "round": 2, "anomalies": [{"client": 1, "norm": 20.0, "direction": -0.2}]}
    (mine,) = anomalies_of([first, second])
    reasons = {"norm": 20.0, "direction": -0.3}
    assert mine == {"client": 1, "rounds": [1, 2], "reasons": reasons, "excluded": False}


def test_deployments_exclude_by_default_and_simulations_do_not() -> None:
    assert Settings().options().exclude_after == 3
    assert Settings(exclude_after=0).options().exclude_after is None
    assert gossamer.Options().exclude_after is None


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="exclude_after must be at least 1, or none, got 0"):
        simulate(fedavg(), tiny_task(), exclude_after=0)
    with pytest.raises(ConfigError, match="exclude_after needs anomalies=True"):
        simulate(fedavg(), tiny_task(), exclude_after=2, anomalies=False)
    with pytest.raises(ConfigError, match=r"exclude_after needs rounds with at least 5 clients.* a round has 4"):
        simulate(fedavg(), tiny_task(8), exclude_after=2, per_round=4)


def mutes() -> Method:
    return METHODS["local"]()


def test_methods_without_uploads_have_no_report() -> None:
    assert simulate(mutes(), tiny_task(6), rounds=1).anomalies == []
