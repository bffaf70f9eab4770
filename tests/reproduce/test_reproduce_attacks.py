"""The study of attacks: its cells, and Flower's rules on the same updates."""

import pytest
import torch

pytest.importorskip("flwr")

from gossamer import fedavg, simulate
from gossamer.core.errors import ConfigError
from gossamer.core.exchange import Arrival
from gossamer.core.types import Clock, Part
from gossamer.parts.attacks import Attack
from gossamer.testing import tiny_task
from reproduce.baselines import attacks
from reproduce.baselines.flower_rules import FlowerRule


def test_cells_have_different_names_and_valid_attacks() -> None:
    every = [cell for study in attacks.STUDIES.values() for cell in study()]
    assert len({cell.name for cell in every}) == len(every) == 3 * 8 * (2 * 17 + 2 * 16)
    for cell in every:
        hostile = Attack.of_text(cell.attack).share * cell.clients if cell.attack else 0
        assert hostile in (0, 2, 6)
    words = {attacks.cell("iid30", row, "none", 0).words for row in ("krum", "trimmed", "flowerkrum")}
    assert {word.split()[1] for word in words} >= {"krum:6", "trimmed-mean:0.3"}
    assert any("server.f=6" in word for word in words)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum", "multi-krum", "bulyan"])
def test_a_rule_of_flower_aggregates_the_updates(rule: str) -> None:
    server = FlowerRule(rule=rule, f=1)  # type: ignore[arg-type]
    state = {"params": {"a": torch.zeros(2), "b": torch.zeros(2, 2)}}
    acc = server.begin(state, dict.fromkeys(range(9), None))  # type: ignore[arg-type]
    for client in range(9):
        value = 1000.0 if client == 8 else 1 + client / 100
        change = {name: torch.full_like(tensor, value) for name, tensor in state["params"].items()}
        acc = server.fold(acc, Arrival.of(client, Part(), change, 10))
    after = server.finish(state, acc, Clock(0, 1, -1))["params"]
    assert all(((tensor >= 1) & (tensor <= 1.08)).all() for tensor in after.values())


def test_bulyan_needs_more_clients_than_it_may_have() -> None:
    with pytest.raises(ConfigError, match=r"4 f \+ 3 <= 5"):
        simulate(fedavg().with_parts(server=FlowerRule(rule="bulyan", f=1)), tiny_task(5), rounds=1)


def test_facts_count_who_was_named() -> None:
    cell = attacks.cell("iid10", "mean", "scale by -50", 0)
    result = simulate(fedavg(steps=2), tiny_task(10), rounds=2, attack="scale:-50,share=0.1")
    facts = attacks.more(cell, tiny_task(10), result)
    assert (facts["hostile_rounds"], facts["honest_rounds"], facts["success"]) == (2, 18, None)
    assert facts["hostile_named"] == 2
    assert facts["honest_named"] == 0
