"""The study of privacy: calibrated noise, protected methods at toy size, sums in the clear, and the page."""

import math
from pathlib import Path
from unittest import mock

import pytest
import torch

from gossamer import METHODS, Task, simulate
from gossamer.core.errors import PayloadError
from gossamer.core.privacy import Guarantee
from gossamer.core.random import key
from gossamer.core.secure import SumSegment
from gossamer.parts.privacy.budget import guaranteed, participation, parts_of, usual_delta
from gossamer.parts.secure.primitives import KeyRoster
from gossamer.tasks.objective import Objective
from gossamer.testing import tiny_task
from helpers.markdown import only
from reproduce.common import cells, protection, store
from reproduce.common.cells import Cell
from reproduce.common.clear_sums import ClearSums
from reproduce.common.protection import Protection, protected, simulate_private
from reproduce.common.small_cnn import small_cnn
from reproduce.privacy import page, studies
from reproduce.privacy.settings import EPSILONS, NOISE, PER_ROUND, ROUNDS, SETTINGS, VISITS

CLIENTS = 12


def objective() -> Objective:
    """Return the network of Fashion-MNIST, with a few blank images."""
    x, y = torch.zeros(12, 1, 28, 28), torch.arange(12) % 10
    return Objective(Task.of(lambda: small_cnn(torch.Size((1, 28, 28)), 10), (x, y), (x, y), clients=3), "cpu", key(0))


def guarantee(setting: str, mode: str, noise: float) -> Guarantee:
    """Return the statement of a run of the study."""
    how = Protection(mode, 1.0, noise)  # type: ignore[arg-type]
    method = protected(METHODS["fedavg"](weights="uniform"), how, SETTINGS[setting].clients, PER_ROUND)
    part = parts_of(method.training if mode == "central" else method.bind(objective()).training)[0]
    return guaranteed(part, participation(method.sampler, SETTINGS[setting].clients, PER_ROUND, ROUNDS))


@pytest.mark.parametrize(
    ("setting", "mode"), [pytest.param(*each, marks=pytest.mark.slow if each[1] == "bits" else ()) for each in NOISE]
)
def test_the_stored_noise_meets_each_epsilon_closely(setting: str, mode: str) -> None:
    pytest.importorskip("dp_accounting")
    delta = usual_delta(SETTINGS[setting].clients)
    for epsilon, noise in zip(EPSILONS, NOISE[setting, mode], strict=True):
        spent = guarantee(setting, mode, noise).epsilon(ROUNDS, delta)
        assert 0.99 * epsilon < spent <= epsilon


def test_clients_that_take_turns_take_part_twice() -> None:
    method = cells.method(studies.cell("fashion", "skellam", 2.0, 0))
    assert math.ceil(ROUNDS / method.sampler.separation(SETTINGS["fashion"].clients, PER_ROUND)) == VISITS


def test_the_network_has_the_parameters_that_the_page_states() -> None:
    sizes = [sum(map(torch.numel, small_cnn(torch.Size(s), 10).parameters())) for s in ((1, 28, 28), (3, 32, 32))]
    text = (store.PAGES / "privacy.md").read_text()
    assert sizes == [20_746, 26_346]
    assert all(f"{size:,}" in text for size in sizes)


def toy(cell: Cell) -> Cell:
    """Return a cell with few clients."""
    return cell._replace(clients=CLIENTS, per_round=4)


@pytest.mark.filterwarnings("ignore::gossamer.engines.run.CodecWarning")  # the scales are for another network
@pytest.mark.parametrize("row", studies.ROWS)
def test_every_row_trains(row: str) -> None:
    cell = toy(studies.cell("fashion", row, 8.0 if studies.ROWS[row].noisy else None, 0))
    with mock.patch.object(protection, "has_accountant", return_value=not studies.ROWS[row].noisy):
        result = simulate_private(cells.method(cell), tiny_task(CLIENTS), rounds=2, per_round=4, seed=1)
    assert not any(record["failures"] for record in result.metrics)
    facts = studies.more(cell, tiny_task(CLIENTS), result)
    assert facts["bytes_per_client"] > 0
    assert facts["stated_epsilon"] is None


def test_records_state_epsilon_where_the_accountant_is_installed() -> None:
    pytest.importorskip("dp_accounting")
    cell = toy(studies.cell("fashion", "dense", 8.0, 0))
    result = simulate_private(cells.method(cell), tiny_task(CLIENTS), rounds=1, per_round=4)
    assert studies.more(cell, tiny_task(CLIENTS), result)["stated_epsilon"] > 0


def test_sums_in_the_clear_are_those_of_secure_aggregation() -> None:
    pytest.importorskip("cryptography")
    from gossamer.methods.secure import secured

    base, task = METHODS["signsgd"](steps=2, scale=0.1, weights="uniform"), tiny_task(CLIENTS)
    found = [simulate(secured(base, each), task, rounds=2, seed=3).metrics for each in (ClearSums(), None)]
    assert [record["loss"] for record in found[0]] == [record["loss"] for record in found[1]]


def test_a_clear_round_adds_what_fits_and_refuses_the_rest() -> None:
    segments, protocol = [SumSegment(3, 1), SumSegment(2, 300)], ClearSums()
    opened = protocol.begin([4, 7, 9], segments, b"", KeyRoster({}), b"")
    for client, values in ((4, [0, 1, 1, 300, 5]), (9, [1, 1, 0, 300, 2])):
        request = opened.request(client)
        opened.accept(client, protocol.protect(torch.tensor(values), segments, client, request, b"", {}))
    with pytest.raises(PayloadError):
        opened.accept(7, {"values": torch.zeros(1, dtype=torch.uint8)})
    assert opened.total().tolist() == [1, 2, 1, 600, 7]
    assert opened.summed == [4, 9]


def test_cells_have_different_names_and_trials_use_other_data_and_seeds() -> None:
    every = [cell for each in studies.STUDIES.values() for cell in each()]
    assert len({cell.name for cell in every}) == len(every)
    for cell in every:
        tuning = "-tune-" in cell.name
        assert (cell.validate > 0, cell.seed in studies.SEEDS) == (tuning, not tuning)


def test_the_candidate_with_the_best_trial_is_chosen(empty: Path) -> None:
    tried = studies.candidates("cifar", "dense")
    assert studies.chosen("cifar", "dense") == tried[0] == {"lr": 0.1, "clip": 0.1667}
    for number, last in enumerate((40.0, 50.0, 45.0)):
        cells.save(studies.trial("cifar", "dense", number), {"last": last})
    assert studies.chosen("cifar", "dense") == tried[1]
    assert studies.cell("cifar", "dense", 4.0, 2).protect["clip"] == tried[1]["clip"]
    cells.save(studies.trial("cifar", "denseplain", 1), {"last": 60.0})
    assert studies.cell("cifar", "densesums", None, 0).given["lr"] == 0.1


def test_the_page_has_means_over_seeds_and_what_was_not_run(empty: Path) -> None:
    for seed, last in enumerate((70.0, 71.0, 72.0)):
        cells.save(studies.cell("fashion", "dense", 8.0, seed), {"last": last, "bytes_per_client": 83042})
        for system in page.SYSTEMS:
            store.write("privacy", page.peer_name("fashion", 8.0, seed, system), PEER | {"accuracy": last})
    text = page.page()
    row = only(text, updates="dense (FedAvg)", **{"bytes per client": "83,042"})
    assert (row["epsilon 8"], row["epsilon 4"], row["none"]) == ("71.0 (70.0 to 72.0)", "not run", "not run")
    beside = only(text, data="Fashion-MNIST", epsilon="8")
    assert (beside["pfl-research, accuracy"], beside["seeds of each"]) == ("71.0 (70.0 to 72.0)", "3/3")
    assert "`fashion` (87 of 90 cells)" in text


PEER = {"seconds": 2.5, "device": "x86_64"}
