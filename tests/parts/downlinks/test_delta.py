"""The delta downlink: clients follow the server bit for bit, whatever is lost, and pay for what they have missed."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gossamer import (
    ConfigError,
    Lossy,
    Method,
    Options,
    Result,
    Task,
    compose,
    drive,
    eden,
    fedadam,
    fedavg,
    fedavg_pruned,
    fedmrn,
    fedmrns,
    fednova,
    fedpm,
    ifca,
    klms,
    onebit_cs,
    perm,
    scaffold,
    signsgd,
    simulate,
    submodel_random,
    terngrad,
    topk,
)
from gossamer.core import wire
from gossamer.core.bound import BoundExchange
from gossamer.core.codec import Coding
from gossamer.core.errors import PayloadError
from gossamer.core.exchange import GLOBAL
from gossamer.core.types import Clock, Params, Part, State
from gossamer.core.wire import Body, Frame
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.parts.channels.links import Perfect
from gossamer.parts.codecs import CommonMaskedNoise, Dense, Eden, Feedback, OneBit, OnWeights, StochasticSign, TopK
from gossamer.parts.downlinks import Delta
from gossamer.parts.downlinks.replay import Replay
from gossamer.parts.servers import Mean, SumThenDecode
from gossamer.parts.solvers import SGD
from gossamer.parts.views import Full
from gossamer.runs.records import read_metrics
from gossamer.testing import tiny_task
from helpers import downloads
from helpers.compare import same
from helpers.paths import TESTS
from helpers.pieces import piece_of
from helpers.recorder import task as pictures
from helpers.tasks import batch_norm_task
from helpers.watched import TASK, Watched, watched

TINIER = tiny_task(3)
LOSSY = Delta(OnWeights(Eden(2)))
HALF = Delta(OnWeights(Eden(2)), Dense("float16"))
SUMS = Delta(sums_only=True)
TINY: dict[str, Any] = {"steps": 2, "batch": 4}


def sensing(codec: OneBit) -> Method:
    return compose(Full(), SGD(**TINY), OnWeights(codec), SumThenDecode())


SIGNS = fedavg(**TINY).with_parts(codec=OnWeights(StochasticSign(0.01)), down=Delta())
"""A method whose uploads have one bit per weight and nothing else but dense tensors."""

EXACT: dict[str, Callable[[], Method]] = {
    "fedmrn": lambda: fedmrn(**TINY, alpha=0.05),
    "fedmrns, coded": lambda: fedmrns(**TINY, alpha=0.5, coded=True, weights="batches"),
    "eden": lambda: eden(**TINY, bits=3, weights="uniform"),
    "drive with feedback": lambda: drive(**TINY, feedback=True),
    "topk with feedback": lambda: topk(**TINY, share=0.1, feedback=True),
    "terngrad": lambda: terngrad(**TINY),
    "signs": lambda: signsgd(**TINY),
    "masks of scores": lambda: fedpm(**TINY),
    "models": lambda: fedavg_pruned(**TINY, sparsity=0.9),
    "summed codes": lambda: sensing(OneBit(0.5)),
    "server lr": lambda: fedmrn(**TINY).with_parts(server=Mean(server_lr=0.7)),
    "importance-sampled masks": lambda: klms(**TINY),
    "common noise, weights by samples": lambda: fedmrn(**TINY, noise="uniform", alpha=0.05, common_noise=True),
}


def common(signed: bool = False, **fields: Any) -> Method:
    """FedMRN whose masks add up."""
    recipe, noise = (fedmrns, "bernoulli") if signed else (fedmrn, "uniform")
    return recipe(**{**TINY, "noise": noise, "alpha": 0.05, "common_noise": True, "weights": "uniform", **fields})


ADDING: dict[str, Callable[[], Method]] = {
    "common noise": common,
    "signed, server lr": lambda: common(True).with_parts(server=SumThenDecode("uniform", server_lr=0.7)),
    "common noise with feedback": lambda: common().with_parts(codec=OnWeights(Feedback(CommonMaskedNoise()))),
    "masks of scores": lambda: fedpm(**TINY, coded=True),
    "importance-sampled masks": lambda: klms(**TINY),
}
"""Methods whose uploads are whole numbers of equal weight."""


def simulation(result: Result) -> Simulation:
    assert isinstance(result.run, Simulation)
    return result.run


def down(record: dict[str, Any]) -> int:
    return sum(record["bytes_down"].values())


# Exactness.


@pytest.mark.parametrize(
    ("method", "link"),
    [
        *(pytest.param(make(), Delta(), id=name) for name, make in EXACT.items()),
        *(pytest.param(make(), SUMS, id=f"sum of {name}") for name, make in ADDING.items()),
    ],
)
def test_clients_get_the_servers_model_and_the_run_is_that_of_a_dense_downlink(method: Method, link: Delta) -> None:
    options: dict[str, Any] = {"per_round": 2, "channel": Lossy(0.3), "failure_rate": 0.1, "seed": 4}
    run = watched(method.with_parts(down=link), TINIER, **options)
    plain = simulation(simulate(method, TINIER, rounds=5, eval_every=99, executor="one-by-one", **options))
    assert all(same(start, model) for start, model in run.starts)
    assert same(run.server["params"], plain.server["params"])
    assert [record["failures"] for record in run.metrics] == [record["failures"] for record in plain.metrics]
    assert any("down.steps" in record["bytes_down"] for record in run.metrics)
    assert all(down(record) <= down(other) for record, other in zip(run.metrics, plain.metrics, strict=True))


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from([Delta(), LOSSY, HALF, SUMS]),
    st.integers(1, 6),
    st.sampled_from([Perfect(), Lossy(0.5)]),
    st.sampled_from([0.0, 0.3]),
    st.integers(1, 9),
    st.integers(0, 99),
)
def test_devices_follow_the_server_whatever_is_lost_and_wherever_it_is_resumed(
    link: Delta, per_round: int, channel: Any, failure_rate: float, cut: int, seed: int
) -> None:
    method = common(common_noise=link.sums_only).with_parts(down=link)
    options = {"per_round": per_round, "channel": channel, "failure_rate": failure_rate, "seed": seed}
    run = watched(method, cut=cut, **options)
    assert all(same(start, model) for start, model in run.starts)
    assert sum(len(record["failures"]) for record in run.metrics) == sum(
        "simulated" in failure["reason"] for record in run.metrics for failure in record["failures"]
    )


def test_running_statistics_and_float64_are_exact() -> None:
    run = watched(fedmrn(**TINY).with_parts(down=Delta()), batch_norm_task())
    assert len(run.starts) == 20
    assert all(same(start, model) for start, model in run.starts)
    assert {"down.rest", "down.steps"} <= run.metrics[-1]["bytes_down"].keys()


def test_workers_compute_the_same(tmp_path: Path) -> None:
    one, other = (
        simulation(simulate(fedmrn(**TINY).with_parts(down=Delta()), TASK, rounds=3, per_round=4, executor=executor))
        for executor in ("one-by-one", "side-by-side")
    )
    assert same(one.server, other.server)
    assert [record["bytes_down"] for record in one.metrics] == [record["bytes_down"] for record in other.metrics]


@pytest.mark.slow
def test_downloads_of_another_cpu_give_the_same_bits(tmp_path: Path) -> None:
    file, other = tmp_path / "downloads.json", {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
    command = [sys.executable, str(TESTS / "helpers/downloads.py"), str(file)]
    subprocess.run(command, check=True, env={**os.environ, **other})
    found = json.loads(file.read_text())
    for name, method in downloads.METHODS.items():
        assert len({len(data) for _, _, data in found[name]}) > 1, "steps and whole models"
        downloads.read(method, found[name])


# Bytes.


def test_a_step_costs_the_uploads_of_the_round_without_dense_tensors() -> None:
    run = watched(SIGNS, pictures(), rounds=2)
    first, second = run.metrics
    layout = run.objective.layout
    weights = sum(shape.numel() for _, shape in layout.shapes if len(shape) > 1)
    assert first["bytes_down"]["down.values"] == 5 * 4 * layout.size
    arrival = 4 + len(Body.of({"bits": torch.zeros(-(-weights // 8), dtype=torch.uint8)}).data)
    assert second["bytes_down"]["down.steps"] == 5 * 5 * arrival
    assert second["bytes_down"]["down.rest"] == 5 * 4 * (layout.size - weights)
    assert "down.values" not in second["bytes_down"]


def test_the_whole_model_is_sent_where_it_is_shorter() -> None:
    run = watched(eden(**TINY, bits=8).with_parts(down=Delta()))
    assert not any("down.steps" in record["bytes_down"] for record in run.metrics)
    log = run.server["downlink"].get("log", {})
    assert sum(map(len, log.values())) <= 4 * run.objective.layout.size + 16


def test_the_server_does_not_keep_the_uploads_of_a_large_cohort() -> None:
    run = watched(SIGNS.with_parts(codec=OnWeights(Eden(8))), tiny_task(30), rounds=2)
    exchange, room = run.method.training, run.method.training.down.room  # type: ignore[attr-defined]
    acc, payload = exchange.begin(run.server, {}), OnWeights(Eden(8)).encode
    vector, layout = run.objective.layout.flatten(run.like), run.objective.layout
    for client in range(30):
        up = exchange.codec_key(run.clock(2, client), run.round_key(2))
        found = exchange.arrival(client, Part(), Coding(layout, up), 1.0, payload(vector, Coding(layout, up)))
        acc = exchange.fold(acc, found)
    assert room < len(acc.notes.listed) < 2 * room
    assert run.server["downlink"].get("log", {}) == {}


def test_a_log_of_empty_steps_is_bounded() -> None:
    run = watched(SIGNS, TINIER, rounds=40, channel=Lossy(1.0), per_round=1)
    assert 1 <= len(run.server["downlink"]["log"]) <= 4 * run.objective.layout.size // 16 + 1
    assert same(run.server["params"], run.like)


def test_a_compressed_step_costs_the_codecs_bits() -> None:
    run = watched(fedavg(**TINY).with_parts(down=LOSSY), pictures(), rounds=4, per_round=2)
    steps = run.server["downlink"]["log"]
    weights = sum(shape.numel() for _, shape in run.objective.layout.shapes if len(shape) > 1)
    assert {len(step) for step in steps.values()} == {len(next(iter(steps.values())))}
    assert len(next(iter(steps.values()))) <= weights / 4 + 40


def test_the_error_of_compressed_steps_is_fed_back() -> None:
    method = fedavg(**TINY, lr=0.5)
    plain = simulate(method, TASK, rounds=12)
    run = watched(method.with_parts(down=LOSSY), rounds=12)
    shadow, params = run.server["downlink"]["shadow"], run.server["params"]
    initial = run.like
    far = {name: float((params[name] - initial[name]).norm()) for name in params}
    assert all(float((shadow[name] - params[name]).norm()) < 0.3 * far[name] for name in params)
    assert run.metrics[-1]["accuracy"] > plain.metrics[-1]["accuracy"] - 0.1


def test_clients_share_one_copy_of_a_version() -> None:
    run = watched(fedmrn(**TINY).with_parts(down=Delta()), rounds=5, per_round=2)
    assert set(run.held_models.models) == {4}
    assert all(set(run.clients.get(client)["held"]) == {"version"} for client in run.clients.known())


@pytest.mark.parametrize("executor", ["one-by-one", "stacked"])
def test_simulated_clients_compute_a_step_once(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, take = Counter[int](), Replay.take

    def counted(steps: Replay, held: State, step: bytes, clock: Clock) -> State:
        taken[clock.round] += 1
        return take(steps, held, step, clock)

    monkeypatch.setattr(Replay, "take", counted)
    simulate(fedmrn(**TINY).with_parts(down=Delta()), TASK, rounds=6, per_round=2, executor=executor)
    assert taken == dict.fromkeys(range(5), 1)


# Sums.


def folded(run: Simulation, masks: list[int]) -> bytes:
    """The step of a round in which client k sends a mask with the bits of ``masks[k]`` in every byte."""
    exchange, clock, layout = run.method.training, run.clock(0), run.objective.layout
    acc = exchange.begin(run.server, dict.fromkeys(range(len(masks)), GLOBAL))
    for client, byte in enumerate(masks):
        payload = {"mask": torch.full((9,), byte, dtype=torch.uint8), "rest.values": torch.zeros(11)}
        up = exchange.codec_key(clock._replace(client=client), run.round_key(0))
        acc = exchange.fold(acc, exchange.arrival(client, Part(), Coding(layout, up), 5.0 + client, payload))
    after = exchange.advance(run.server, exchange.finish(run.server, acc, clock), acc, (), clock)
    return bytes(after["downlink"]["log"]["0"].tolist())


def test_a_sum_does_not_say_whose_masks_it_has() -> None:
    run = Simulation(common().with_parts(down=SUMS), TINIER, Options(rounds=2))
    step = folded(run, [0b10110010, 0b01010101, 0b11110000])
    assert step == folded(run, [0b11110000, 0b01010101, 0b10110010])
    assert step == folded(run, [0b11110010, 0b01010000, 0b10110101])  # other masks with the same sum
    assert step != folded(run, [0b11110000, 0b01010101, 0b10110011])


def test_the_shorter_of_list_and_sum_is_sent() -> None:
    x, y = torch.sin(torch.arange(9200.0)).view(46, 200), torch.arange(46) % 3
    task = Task.of(lambda: nn.Sequential(nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 3)), (x, y), (x, y), clients=9)
    costs = {
        name: watched(method, task, rounds=2).metrics[1]["bytes_down"]["down.steps"]
        for name, method in {
            "list": common(common_noise=False).with_parts(down=Delta()),
            "sum": common().with_parts(down=SUMS),
            "either": common().with_parts(down=Delta()),
        }.items()
    }
    assert costs["sum"] == costs["either"] < 0.5 * costs["list"]


# Interruptions.


@pytest.mark.parametrize("link", [Delta(), HALF, SUMS])
def test_a_resumed_run_has_the_same_bytes(link: Delta, tmp_path: Path) -> None:
    method = (common() if link.sums_only else topk(**TINY, share=0.1, feedback=True)).with_parts(down=link)
    options: dict[str, Any] = {"rounds": 6, "per_round": 3, "channel": Lossy(0.3), "executor": "one-by-one"}

    def stop(record: dict[str, Any], run: Any) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    whole = simulation(simulate(method, TASK, out=tmp_path / "whole", **options))
    with pytest.raises(KeyboardInterrupt):
        simulate(method, TASK, out=tmp_path / "cut", callbacks=stop, **options)
    cut = simulation(simulate(method, TASK, out=tmp_path / "cut", resume=True, **options))
    assert same(whole.server, cut.server)
    assert same(whole.held_models.state(), cut.held_models.state())
    counts = [[record["bytes_down"] for record in read_metrics(tmp_path / name)] for name in ("whole", "cut")]
    assert counts[0] == counts[1]


# Messages.


class Link:
    """Both sides of a bound exchange after some rounds, for messages by hand."""

    def __init__(self, link: Delta | None = None, rounds: int = 4) -> None:
        link = link or Delta()
        method = common(common_noise=link.sums_only).with_parts(down=link)
        self.run = watched(method, rounds=rounds, per_round=2)
        self.exchange: BoundExchange = self.run.method.training
        self.number = rounds

    def frame(self, held: int, client: int = 0) -> Frame:
        clock, key = self.at(client)
        common = self.exchange.make_common(self.run.server, clock, key, held)
        return self.exchange.make_download(self.run.server, clock, key, GLOBAL, None, common).data

    def at(self, client: int = 0) -> tuple[Clock, Any]:
        return self.run.clock(self.number, client), self.run.round_key(self.number)

    def read(self, data: bytes, version: int | None) -> Params:
        clock, key = self.at()
        state = {} if version is None else {"held": self.held(version)}
        return self.exchange.read_download(data, state, clock, key).start

    def held(self, version: int) -> State:
        found = (device["held"] for device in self.run.devices.values())
        return next(held for held in found if int(held["version"]) == version)

    @property
    def newest(self) -> int:
        return max(int(device["held"]["version"]) for device in self.run.devices.values())


def test_a_client_skips_the_steps_that_it_has_taken() -> None:
    link = Link()
    model = link.run.server["params"]
    data = bytes(link.frame(link.newest - 1))
    assert same(link.read(data, link.newest), model)


@pytest.mark.parametrize("version", [None, 0])
def test_a_client_that_holds_no_fitting_version_refuses_the_download(version: int | None) -> None:
    link = Link()
    link.run.devices[9] = {"held": {"version": torch.tensor(0), "params": link.run.like}}
    with pytest.raises(PayloadError, match=f"does not hold version {link.newest}"):
        link.read(bytes(link.frame(link.newest)), version)


def test_another_model_than_the_servers_is_refused() -> None:
    link = Link()
    held = link.held(link.newest)
    held["params"] = {name: tensor + 1e-3 for name, tensor in held["params"].items()}
    with pytest.raises(PayloadError, match="is not that of the server"):
        link.read(bytes(link.frame(link.newest)), link.newest)


def test_a_client_that_refused_a_download_receives_the_whole_model() -> None:
    class Damaging(Watched):
        def client_tasks(self, stage: Stage, *rest: Any) -> Iterator[Any]:
            for task in Simulation.client_tasks(self, stage, *rest):
                if stage.number == 2 and task.clock.client == 1:
                    held = task.state["held"]
                    wrong = {name: tensor + 1e-3 for name, tensor in held["params"].items()}
                    task = task._replace(state={**task.state, "held": {**held, "params": wrong}})
                    self.client._broadcasts = []
                yield task

    run = Damaging(fedmrn(**TINY).with_parts(down=Delta()), tiny_task(3), Options(rounds=5, executor="one-by-one"))
    run.run(None, lambda record: None)
    failures = [[failure["client"] for failure in record["failures"]] for record in run.metrics]
    assert failures == [[], [], [1], [], []]
    whole = [record["bytes_down"].get("down.values", 0) for record in run.metrics]
    one = 4 * run.objective.layout.size
    assert whole == [3 * one, 0, 0, one, 0]


@pytest.mark.parametrize("link", [Delta(), LOSSY, SUMS], ids=["exact", "compressed", "sums"])
def test_damaged_steps_are_refused(link: Delta) -> None:
    """Whatever the bytes of a piece are, with a fitting header they are refused, or give the server's model."""
    made = Link(link)
    frame = made.frame(made.newest)
    head, counts = wire.read_head(frame)
    (model,) = made.exchange.down.models(made.run.server, (made.run.server["params"],))
    refused = 0
    for at, flip in itertools.product(range(0, len(frame.common), 3), (1, 0x80)):
        damaged = bytearray(frame.common)
        damaged[at] ^= flip
        piece = piece_of(bytes(damaged), counts.common)
        data = bytes(wire.address(head, wire.NOTHING, piece))
        try:
            assert same(made.read(data, made.newest), model)
        except PayloadError:
            refused += 1
    assert refused > len(frame.common) // 2


# Configuration.


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (fedavg(), "needs a codec that compresses the uploads"),
        (fedmrn().with_parts(server=Mean(radius=1.0)), "Mean.radius depends on all tensors"),
        (fedadam().with_parts(codec=OnWeights(Eden(1))), "ServerOptimizer does not declare"),
        (fednova().with_parts(codec=OnWeights(Eden(1))), "FedNova does not declare"),
        (scaffold().with_parts(codec=OnWeights(Eden(1))), "Scaffold does not declare"),
        (ifca().with_parts(codec=OnWeights(Eden(1))), "one global model, and Clusters has several"),
        (sensing(OneBit(matrix="gaussian")), "OneBit.matrix=gaussian gives different bits"),
        (sensing(OneBit(decoder="amp")), "OneBit.decoder=amp gives different bits"),
        (onebit_cs(), "MagnitudePruned needs a lossless downlink"),
        (submodel_random(capacities=(0.5,)), "clients that receive the whole model"),
        (perm(), "one exchange per round"),
    ],
)
def test_what_cannot_be_repeated_is_refused_before_the_run(method: Method, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        simulate(method.with_parts(down=Delta()), TASK, rounds=1)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Delta(whole=Dense("float16")), r"Delta.whole must be Dense\(\) without a codec"),
        (lambda: Delta(OnWeights(Eden(2)), sums_only=True), "Delta.sums_only must be False with a codec"),
        (lambda: Delta(OnWeights(Feedback(TopK(0.1)))), "its own error feedback"),
        (lambda: Delta(OnWeights(Dense())), "a dense change is as long as the whole model"),
        (lambda: Delta(Dense("float16")), "Delta.codec must compress the weights"),
        (lambda: Delta(OnWeights(OneBit(matrix="gaussian"))), "the same bits on every device"),
        (lambda: Delta(Eden), re.escape("must be a Codec or none, got the class Eden: write Eden()")),  # type: ignore[arg-type]
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], Delta], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        simulate(fedavg().with_parts(down=make()), TASK, rounds=1)


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (fedmrn(alpha=0.05), "uploads are not whole numbers: use fedmrn or fedmrns with common noise"),
        (common(weights="samples"), "clients have different weights: use weights='uniform'"),
        (common().with_parts(server=Mean("uniform")), "Mean needs every update, not only their sum: use SumThenDecode"),
    ],
)
def test_uploads_that_do_not_add_up_are_refused_where_only_sums_may_be_sent(method: Method, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        simulate(method.with_parts(down=SUMS), TASK, rounds=1)


def test_compressed_steps_work_with_any_server() -> None:
    for method in (fedadam(**TINY), fedpm(**TINY), scaffold(**TINY), fednova(**TINY), klms(**TINY)):
        run = watched(method.with_parts(down=LOSSY), rounds=3, per_round=4)
        assert all(same(start, model) for start, model in run.starts)
        assert not any(record["failures"] for record in run.metrics)


@pytest.mark.parametrize(
    ("method", "name", "file"),
    [(SIGNS, "bits", "delta.bin"), (common().with_parts(down=SUMS), "mask", "sum.bin")],
    ids=["list", "sum"],
)
def test_a_golden_download_is_written_and_read_for_ever(method: Method, name: str, file: str) -> None:
    """Two clients with bits by hand: the bytes of the step, and the model that a client computes from it."""
    run = Simulation(method, TINIER, Options(rounds=2))
    exchange, clock, data = run.method.training, run.clock(0), (TESTS / "golden/downlinks" / file).read_bytes()
    first = {name: torch.arange(t.numel()).view(t.shape) / 64 for name, t in run.server["params"].items()}
    state = {**run.server, "params": first}
    acc = exchange.begin(state, {0: GLOBAL, 2: GLOBAL})
    layout = run.objective.layout
    for client, samples, byte in ((0, 300, 0b10110010), (2, 7, 0b01010101)):
        signs, rest = torch.full((9,), byte, dtype=torch.uint8), torch.full((11,), byte / 256)
        up = exchange.codec_key(clock._replace(client=client), run.round_key(0))
        payload = {name: signs, "rest.values": rest}
        acc = exchange.fold(acc, exchange.arrival(client, Part(), Coding(layout, up), float(samples), payload))
    after = exchange.advance(state, exchange.finish(state, acc, clock), acc, (), clock)
    clock, key = run.clock(1, 1), run.round_key(1)
    common = exchange.make_common(after, clock, key, 0)
    assert bytes(exchange.make_download(after, clock, key, GLOBAL, None, common).data) == data
    held = {"held": {"version": torch.tensor(0), "params": first}}
    assert same(exchange.read_download(data, held, clock, key).start, after["params"])


def test_clients_that_share_the_start_never_receive_the_whole_model() -> None:
    options: dict[str, Any] = {"per_round": 2, "channel": Lossy(0.3), "seed": 4}
    run = watched(fedmrn(**TINY).with_parts(down=Delta(shared_start=True)), TINIER, **options)
    plain = watched(fedmrn(**TINY).with_parts(down=Delta()), TINIER, **options)
    assert all(same(start, model) for start, model in (*run.starts, *plain.starts))
    assert same(run.server["params"], plain.server["params"])
    assert all("down.values" not in record["bytes_down"] for record in run.metrics)
    assert any("down.values" in record["bytes_down"] for record in plain.metrics)


def test_scores_of_masks_start_shared_too() -> None:
    method = fedpm(**TINY, coded=True).with_parts(down=Delta(sums_only=True, shared_start=True))
    run = watched(method, TINIER, per_round=2)
    assert all(same(start, model) for start, model in run.starts)
    assert run.metrics[0]["failures"] == []
