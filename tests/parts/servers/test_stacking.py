"""Stacking: the base weights move by the mean of the clients' products, exactly, and every client can repeat it."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gossamer import ConfigError, Lossy, Method, Options, Part, Task, fedavg, simulate
from gossamer.core import tree, wire
from gossamer.core.codec import Coding
from gossamer.core.errors import PayloadError
from gossamer.core.exchange import GLOBAL, Arrival
from gossamer.core.random import key
from gossamer.core.types import Clock, Layout, Params
from gossamer.engines.simulation import Simulation
from gossamer.methods import flora, lora_truncated
from gossamer.parts.adapters import LoRA
from gossamer.parts.channels.links import Perfect
from gossamer.parts.codecs import Dense, Eden, MaskedNoise, OnWeights
from gossamer.parts.downlinks import Delta
from gossamer.parts.servers import Mean, Stacking
from gossamer.parts.servers.low_rank import StackedLayer, restarted
from gossamer.parts.views import Full
from gossamer.testing import tiny_task
from helpers.arrivals import noted_arrivals
from helpers.compare import same
from helpers.flower_runs import check_parity
from helpers.runs import clock_and_key
from helpers.watched import watched

RANK, RANKS = 4, (1.0, 0.5, 0.25)
TINY: dict[str, Any] = {"steps": 2, "batch": 4, "rank": RANK, "capacities": RANKS}
LAYERS = ((6, 64), (64, 64), (64, 3))
"""Inputs and outputs of the layers of ``wide``."""


def wide(clients: int = 3) -> Task:
    """A task with a network whose adapters are much smaller than its weights."""
    tiny = tiny_task(clients)
    train, test = ((samples.x, samples.y) for samples in (tiny.data.train, tiny.data.test))
    return Task.of(network, train, test, clients=clients)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


WIDE = wide()


def begun(method: Method, task: Task = WIDE, **options: Any) -> Simulation:
    return Simulation(method, task, Options(**{"rounds": 3, "executor": "one-by-one", **options}))


def matrices(model: Params, change: Params, layer: str) -> tuple[Tensor, Tensor]:
    """A client's A and B in float64, padded with zeros to the full rank."""
    found = []
    for name in (f"{layer}.lora_A", f"{layer}.lora_B"):
        padded, at = torch.zeros_like(model[name]).double(), tuple(slice(n) for n in change[name].shape)
        padded[at] = model[name][at].double() + change[name].double()
        found.append(padded)
    return found[0], found[1]


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_weights_move_by_the_mean_of_the_products(weights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun(flora(**TINY, alpha=6.0, weights=weights))
    arrivals = noted_arrivals(run, monkeypatch)
    run.round(0, None)
    before, after = run.objective.initial(), run.server["params"]
    p = torch.tensor([arrival.samples if weights == "samples" else 1.0 for arrival in arrivals]).double()
    assert len(arrivals) == 3
    for layer in ("0", "2", "4"):
        products = [b @ a for a, b in (matrices(before, each.change(torch.device("cpu")), layer) for each in arrivals)]
        mean = sum(share * product for share, product in zip(p / p.sum(), products, strict=True))
        step = after[f"{layer}.weight"].double() - before[f"{layer}.weight"].double()
        torch.testing.assert_close(step, 6.0 / RANK * mean, rtol=1e-5, atol=1e-7)
        assert step.abs().max() > 0


def test_adapters_restart_with_the_distribution_of_a_new_layer() -> None:
    run = begun(flora(**TINY))
    seen = []
    for number in range(2):
        run.round(number, None)
        seen.append(run.server["params"])
    for one, other in zip(seen, (run.objective.initial(), seen[0]), strict=True):
        for layer, (inputs, _) in zip(("0", "2", "4"), LAYERS, strict=True):
            new = one[f"{layer}.lora_A"]
            assert not one[f"{layer}.lora_B"].any()
            assert not torch.equal(new, other[f"{layer}.lora_A"])
            assert 0.8 / math.sqrt(inputs) < new.abs().max() <= 1 / math.sqrt(inputs)
    drawn = restarted(torch.empty(100, 64), key(0))
    torch.testing.assert_close(drawn.std(), torch.tensor(1 / math.sqrt(3 * 64)), rtol=0.02, atol=0)


def test_a_weight_of_inputs_by_outputs_gets_the_transposed_product() -> None:
    layers = [StackedLayer("w", "a", "b", 0.5, transposed) for transposed in (False, True)]
    down, up, base = torch.randn(2, 5), torch.randn(5, 2), torch.randn(5, 5)
    found = []
    for layer in layers:
        server = Stacking("uniform").filled(layers=(layer,), key=key(0))
        state = {"params": {"w": base, "a": torch.zeros(2, 5), "b": torch.zeros(5, 2)}}
        change = {"w": torch.zeros(5, 5), "a": down, "b": up}
        arrival = Arrival.of(0, Part(), change, 1.0)
        found.append(
            server.finish(state, server.fold(server.begin(state, {}), arrival), Clock(0, 1, -1))["params"]["w"]
        )
    torch.testing.assert_close(found[0], base + 0.5 * up @ down)
    torch.testing.assert_close(found[1], base + 0.5 * (up @ down).T)


def test_other_trained_tensors_and_statistics_are_averaged() -> None:
    tiny = tiny_task(3)
    train, test = ((samples.x, samples.y) for samples in (tiny.data.train, tiny.data.test))
    norm = Task.of(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), train, test, clients=3)
    adapter = LoRA(RANK, targets=("0",), also=("2.*",), merges=True)
    method = flora(**TINY, weights="uniform").with_parts(adapter=adapter)
    plain = method.with_parts(server=Mean("uniform", "holders"), down=Dense())
    ends = [simulate(each, norm, rounds=1, executor="one-by-one").model.state_dict() for each in (method, plain)]
    for name in ("2.weight", "2.bias", "1.running_mean", "1.running_var"):
        torch.testing.assert_close(ends[0][name], ends[1][name])
        assert not torch.equal(ends[0][name], norm.model().state_dict()[name])


# Downloads.

STACKS: dict[str, Method] = {
    "dense": flora(**TINY),
    "drawn ranks": flora(**TINY, drawn=True, weights="batches"),
    "masks": flora(**TINY).with_parts(codec=OnWeights(MaskedNoise(alpha=0.05))),
    "eden": flora(**TINY).with_parts(codec=OnWeights(Eden(2))),
    "equal ranks": flora(**TINY).with_parts(view=Full()),
}


@pytest.mark.parametrize("name", STACKS)
def test_clients_hold_the_servers_model_after_absences_and_losses(name: str) -> None:
    options: dict[str, Any] = {"per_round": 1, "channel": Lossy(0.3), "failure_rate": 0.1, "seed": 4}
    run = watched(STACKS[name], WIDE, **options)
    plain = watched_dense(STACKS[name], **options)
    assert all(same(held, model) for held, model in run.starts)
    assert same(run.server["params"], plain.server["params"])
    assert any("down.steps" in record["bytes_down"] for record in run.metrics)


def watched_dense(method: Method, **options: Any) -> Simulation:
    """The same run with whole models."""
    run = begun(method.with_parts(down=Dense()), rounds=5, eval_every=99, **options)
    for number in range(5):
        run.round(number, None)
    return run


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([Perfect(), Lossy(0.5)]),
    st.sampled_from([0.0, 0.3]),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_devices_follow_the_server_wherever_it_is_resumed(
    per_round: int, channel: Any, failure_rate: float, cut: int, seed: int
) -> None:
    options = {"per_round": per_round, "channel": channel, "failure_rate": failure_rate, "seed": seed}
    run = watched(STACKS["dense"], WIDE, cut=cut, **options)
    assert all(same(held, model) for held, model in run.starts)
    assert all("simulated" in failure["reason"] for record in run.metrics for failure in record["failures"])


def test_bytes_are_those_of_the_ranks_and_of_the_missed_stacks() -> None:
    """Client k uploads 4 r_k (inputs + outputs) bytes per layer, and downloads those of all clients since its last."""
    run = watched(flora(**TINY), WIDE, rounds=4, per_round=1, seed=1)
    per_rank, ranks = 4 * sum(inputs + outputs for inputs, outputs in LAYERS), (4, 2, 1)
    stacks, holds = list[int](), dict.fromkeys(range(3), 0)
    for number, record in enumerate(run.metrics):
        (client,) = record["clients"]
        stacks.append(per_rank * ranks[client])
        assert record["bytes_up"]["codec.values"] == stacks[-1]
        missed, sent = sum(stacks[holds[client] : number]), record["bytes_down"]
        assert missed <= sent.get("down.steps", 0) <= missed + 60 * (number - holds[client])
        assert sum(sent.values()) <= missed + 60 * (number - holds[client]) + 100
        assert "down.values" not in sent
        holds[client] = number
    assert max(holds.values()) > 1  # somebody was away


def test_the_whole_model_is_sent_where_it_is_shorter() -> None:
    run = watched(flora(**TINY), tiny_task(3), rounds=2)
    assert all(same(held, model) for held, model in run.starts)
    assert "down.values" in run.metrics[1]["bytes_down"]


def test_deployment_has_the_bits_of_the_simulation(tmp_path: Path) -> None:
    check_parity(flora(**TINY), wide(4), tmp_path, rounds=3, per_round=2, seed=3)


# Untrusted payloads.


def upload(run: Simulation, client: int, payload: dict[str, Tensor]) -> Any:
    """Read an upload of a client in round 0."""
    exchange, (clock, at) = run.method.training, clock_and_key(run, 0, client)
    body = wire.Body.of(payload)
    sent = exchange.envelope.address("up", clock, 0, 5.0, body)
    return exchange.read_upload(bytes(sent.data), run.server, clock, at, GLOBAL, None)[0]


def test_an_upload_of_another_rank_is_refused() -> None:
    run, sizes = begun(flora(**TINY)), [rank * sum(map(sum, LAYERS)) for rank in (4, 2, 1)]
    server = run.method.training.server
    acc = server.begin(run.server, {})
    for client, size in enumerate(sizes):
        before = tree.clone(acc.total)
        for other in {*sizes, size + 1} - {size}:
            with pytest.raises(PayloadError, match="values"):
                server.fold(acc, upload(run, client, {"values": torch.ones(other)}))
        assert same(acc.total, before)
        server.fold(acc, upload(run, client, {"values": torch.ones(size)}))


def test_products_that_are_too_large_are_refused_and_change_nothing() -> None:
    run = begun(flora(**TINY))
    server = run.method.training.server
    acc = server.begin(run.server, {})
    before = tree.clone(acc.total)
    with pytest.raises(PayloadError, match="far too large"):
        server.fold(acc, upload(run, 0, {"values": torch.full((RANK * sum(map(sum, LAYERS)),), 2.0**40)}))
    assert same(acc.total, before)
    assert acc.weight == 0


def test_a_step_with_an_upload_of_another_rank_is_refused() -> None:
    run = watched(flora(**TINY), WIDE, rounds=2, per_round=1)
    exchange = run.method.training
    log = run.server["downlink"]["log"]["0"].numpy().tobytes()
    (client,) = run.metrics[0]["clients"]
    other = bytes([(client + 1) % 3]) + log[1:]
    with pytest.raises(PayloadError, match="values"):
        exchange.down.steps.take({"params": run.objective.initial()}, other, Clock(0, 1, -1))  # type: ignore[attr-defined]


# Refusals.


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (fedavg().with_parts(server=Stacking()), r"no low-rank adapters: use LoRA\(rank=8, merges=True\)"),
        (flora().with_parts(adapter=LoRA()), r"0.weight is not sent, .* use LoRA\(merges=True\)"),
        (flora().with_parts(adapter=LoRA(train="B", merges=True)), r"0.lora_A is frozen: use LoRA\(train='both'\)"),
        (flora().with_parts(codec=Dense()), "needs a codec that compresses the uploads"),
        (flora().with_parts(down=Delta(sums_only=True)), "needs clients that hold the whole model"),
        (
            flora().with_parts(codec=OnWeights(Eden(2), exclude=("*lora_A",))),
            "0.lora_A of 0.lora_A, 0.lora_B, 0.weight",
        ),
        (lora_truncated().with_parts(down=Delta(), codec=OnWeights(Eden(2))), "clients that receive the whole model"),
    ],
)
def test_what_cannot_be_stacked_is_refused(method: Method, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        begun(method)


def test_layouts_of_uploads_leave_out_the_weights() -> None:
    run = begun(flora(**TINY))
    exchange = run.method.training
    part = exchange.part_of(*clock_and_key(run, 0, 1))
    layout: Layout = part.layout(exchange.outline)
    payload = exchange.codec.encode(torch.zeros(layout.size), Coding(layout, key(0)))
    assert payload["values"].numel() == 2 * sum(map(sum, LAYERS))
    assert exchange.codec.decode(payload, Coding(layout, key(0))).numel() == layout.size
