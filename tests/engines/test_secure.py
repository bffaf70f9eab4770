"""Runs with secure aggregation: exact sums, dropouts in every phase, the same in simulation and on Flower."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer import METHODS, ConfigError, RunError, simulate
from gossamer.core import secure_exchange, wire
from gossamer.core.channel import Channel, Cost, Receipt
from gossamer.core.jobs import Folding, Job
from gossamer.core.method import Method
from gossamer.core.random import Key
from gossamer.core.secure import Member
from gossamer.core.secure_exchange import SCRATCH, BoundSecure
from gossamer.core.specs import parse
from gossamer.core.types import Clock, Flops, Payload, State
from gossamer.engines.flower.messages import PHASE, data, word
from gossamer.engines.options import Options
from gossamer.engines.secure import NoSumWarning
from gossamer.engines.simulation import Simulation
from gossamer.methods.secure import secured
from gossamer.parts.codecs import CODECS, OnWeights
from gossamer.parts.downlinks.delta import Delta
from gossamer.parts.secure import SecAgg
from gossamer.runs.records import read_metrics
from gossamer.testing import tiny_task
from helpers.compare import same
from helpers.flower_runs import FIGURES, NUMBERS, agree, deploy, figures, nodes, rewritten, simulated
from helpers.local_grid import LocalGrid

CLIENTS = 8
TASK = tiny_task(CLIENTS)
PHASES = ("keys", "shares", "check", "train", "consent", "unmask")

SUMMED = {
    "masks": secured(METHODS["fedpm"](steps=2)),
    "common noise": secured(METHODS["fedmrn"](steps=2, alpha=0.05, common_noise=True)),
    "signed common noise": secured(METHODS["fedmrns"](steps=2, alpha=0.05, common_noise=True)),
    "signs": secured(METHODS["signsgd"](steps=2)),
    "noisy signs": secured(METHODS["z-signfedavg"](steps=2)),
    "ternary": secured(METHODS["terngrad"](steps=2)),
    "measurements": secured(METHODS["onebit-cs"](lr=0.1)),
    "sampled masks": secured(METHODS["klms"](steps=2)),
    "dense": secured(METHODS["fedavg"](steps=2)),
    "error feedback": secured(METHODS["signsgd"](steps=2, feedback=True)),
    "server optimizer": secured(METHODS["fedadam"](steps=2)),
}
"""A method for each kind of vector that is summed."""


def slow(*values: Any) -> list[Any]:
    """Parameters of tests that are slow."""
    several = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*each, marks=pytest.mark.slow) for each in several]


@dataclass(frozen=True)
class Losing(Channel):
    """A channel that loses the messages of some clients: the n-th of each in a round, for clients in ``lost``."""

    lost: Mapping[int, int]
    sent: Counter[tuple[int, int]] = field(default_factory=Counter)

    def fit(self, clients: int, key: Key) -> "Losing":
        return self

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        at = clock.round, clock.client
        self.sent[at] += 1
        return Receipt(self.lost.get(clock.client) != self.sent[at] - 1)

    def receive(self, nbytes: int, clock: Clock, key: Key) -> Cost:
        return Cost()

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        return Cost()


class Watched(Simulation):
    """A simulation that remembers the vectors of its clients, and the sums that its server learns."""

    values: dict[tuple[int, int], Tensor]
    totals: dict[int, tuple[Tensor, list[int]]]

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values, self.totals = {}, {}
        fold, protocol = BoundSecure.fold, SecAgg.protect

        def folded(
            this: BoundSecure, acc: Folding, state: State, total: Tensor, clients: int, clock: Clock, key: Key
        ) -> Folding:
            self.totals[clock.round] = total, [clients]
            return fold(this, acc, state, total, clients, clock, key)

        def protect(this: Any, values: Tensor, segments: Any, client: int, *more: Any) -> Payload:
            self.values[len(self.totals), client] = values.to(torch.int64)
            return protocol(this, values, segments, client, *more)

        monkeypatch.setattr(BoundSecure, "fold", folded)
        monkeypatch.setattr(SecAgg, "protect", protect)


def watched(monkeypatch: pytest.MonkeyPatch, method: Method, task: Any = TASK, **options: Any) -> Watched:
    run = Watched(method, task, Options(**{"rounds": 2, **options}))
    run.watch(monkeypatch)
    run.run(None, lambda record: None)
    return run


@pytest.mark.parametrize("name", SUMMED)
def test_secure_sums_equal_the_plain_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = watched(monkeypatch, SUMMED[name])
    for number, (total, clients) in run.totals.items():
        plain = [values for (at, _), values in run.values.items() if at == number]
        assert [len(plain)] == clients == [CLIENTS]
        assert torch.equal(total, torch.stack(plain).sum(0))
    assert len(run.totals) == 2


@pytest.mark.parametrize("name", ["masks", "dense", *slow("measurements", "error feedback", "server optimizer")])
def test_the_model_is_that_of_a_run_in_the_clear(name: str) -> None:
    hidden, clear = (
        simulated(method, TASK, rounds=2) for method in (SUMMED[name], SUMMED[name].with_parts(secure=None))
    )
    for tensor, other in zip(hidden.model().values(), clear.model().values(), strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-5, atol=1e-6)
    assert figures(hidden.metrics, ("flops", "clients", "train_loss")) != []


OTHERS = [(name, number) for name in SUMMED for number in range(7) if (name, number) != ("masks", 6)]


@pytest.mark.parametrize(("name", "number"), [("masks", 6), *(slow(each)[0] for each in OTHERS)])
@pytest.mark.parametrize("phase", PHASES)
def test_dropouts_leave_the_exact_sum_of_the_others(
    name: str, phase: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, gone = tiny_task(20), dict.fromkeys(range(1, 1 + number), PHASES.index(phase))
    run = watched(monkeypatch, SUMMED[name], task, rounds=1, channel=Losing(gone))
    total, _ = run.totals[0]
    left = [client for client in range(20) if client not in gone or phase in ("consent", "unmask")]
    assert torch.equal(total, torch.stack([run.values[0, client] for client in left]).sum(0))
    (record,) = run.metrics
    assert record["figures"]["secure"]["summed"] == len(left)
    assert record["exchanges"][0]["folded"] == len(left)


@pytest.mark.parametrize("executor", ["side-by-side", *slow("stacked")])
def test_every_executor_protects_uploads(executor: str) -> None:
    one, other = (simulated(SUMMED["masks"], TASK, rounds=2, executor=name) for name in ("one-by-one", executor))
    for tensor, expected in zip(other.model().values(), one.model().values(), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-5)
    assert other.metrics[-1]["figures"]["secure"]["summed"] == CLIENTS


@pytest.mark.parametrize("phase", PHASES)
def test_a_round_with_too_few_clients_is_refused_and_the_run_goes_on(
    phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {client: PHASES.index(phase) for client in range(1, CLIENTS)}

    class Once(Losing):
        def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
            return super().send(nbytes, clock, key) if clock.round == 0 else Receipt(True)

    with pytest.warns(NoSumWarning, match="round 1 has no sum: secure aggregation: .* needed"):
        run = watched(monkeypatch, SUMMED["masks"], rounds=2, channel=Once(gone))
    first, second = run.metrics
    assert first["figures"]["secure"]["summed"] == 0
    assert "needed" in first["figures"]["secure"]["refused"]
    assert first["exchanges"][0]["folded"] == 0
    assert second["figures"]["secure"]["summed"] == CLIENTS
    assert [*run.totals] == [1]


def test_secrets_are_not_kept(tmp_path: Path) -> None:
    run = Simulation(SUMMED["error feedback"], TASK, Options(rounds=1))
    folder = run.create(tmp_path / "run")
    run.run(folder, lambda record: None)
    folder.close()
    assert all(SCRATCH not in run.clients.get(client) for client in range(CLIENTS))
    assert not run.scratch


def _interrupt(record: dict[str, Any], run: Any) -> None:
    if record["round"] == 2:
        raise KeyboardInterrupt


def test_a_resumed_run_ends_with_the_same_model(tmp_path: Path) -> None:
    method = SUMMED["error feedback"]
    whole = simulate(method, TASK, rounds=4, per_round=5, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        simulate(method, TASK, rounds=4, per_round=5, out=tmp_path / "parts", callbacks=_interrupt)
    parts = simulate(method, TASK, rounds=4, per_round=5, out=tmp_path / "parts", resume=True)
    assert same(whole.model.state_dict(), parts.model.state_dict())
    names = ("bytes_up", "bytes_down", "figures", "clients", "failures")
    assert figures(read_metrics(tmp_path / "whole"), names) == figures(read_metrics(tmp_path / "parts"), names)


def test_bytes_of_every_phase_are_counted_by_kind() -> None:
    run = simulated(SUMMED["masks"], TASK, rounds=1)
    (record,) = run.metrics
    up, down = record["bytes_up"], record["bytes_down"]
    assert up.keys() == {*(f"secure.{phase}" for phase in PHASES if phase != "train"), "secure.sum", "overhead"}
    assert down.keys() >= {*(f"secure.{phase}" for phase in PHASES), "overhead"}
    weights = sum(t.numel() for t in run.like.values() if t.dim() >= 2)
    others = sum(t.numel() for t in run.like.values() if t.dim() < 2)
    # 8 clients: masks of one bit sum to at most 8, in 4 bits; 16 bits sum in 19 bits.
    least = (4 * weights + 19 * others) / 8 + 96  # with a digest of what the client saw, and a signature
    assert least <= up["secure.sum"] / CLIENTS <= least + 2


@pytest.mark.filterwarnings("ignore::gossamer.engines.secure.NoSumWarning")
def test_an_upload_without_phases_is_refused_by_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that leaves out the request of secure aggregation gets no upload in the clear."""
    protected = BoundSecure.protected

    def tricked(this: BoundSecure, payload: Payload, job: Job) -> Payload:
        return protected(this, payload, job._replace(request=None))

    monkeypatch.setattr(BoundSecure, "protected", tricked)
    with pytest.raises(RunError, match="not protected by secure aggregation"):
        simulate(SUMMED["masks"], TASK, rounds=1)


def _garbage(monkeypatch: pytest.MonkeyPatch, liar: int, rounds: int = 1) -> None:
    """Let a client deal shares that nobody can read, in its first rounds."""
    answer, dealt = SecAgg.answer, Counter[int]()

    def lying(this: Any, phase: str, member: Member, request: Payload, scratch: State) -> tuple[Payload, State]:
        found, scratch = answer(this, phase, member, request, scratch)
        if phase == "shares" and member.client == liar and dealt[liar] < rounds:
            dealt[liar] += 1
            found["sealed"] = found["sealed"] ^ 1
        return found, scratch

    monkeypatch.setattr(SecAgg, "answer", lying)


def test_a_liar_is_named_and_takes_no_part_in_later_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    _garbage(monkeypatch, 3)
    run = watched(monkeypatch, SUMMED["masks"], rounds=3)
    first, *later = run.metrics
    reason = "lied: its shares were unreadable or wrong for 7 of 7 neighbours"
    assert first["figures"]["secure"]["liars"] == {"3": reason}
    assert first["failures"] == [{"client": 3, "reason": reason}]
    assert first["figures"]["secure"]["summed"] == CLIENTS - 1
    assert all(record["excluded"] == [3] and 3 not in record["clients"] for record in later)
    total, _ = run.totals[0]
    assert torch.equal(total, torch.stack([values for (at, _), values in run.values.items() if at == 0]).sum(0))


def test_a_resumed_run_leaves_liars_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _garbage(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        simulate(SUMMED["masks"], TASK, rounds=3, out=tmp_path / "run", callbacks=_interrupt)
    result = simulate(SUMMED["masks"], TASK, rounds=3, out=tmp_path / "run", resume=True)
    assert [record.get("excluded") for record in result.metrics] == [None, [3], [3]]


def test_a_client_that_lies_after_its_upload_is_named_and_in_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SecAgg.answer

    def lying(this: Any, phase: str, member: Member, request: Payload, scratch: State) -> tuple[Payload, State]:
        found, scratch = answer(this, phase, member, request, scratch)
        if phase == "unmask" and member.client == 5:
            found["shares"] = found["shares"] ^ 1
        return found, scratch

    monkeypatch.setattr(SecAgg, "answer", lying)
    run = watched(monkeypatch, SUMMED["masks"], rounds=2)
    first, second = run.metrics
    assert "8 of the 8 shares that it revealed" in first["figures"]["secure"]["liars"]["5"]
    assert first["exchanges"][0]["folded"] == first["figures"]["secure"]["summed"] == CLIENTS
    assert second["excluded"] == [5]


def test_a_model_for_one_client_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sends one client another model. Its upload cannot be in the sum, and the record says so."""
    digest, seen = BoundSecure.digest, Counter[str]()

    def other(this: BoundSecure, broadcast: Any) -> bytes:
        seen["calls"] += 1
        return b"\1" * 32 if seen["calls"] == 4 else digest(this, broadcast)  # after the server, of the third client

    monkeypatch.setattr(BoundSecure, "digest", other)
    run = watched(monkeypatch, SUMMED["masks"], rounds=1)
    (record,) = run.metrics
    (failure,) = record["failures"]
    assert failure["client"] == 2
    assert "lied: its upload is from another model" in failure["reason"]
    assert record["figures"]["secure"]["summed"] == CLIENTS - 1


def test_the_digest_of_the_models_is_computed_once_per_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, feed = Counter[str](), secure_exchange._feed

    def counted(found: Any, value: Any) -> None:
        calls["models"] += isinstance(value, tuple) and bool(value) and isinstance(value[0], tuple)
        feed(found, value)

    monkeypatch.setattr(secure_exchange, "_feed", counted)
    watched(monkeypatch, SUMMED["masks"], rounds=3)
    assert calls["models"] == 2 * 3  # of the server, and of all clients


def test_the_digest_depends_on_names_types_shapes_and_values() -> None:
    def digest(models: Any, sections: Any = None) -> bytes:
        found = hashlib.sha256()
        secure_exchange._feed(found, (models, sections or {}))
        return found.digest()

    one = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    different = [
        (one,),
        ({"a": torch.zeros(3, 2), "b": torch.ones(1)},),
        ({"a": torch.zeros(2, 3), "c": torch.ones(1)},),
        ({"a": torch.zeros(2, 3).double(), "b": torch.ones(1)},),
        ({"a": torch.zeros(2, 3), "b": torch.zeros(1)},),
        ({"a": torch.zeros(2, 3)},),
        (one, one),
    ]
    assert len({digest(models) for models in different}) == len(different)
    assert digest((dict(reversed(one.items())),)) == digest((one,))
    assert digest((one,), {"momentum": one}) != digest((one,), {"momentum": {}})


@pytest.mark.parametrize("down", ["dense:bfloat16", "delta:eden:2", "eden:4"])
def test_downlinks_that_send_other_bytes_to_each_client_give_one_digest(down: str) -> None:
    """What counts is what clients decode: clients that missed a round get more steps to the same model."""
    method = METHODS["fedavg"](steps=2)
    link: Any = (
        Delta.of_spec(down.partition(":")[2]) if down.startswith("delta") else OnWeights(parse(down, CODECS, "codec"))
    )
    run = simulated(secured(method.with_parts(down=link)), TASK, rounds=4, per_round=5)
    assert [record["figures"]["secure"]["summed"] for record in run.metrics] == [5] * 4
    assert all(not record["failures"] for record in run.metrics)


REFUSED: dict[str, tuple[Method, str]] = {
    "weights": (METHODS["fedpm"]().with_parts(server=METHODS["fedavg"]().server), "different weights"),
    "codec": (METHODS["topk"](weights="uniform"), "TopK"),
    "masks per client": (METHODS["fedspa"](), "secure aggregation reveals only a sum"),
    "model per client": (METHODS["perm"](), "keeps a model for each client, who must train the same one"),
    "described view": (METHODS["fedspa"](), "describes the part of each client|sends what changed in each client"),
    "different parts": (METHODS["heterofl"](), "clients hold different parts of the model"),
    "several models": (METHODS["ifca"](), "needs every update"),
    "uploads sent on": (METHODS["fedpm"]().with_parts(down=Delta()), "this downlink sends updates on"),
    "sections per client": (METHODS["scaffold"](), "secure aggregation reveals only a sum"),
    "nothing": (METHODS["local"](), "send no update"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_sum_is_refused_with_the_reason(name: str) -> None:
    method, reason = REFUSED[name]
    with pytest.raises(ConfigError, match=reason):
        simulate(method.with_parts(secure=SecAgg()), TASK, rounds=1)


def test_a_schedule_is_refused() -> None:
    with pytest.raises(ConfigError, match="phases of secure aggregation"):
        simulate(SUMMED["masks"], TASK, rounds=1, schedule="deadline:60s")


def test_a_cohort_below_the_threshold_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="clients"):
        simulate(SUMMED["masks"], TASK, rounds=1, per_round=1)


# Flower.


@pytest.mark.parametrize("name", ["masks", *slow("dense", "error feedback")])
def test_a_deployment_computes_what_the_simulator_computes(name: str, tmp_path: Path) -> None:
    task = tiny_task(4)
    grid, run = LocalGrid(nodes(SUMMED[name], task, tmp_path)), simulated(SUMMED[name], task)
    deployed = deploy(SUMMED[name], task, grid)
    agree(deployed, run, tmp_path)
    shared = tuple(name for name in FIGURES if name in ("accuracy", "loss"))
    counts = ("bytes_up", "bytes_down", "failures", "exchanges")
    assert figures(deployed.metrics, shared + counts) == figures(run.metrics, shared + counts)
    seen, observed = ([record["figures"]["secure"] for record in each.metrics] for each in (deployed, run))
    assert seen == observed
    assert all(record["train_loss"] is None for record in deployed.metrics), "a loss is one client's alone"
    assert not any(record["flops"] for record in deployed.metrics), "operations follow from the number of samples"


def test_a_node_uploads_once_per_round_and_answers_once(tmp_path: Path) -> None:
    """Two uploads with the same masks would reveal their difference, and two answers both secrets of a client."""

    class Again(LocalGrid):
        """A server that sends each message of one node twice; the second reply counts."""

        def push_messages(self, messages: Any) -> list[str]:
            sent = list(messages)
            for message in sent:
                last = message.metadata.message_type == PHASE and word(message, "phase", str) == "unmask"
                if message.metadata.dst_node_id == NUMBERS[1] and (message.metadata.message_type == "train" or last):
                    self.nodes[NUMBERS[1]](message)
            return super().push_messages(sent)

    task = tiny_task(4)
    grid = Again(nodes(SUMMED["masks"], task, tmp_path))
    (record,) = deploy(SUMMED["masks"], task, grid, rounds=1).metrics
    assert [failure["client"] for failure in record["failures"]] == [1]
    assert "a second request to train" in record["failures"][0]["reason"]
    assert record["figures"]["secure"]["summed"] == 3


def test_a_deployment_repeats_a_void_round_without_the_liar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a client left out, too few uploads arrive. The next attempt does not ask it, and the record names it."""
    _garbage(monkeypatch, 3, rounds=100)
    task = tiny_task(4)
    grid = LocalGrid(nodes(SUMMED["masks"], task, tmp_path))
    (record,) = deploy(SUMMED["masks"], task, grid, rounds=1, min_replies=0.95).metrics
    assert len(record["void"]) == 1
    assert "3" in record["figures"]["secure"]["liars"]
    assert record["excluded"] == [3]
    assert record["figures"]["secure"]["summed"] == 3


def test_keys_of_an_earlier_round_are_refused(tmp_path: Path) -> None:
    kept: dict[str, bytes] = {}
    task = tiny_task(4)
    there = nodes(SUMMED["masks"], task, tmp_path)
    honest = there[NUMBERS[1]]

    def replaying(message: Any) -> Any:
        reply = honest(message)
        if message.metadata.message_type != PHASE or word(message, "phase", str) != "keys" or reply is None:
            return reply
        if word(message, "round", int) == 0:
            kept["keys"] = data(reply)
            return reply
        old = wire.unpack(kept["keys"])
        return rewritten(reply, wire.pack(replace(old, round=1, version=1)))

    there[NUMBERS[1]] = replaying
    first, second = deploy(SUMMED["masks"], task, LocalGrid(there)).metrics
    assert first["failures"] == []
    assert [failure["client"] for failure in second["failures"]] == [1]
    assert "are not signed with its key on the roster" in second["failures"][0]["reason"]
    assert second["figures"]["secure"]["summed"] == 3
