"""Attacks of a deployed active server that tells one client something else than the others.

The masks of secure aggregation cancel only between clients that received the same models. Whatever else a server tells
nodes, and may tell each of them in another way, must be bound as well: a learning rate of 0 for all but one, or a
precision in which the model of all but one is dead, would make the sum the update of one client. In version 0.2 (commit
86513a0) nothing was bound.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from gossamer import RunError, fedavg, fedpm, private, secured
from gossamer.core.method import Method
from gossamer.engines.flower import Settings
from gossamer.engines.flower.server import FlowerRun
from gossamer.engines.secure import NoSumWarning
from gossamer.testing import tiny_task
from helpers.flower_runs import NUMBERS, nodes, signing_keys
from helpers.local_grid import LocalGrid

TASK, TARGET, ROUNDS = tiny_task(4), 2, 5
METHOD = secured(fedpm(steps=2))


def other_model(keys: str) -> str:
    return json.dumps([[*row[:-1], "11" * 16 if row[0] == "model" else row[-1]] for row in json.loads(keys)])


def other_codec(keys: str) -> str:
    return json.dumps([[*row[:-1], "22" * 16 if row[-2] in ("codec", "down") else row[-1]] for row in json.loads(keys)])


LIES: dict[str, dict[str, Any]] = {
    "precision": {"precision": lambda _: "bf16"},
    "rounds": {"rounds": lambda rounds: rounds + 100},
    "checkpointing": {"checkpointing": lambda _: True},
    "model": {"keys": other_model},
    "codec": {"keys": other_codec},
}


def run(method: Method, lies: dict[str, Any], phases: bool, home: Path) -> list[dict[str, Any]]:
    """The records of a run whose server lies to one client: from the first phase on, or in training alone."""

    class Lying(FlowerRun):
        def words(self, number: int, client: int | None = None, purposes: Any = (), **more: Any) -> dict[str, Any]:
            found = super().words(number, client, purposes, **more)
            if client == TARGET and (phases or "phase" not in more):
                found |= {name: lie(found[name]) for name, lie in lies.items()}
            return found

    settings = Settings(rounds=ROUNDS, wait=0, deadline=5.0, min_replies=0.1, keys=str(signing_keys()))
    lying = Lying(method, TASK, settings, LocalGrid(nodes(method, TASK, home)))
    for number in range(2):
        lying.round(number, None)
    return lying.metrics


@pytest.mark.parametrize("phases", [True, False])
@pytest.mark.parametrize("lie", LIES)
def test_a_client_that_is_told_something_else_is_in_no_sum(lie: str, phases: bool, tmp_path: Path) -> None:
    for record in run(METHOD, LIES[lie], phases, tmp_path):
        assert TARGET in {failure["client"] for failure in record["failures"]}
        assert record["figures"]["secure"]["summed"] == 3, "the others go on"


def test_what_is_told_to_all_is_in_every_sum(tmp_path: Path) -> None:
    """A control: without a lie, all four clients are summed."""
    records = run(METHOD, {}, True, tmp_path)
    assert [record["figures"]["secure"]["summed"] for record in records] == [4, 4]
    assert not any(record["failures"] for record in records)


def test_nodes_reveal_no_sum_with_too_little_noise(tmp_path: Path) -> None:
    """A server that asks for the sum of three of four clients gets none: the noise of the fourth counts."""
    method = private(fedavg(steps=1), "distributed", noise_multiplier=1.0, task=TASK, per_round=4)

    class Hasty(FlowerRun):
        """A server that leaves a client out after training, and does not check the noise."""

        def check_uploads(self, stage: Any, uploads: int) -> None:
            """Accept any number."""

    settings = Settings(rounds=1, wait=0, deadline=0.3, min_replies=0.1, delta=1e-3, keys=str(signing_keys()))
    there = nodes(method, TASK, tmp_path)
    hasty = Hasty(method, TASK, settings, LocalGrid(there))
    protocol = hasty.method.training.secure
    assert protocol is not None
    assert protocol.protocol.rules(4).fewest == 4  # type: ignore[attr-defined]
    protocol.check_sum = lambda cohort, clients: None  # type: ignore[method-assign]
    honest = hasty.fleet.grid.nodes[NUMBERS[TARGET]]  # type: ignore[attr-defined]

    def silent(message: Any) -> Any:
        reply = honest(message)
        return None if message.metadata.message_type == "train" else reply

    hasty.fleet.grid.nodes[NUMBERS[TARGET]] = silent  # type: ignore[attr-defined]
    protocol.protocol = type(protocol.protocol)()  # the server forgets the limit, its nodes do not
    with (
        pytest.warns(NoSumWarning, match="has no sum"),
        pytest.raises(RunError, match="3 of 4 clients have sent an upload, 4 are needed"),
    ):
        hasty.round(0, None)
