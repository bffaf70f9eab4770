"""Clients that hold the first ranks of low-rank adapters: which, what is computed and averaged, what travels."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer import ConfigError, LoRA, Method, Task, fedavg, simulate
from gossamer.core.random import key
from gossamer.core.types import Clock, Params, Part
from gossamer.engines import Options
from gossamer.engines.simulation import Simulation
from gossamer.fleet.capacity import Room
from gossamer.fleet.fleet import Device, Fleet
from gossamer.methods import flora, lora_truncated
from gossamer.parts.views import RankSlice
from gossamer.tasks.objective import Objective
from gossamer.testing import check_view, tiny_task
from helpers.arrivals import noted_arrivals

TASK = tiny_task(4)
RANKS = (1.0, 0.5, 0.25)
TINY: dict[str, Any] = {"steps": 2, "batch": 4, "rank": 4}


def begun(method: Method, task: Task = TASK, rounds: int = 2, **options: Any) -> Simulation:
    return Simulation(method, task, Options(rounds=rounds, executor="one-by-one", **options))


def view_of(method: Method, task: Task = TASK) -> RankSlice:
    view = begun(method, task).method.training.view
    assert isinstance(view, RankSlice)
    return view


def outline(task: Task = TASK, **fields: Any) -> Params:
    return Objective(task.adapted(LoRA(rank=4, **fields)), "cpu", key(0)).initial()


@pytest.mark.parametrize("down", ["part", "whole"])
def test_a_client_holds_the_first_rows_of_a_and_columns_of_b(down: Any) -> None:
    whole = outline()
    check_view(RankSlice(RANKS, down=down), TASK.adapted(LoRA(rank=4)))
    view = view_of(lora_truncated(**TINY, capacities=RANKS).with_parts(view=RankSlice(RANKS, down=down)))
    for client, rank in enumerate((4, 2, 1, 4)):
        mine = view.part(whole, Clock(3, 9, client), key(0)).take(whole)
        for name, tensor in whole.items():
            wanted = tensor[:rank] if name.endswith("lora_A") else tensor[:, :rank]
            assert torch.equal(mine[name], wanted)


def test_other_tensors_are_held_whole() -> None:
    whole = outline(merges=True, also=("0.bias",))
    view = view_of(flora(**TINY, capacities=(0.5,)).with_parts(adapter=LoRA(4, merges=True, also=("0.bias",))))
    mine = view.part(whole, Clock(0, 1, 0), key(0)).take(whole)
    assert torch.equal(mine["0.weight"], whole["0.weight"])
    assert torch.equal(mine["0.bias"], whole["0.bias"])
    assert mine["0.lora_A"].shape == (2, 6)


@pytest.mark.parametrize(("down", "bytes_down"), [("part", [400, 200, 100]), ("whole", [400, 400, 400])])
def test_bytes_are_those_of_the_ranks(down: Any, bytes_down: list[int]) -> None:
    # 4 bytes for each row of 6 and 8 entries, and each column of 8 and 3 entries.
    method = lora_truncated(**TINY, capacities=RANKS).with_parts(view=RankSlice(RANKS, down=down))
    result = simulate(method, tiny_task(3), rounds=1, executor="one-by-one")
    assert result.metrics[0]["bytes_up"]["codec.values"] == 4 * (6 + 8 + 8 + 3) * (4 + 2 + 1)
    assert result.metrics[0]["bytes_down"]["down.values"] == sum(bytes_down)


def truncated_by_hand(first: Params, weights: dict[int, float], changes: dict[int, Params], over: str) -> Params:
    """The slow version: padded with zeros, entry by entry."""
    found = {}
    for name, start in first.items():
        total, held = torch.zeros_like(start), torch.zeros_like(start)
        for client, change in changes.items():
            at = tuple(slice(n) for n in change[name].shape)
            total[at] += weights[client] * change[name]
            held[at] += weights[client]
        divided = held if over == "holders" else torch.full_like(held, sum(weights.values()))
        found[name] = start + torch.where(held > 0, total / divided.clamp(min=1e-9), 0)
    return found


@pytest.mark.parametrize("over", ["holders", "cohort"])
def test_truncation_is_the_mean_of_padded_matrices(over: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun(lora_truncated(**TINY, capacities=RANKS, over=over))
    arrivals = noted_arrivals(run, monkeypatch)
    run.round(0, None)
    changes = {arrival.client: arrival.change(torch.device("cpu")) for arrival in arrivals}
    weights = {arrival.client: arrival.samples for arrival in arrivals}
    assert len(changes) == 4
    wanted = truncated_by_hand(run.objective.initial(), weights, changes, over)
    for name, tensor in run.server["params"].items():
        torch.testing.assert_close(tensor, wanted[name])


def test_a_frozen_matrix_is_cut_to_the_rank_of_the_other() -> None:
    method = lora_truncated(**TINY, capacities=(0.5,)).with_parts(adapter=LoRA(4, train="B"))
    result = simulate(method, TASK, rounds=1, executor="one-by-one")
    assert result.metrics[0]["failures"] == []
    assert result.metrics[0]["bytes_up"]["codec.values"] == 4 * 4 * (8 + 3) * 2


# Memory.


def test_the_rank_is_the_largest_that_fits_the_memory() -> None:
    run = begun(lora_truncated(**TINY, capacities=(0.5, 0.25, 1.0)))
    params = [tried(run, client) for client in range(3)]
    half, quarter, full = (run.objective.memory(held, run.method.training.solver) for held in params)
    assert quarter < half < full
    sizes = (Room(full - 1), Room(half - 1), Room(full))
    assert view_of(lora_truncated(**TINY, capacities=sizes)).capacities == (0.5, 0.25, 1.0)


def tried(run: Simulation, client: int) -> dict[str, Tensor]:
    view, whole = run.method.training.view, run.objective.initial()
    return view.part(whole, Clock(0, 1, client), key(0)).take(whole)


def test_ranks_follow_from_a_fleet() -> None:
    run = begun(lora_truncated(**TINY, capacities=(0.5, 1.0)))
    half, full = (run.objective.memory(tried(run, client), run.method.training.solver) for client in (0, 1))
    fleet = Fleet((Device("small", 1, half, 1e9), Device("large", 3, full, 1e9)))
    assert Counter(view_of(flora(**TINY, fleet=fleet)).capacities) == {0.5: 1, 1.0: 3}


# Refusals.


def test_a_network_without_adapters_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no low-rank adapters: adapt it, LoRA\(rank=8\) or --adapter lora:8"):
        begun(fedavg().with_parts(view=RankSlice((0.5,))))


@pytest.mark.parametrize(("field", "value"), [("capacities", ()), ("capacities", (2.0,)), ("down", "all")])
def test_wrong_fields_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        RankSlice(**{field: value})  # type: ignore[arg-type]


def test_a_fleet_and_drawn_capacities_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="use either drawn or fleet"):
        RankSlice(drawn=True, fleet=Fleet((Device("phone", 1, None, 1e9),)))


def test_names_of_peft_are_sliced() -> None:
    like = {"q.lora_A.default.weight": torch.ones(4, 6), "q.lora_B.default.weight": torch.ones(5, 4)}
    view = RankSlice((0.5,)).filled(ranks=(("q.lora_A.default.weight", 0, 4), ("q.lora_B.default.weight", 1, 4)))
    part: Part = view.part(like, Clock(0, 1, 0), key(0))
    assert [tuple(tensor.shape) for tensor in part.take(like).values()] == [(2, 6), (5, 2)]
