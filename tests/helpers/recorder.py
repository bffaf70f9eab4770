"""What every method sends and remembers, as digests: the record by which a redesign is judged.

    ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE python tests/helpers/recorder.py FILE

writes it. For each case, round and client there is the SHA-256 (its first 16 hexadecimal digits) of every decoded array
of every message, header excluded, and of every leaf of what server and clients remember after the round; the length of
every message; and what the round is evaluated to. Clients train one by one, on one thread, in float32. Nothing that
computes differently on another CPU is used: no vector extensions of torch, no MKL kernels of one vendor, no oneDNN. The
exception is the square root, whose last bit depends on the CPU: the digest of some roots is recorded too.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gossamer import Lossy, Method, Options, Task, Wireless, methods
from gossamer.core import tree, wire
from gossamer.core.random import fold, key, uniform
from gossamer.core.types import State
from gossamer.engines.client import ClientResult
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.fleet.fleet import Device, Fleet
from gossamer.parts.channels import Perfect
from gossamer.parts.codecs import Dense, Drive, Feedback, Int4, OnWeights, TopK

ROUNDS = 3
CLIENTS = 5
PER_ROUND = 4
SGD: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch": 8}
NOISE: dict[str, Any] = {"noise": "uniform"}
LEARNED: dict[str, Any] = {"weights": "samples", "spread": 3.0, "learn_masks": True}
"""The paper's noise."""

FIGURES = ("accuracy", "loss", "personal_accuracy", "worst_tenth_accuracy", "train_loss", "flops", "useful_flops")

ROOTS = "square roots"
"""The entry of the record that is no method."""

Digests = dict[str, str]


def task_for(method: Method, labels: str = "dirichlet:1") -> Task:
    """The task, without running statistics for servers and solvers that refuse them."""
    refused = method.server.private or method.solver.uses == "losses"
    return task(labels, partial(nn.GroupNorm, 2) if refused else nn.BatchNorm2d)


def task(labels: str = "dirichlet:1", norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> Task:
    """Four noisy classes of 6 by 6 pictures, for a convolution, a hidden layer and a batch norm."""

    def samples(n: int, name: str) -> tuple[Tensor, Tensor]:
        y = (uniform(fold(key(7), name, "y"), n) * 4).long()
        noise = uniform(fold(key(7), name, "x"), n * 36, dtype=torch.float64).view(n, 1, 6, 6) - 0.5
        noise[torch.arange(n), 0, y] += 1
        return noise.float(), y

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3),
            norm(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, 10),
            nn.ReLU(),
            nn.Linear(10, 4),
        )

    return Task.of(model, samples(120, "train"), samples(40, "test"), clients=CLIENTS, split=labels)


FLEET = Fleet((Device("phone", 5, None, 1e9),))
LOSSY = {"channel": Lossy(0.5)}

Case = tuple[Callable[[], Method], dict[str, Any]]

CASES: dict[str, Case] = {
    "fedavg": (lambda: methods.fedavg(**SGD, weights="samples"), {}),
    "fedsgd": (lambda: methods.fedsgd(lr=0.5, weights="samples"), {}),
    "fedprox": (lambda: methods.fedprox(**SGD, weights="samples", mu=0.1), {}),
    "local": (lambda: methods.local(**SGD), {}),
    "centralised": (lambda: methods.centralised(**SGD), {}),
    "ditto": (lambda: methods.ditto(**SGD, personal_epochs=2, weights="samples", lam=0.5), {}),
    "fedavg-tuned": (lambda: methods.fedavg_tuned(**SGD, weights="samples", tune_epochs=1), {}),
    "per-fedavg": (lambda: methods.per_fedavg(**SGD, weights="samples", inner=0.05), {}),
    "pfedme": (
        lambda: methods.pfedme(lr=0.01, personal_lr=0.05, steps=4, inner_steps=2, batch=8, lam=15.0, beta=0.7),
        {},
    ),
    "fedmrn": (lambda: methods.fedmrn(**SGD, weights="samples", **NOISE, alpha=0.01, coded=False), {}),
    "fedmrns": (lambda: methods.fedmrns(**SGD, weights="samples", **NOISE, alpha=0.005, coded=False), {}),
    "fedmrn, alpha auto": (lambda: methods.fedmrn(**SGD, **NOISE, **LEARNED), {}),
    "fedmrns, alpha auto": (
        lambda: methods.fedmrns(**SGD, weights="samples", **NOISE, spread=3.0, learn_masks=True),
        {},
    ),
    "fedmrn, bernoulli": (lambda: methods.fedmrn(**SGD, weights="samples"), {}),
    "fedmrns, bernoulli": (lambda: methods.fedmrns(**SGD, weights="samples"), {}),
    "fedpm": (lambda: methods.fedpm(lr=0.1, epochs=2, batch=8), {}),
    "klms": (lambda: methods.klms(lr=0.1, epochs=2, batch=8), {}),
    "fedavg-pruned": (lambda: methods.fedavg_pruned(**SGD, sparsity=0.97), {}),
    "fedsparsify": (lambda: methods.fedsparsify(**SGD, sparsity=0.9), {}),
    "fedsparsify, global": (lambda: methods.fedsparsify(**SGD, sparsity=0.9, where="global", every=2), {}),
    "signsgd": (lambda: methods.signsgd(**SGD), {}),
    "topk": (lambda: methods.topk(**SGD), {}),
    "ef21": (lambda: methods.ef21(lr=0.3, share=0.1), LOSSY),
    "subsample": (lambda: methods.subsample(**SGD), {}),
    "terngrad": (lambda: methods.terngrad(**SGD, coded=False), {}),
    "qsgd": (lambda: methods.qsgd(**SGD), {}),
    "int8": (lambda: methods.int8(**SGD).with_parts(down=OnWeights(Int4())), {}),
    "drive": (lambda: methods.drive(**SGD), {}),
    "eden": (lambda: methods.eden(**SGD), {}),
    "quic-fl": (lambda: methods.quic_fl(**SGD), {}),
    "submodel-random": (lambda: methods.submodel_random(**SGD, weights="uniform", capacities=(1.0, 0.5)), {}),
    "submodel-rolling": (
        lambda: methods.submodel_rolling(**SGD, weights="uniform", by="coordinate", capacities=(1.0, 0.5), offsets=4),
        {},
    ),
    "heterofl": (
        lambda: methods.heterofl(
            **SGD, weights="uniform", momentum=0.9, weight_decay=5e-4, clip=1.0, capacities=(1.0, 0.5), labels="own"
        ),
        {"split": "labels:2"},
    ),
    "fedrolex": (
        lambda: methods.fedrolex(
            **SGD, weights="uniform", momentum=0.9, weight_decay=1e-3, clip=1.0, capacities=(0.5, 0.25), labels="own"
        ),
        {"split": "labels:2"},
    ),
    "fedspa": (lambda: methods.fedspa(**SGD, weights="uniform", decay=0.998, density=0.5, rate=0.5), {}),
    "sub-fedavg": (lambda: methods.sub_fedavg(**SGD, weights="uniform", share=0.3, distance=0.0, accuracy=0.0), {}),
    "onebit-cs": (lambda: methods.onebit_cs(lr=0.5, weights="samples", ratio=(0.5,), retain="change"), {}),
    "perm": (lambda: methods.perm(**{**SGD, "epochs": 1}, warmup=1, bound=0.5, global_lr=0.1, complexity=1.0), {}),
    "perm-two-stage": (
        lambda: methods.perm_two_stage(**{**SGD, "epochs": 1}, warmup=1, bound=0.5, global_lr=0.1, complexity=1.0),
        {},
    ),
    # Variants.
    "error feedback": (lambda: methods.fedavg(**SGD).with_parts(codec=OnWeights(Feedback(TopK(0.1)))), {}),
    "downlink codec": (lambda: methods.fedavg(**SGD).with_parts(down=OnWeights(Drive())), {}),
    "downlink codec, by client": (
        lambda: methods.submodel_random(**SGD, capacities=(0.5,)).with_parts(down=Dense("float16")),
        {},
    ),
    "lossy channel": (lambda: methods.fedavg(**SGD).with_parts(codec=Feedback(Dense())), LOSSY),
    "wireless with retention": (
        lambda: methods.onebit_cs(lr=0.5, ratio=(0.3, 0.6), fresh=False, retain="signs"),
        {"channel": Wireless(FLEET, powers=(1e-6,))},
    ),
    "retention, accumulated": (lambda: methods.onebit_cs(lr=0.5, retain="change", accumulate=True), LOSSY),
    "personal masks of one's own, lossy": (
        lambda: methods.fedspa(**SGD, density=0.3, own_init=True, regrow="random", distribution="uniform-weights"),
        LOSSY,
    ),
    "masks with error feedback": (
        lambda: methods.fedspa(**SGD, density=0.3).with_parts(codec=OnWeights(Feedback(TopK(0.2)))),
        LOSSY,
    ),
    "hybrid pruning": (
        lambda: methods.sub_fedavg(
            **SGD, share=0.3, distance=0.0, accuracy=0.0, prune="hybrid", channel_share=0.3, channel_distance=0.0
        ),
        {},
    ),
    "unequal widths that go round": (
        lambda: methods.perm(**{**SGD, "epochs": 1}, warmup=0, global_lr=0.1, capacities=(1.0, 0.5), complexity=1.0),
        {},
    ),
    "few weights": (
        lambda: methods.perm(**{**SGD, "epochs": 1}, warmup=0, global_lr=0.1, keep=2, sketch=32, every="epoch"),
        {},
    ),
    "labels of one's own": (
        lambda: methods.submodel_random(**SGD, capacities=(1.0, 0.5), labels="own"),
        {"split": "labels:2"},
    ),
    "tuned, with masked noise": (
        lambda: methods.fedavg_tuned(**SGD, tune_epochs=1).with_parts(
            codec=methods.fedmrn(**SGD, **NOISE, alpha=0.01, coded=False).codec
        ),
        {},
    ),
}
"""A method and its options. Together they send every kind of array that a message may have."""


class Recording(Simulation):
    """A simulation that records its messages."""

    def __init__(self, method: Method, task: Task, options: Options) -> None:
        super().__init__(method, task, options)
        self.messages: dict[str, Any] = {}
        self.number = 0

    def client_tasks(self, stage: Stage, *rest: Any) -> Iterator[Any]:
        self.number = stage.exchange.number
        for client_task in super().client_tasks(stage, *rest):
            self.record_message("down", client_task.clock.client, client_task.data)
            yield client_task

    def send_upload(self, client_task: Any, result: Any, ledger: Any) -> Any:
        if isinstance(result, ClientResult):
            self.record_message("up", client_task.clock.client, result.sent.data)
        return super().send_upload(client_task, result, ledger)

    def record_message(self, way: str, client: int, data: Any) -> None:
        if data:
            payload = wire.unpack(data).arrays
            self.messages[f"{self.number}.{client}.{way}"] = [len(data), digests(payload)]

    def results(self, record: dict[str, Any]) -> dict[str, Any]:
        """The results of a round; the next one begins."""
        found = {
            "messages": self.messages,
            "metrics": {name: record[name] for name in FIGURES},
            "server": digests(self.server),
            "clients": {str(c): digests(self.named(self.clients.get(c))) for c in self.clients.known()},
            "models": {str(c): digests(self.models.get(c)) for c in self.models.known()},
        }
        self.messages = {}
        return found

    def named(self, state: State) -> State:
        """A client state with the vectors of its solver as tensors by name."""
        layout = self.method.training.solver.layout
        return {**state, "solver": {n: layout.unflatten(v) for n, v in state.get("solver", {}).items()}}


def digests(nest: State) -> Digests:
    """The digest of each tensor of a nest."""
    return {name: digest(tensor) for name, tensor in sorted(tree.flatten(nest).items())}


def digest(tensor: Tensor) -> str:
    """The beginning of the SHA-256 of a tensor's type, shape and bytes."""
    held = tensor.detach().cpu().contiguous()
    array = (held.view(torch.int16) if held.dtype == torch.bfloat16 else held).numpy()  # NumPy has no bfloat16
    return hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + array.tobytes()).hexdigest()[:16]


def record(case: str) -> list[dict[str, Any]]:
    """The results of a case, round by round."""
    make, more = CASES[case]
    options = Options(rounds=ROUNDS, per_round=PER_ROUND, seed=3, channel=more.get("channel", Perfect()))
    run, found = Recording(make(), task(more.get("split", "dirichlet:1")), options), []
    run.run(None, lambda record: found.append(run.results(record)))
    return found


def roots() -> list[dict[str, Any]]:
    """The digest of square roots, which tells how this CPU rounds them."""
    return [{"sqrt": digest(uniform(key(1), 10_000).sqrt())}]


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    torch.backends.nnpack.set_flags(False)
    kept = {ROOTS: roots(), **{case: record(case) for case in CASES}}
    Path(sys.argv[1]).write_text(json.dumps(kept, indent=0, sort_keys=True).replace("\n", "") + "\n")
