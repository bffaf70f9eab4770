"""Every method and every random layer on a GPU, in every executor there, against the CPU: ``make gpu-test``.

    python tests/check_gpu.py [--quick] [--only NAME ...] [--jobs 8]

Models are of float64, so that only rounding differs. A method fails if a client fails, or if its model after two rounds
is farther from the CPU's than its bound: 1e-9, or more where a codec rounds (a sign or a quantile that turns over moves
entries by a whole step). Networks with random layers (``--only dropout``) must draw the numbers that they draw on the
CPU. With a delta downlink (``--only delta``), downloads of a server on one device are read on the other one, and must
give the same bits. Every codec (``--only messages``) must send the same bits from both devices for an update of
float32, and decode them to the same bits. In each precision (``--only precision``), models of float32 must be as far
from the CPU's as its rounding explains, relative to the change in training, and torch's settings must be restored.
What is drawn, packed and rotated for the rows of a group (``--only rows``) must have the bits of each client alone.
Under schedules (``--only schedule``), the events must be those of the CPU. Needs torch, NumPy and safetensors alone.
Without ``--quick`` steps are compiled as well, and that takes minutes; ``--jobs`` processes share the cases.
"""

import argparse
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from gossamer import Device, Fleet, FleetLinks, Method, Options, Task
from gossamer.core import bits as packing
from gossamer.core import exact, tree
from gossamer.core.codec import Codec, Coding
from gossamer.core.random import Key, Keys, draws, fold_each, key, tensor, words
from gossamer.core.random.noise import KINDS, draw
from gossamer.core.types import Layout, State
from gossamer.engines import kept_run
from gossamer.engines.client import ClientTask
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.methods import METHODS
from gossamer.parts.codecs import (
    CODECS,
    CommonMaskedNoise,
    Dense,
    Drive,
    Eden,
    Feedback,
    MaskedNoise,
    OneBit,
    OnWeights,
    StochasticSign,
    Ternary,
    TopK,
)
from gossamer.parts.codecs.rotation import Rotation
from gossamer.parts.downlinks import Delta
from gossamer.parts.samplers import PowerOfChoice
from gossamer.parts.servers import (
    Bucketing,
    CenteredClipping,
    Clip,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    Robust,
    Rule,
    SumThenDecode,
    TrimmedMean,
)
from gossamer.parts.solvers import DPSGD
from gossamer.tasks.nets import build
from gossamer.tasks.objective import Objective
from gossamer.testing import tiny_task
from helpers.random_nets import RANDOM_NETS
from helpers.tf32 import settings

FEW = 5
"""Clients of most cases, of which three train in a round. Of a larger task all do, more than train at the same time."""
EXECUTORS = ("one-by-one", "stacked", "captured-plain")
COMPILED = ("compiled", "captured")
ROUGH = {
    "learned masks",
    "private masks",
    "private scores",
    "fedmrn",
    "fedmrns",
    "fedpm",
    "klms",
    "signsgd",
    "z-signfedavg",
    "terngrad",
    "qsgd",
    "quic-fl",
    "int8",
    "onebit-cs",
    "onebit-cs-paper",
    "fedsparsify",
    "fedavg-pruned",
    "fedspa",
    "sub-fedavg",
    "topk",
    "ef21",
}
"""Methods with a step function in them: how far two runs may be apart is up to it."""

VARIANTS: dict[str, Method] = {
    "error feedback": METHODS["fedavg"](steps=3).with_parts(codec=OnWeights(Feedback(TopK(0.2)))),
    "power-of-choice": METHODS["fedavg"](steps=3).with_parts(sampler=PowerOfChoice(4)),
    "learned masks": METHODS["fedmrn"](steps=3, learn_masks=True),
    "several per launch": METHODS["fedavg"](steps=20, batch=2),
    "private": METHODS["fedavg"]().with_parts(solver=DPSGD(steps=8, batch=4, momentum=0.5, noise_multiplier=0.5)),
    "private scores": METHODS["fedpm"]().with_parts(solver=DPSGD(steps=8, batch=4)),
    "private masks": METHODS["fedmrn"](learn_masks=True).with_parts(solver=DPSGD(steps=8, batch=4)),
}
RULES_HERE: list[tuple[str, Rule]] = [
    ("fedavg", Clip()),
    ("fedavg", Median()),
    ("fedavg", TrimmedMean(0.34)),
    ("fedavg", GeometricMedian()),
    ("fedavg", Krum(1)),
    ("fedavg", MultiKrum(1)),
    ("fedavg", CenteredClipping()),
    ("fedavg", Bucketing(2, Clip(0.1))),
    ("fedadam", Median()),
    ("heterofl", Median()),
    ("heterofl", GeometricMedian()),
]
"""Robust rules, and the methods that they are checked with."""

VARIANTS |= {
    f"{name} {rule.to_text()}": (method := METHODS[name](steps=3)).with_parts(server=Robust(rule, method.server))
    for name, rule in RULES_HERE
}


DELTA = "delta "
THREE_STEPS = METHODS["fedavg"](steps=3).with_parts(server=Mean(server_lr=0.7), down=Delta())
DELTAS: dict[str, Method] = {
    "masks": THREE_STEPS.with_parts(codec=OnWeights(MaskedNoise(alpha=0.05))),
    "scores": METHODS["fedpm"](steps=3).with_parts(down=Delta()),
    "signs": THREE_STEPS.with_parts(codec=OnWeights(StochasticSign())),
    "trits": THREE_STEPS.with_parts(codec=OnWeights(Ternary())),
    "top entries": THREE_STEPS.with_parts(codec=OnWeights(TopK(0.02))),
    "EDEN": THREE_STEPS.with_parts(codec=OnWeights(Eden(1))),
    "one-bit": THREE_STEPS.with_parts(codec=OnWeights(OneBit()), server=SumThenDecode()),
    "sums of masks": THREE_STEPS.with_parts(
        codec=OnWeights(CommonMaskedNoise(alpha=0.05)),
        server=SumThenDecode("uniform", server_lr=0.7),
        down=Delta(sums_only=True),
    ),
    "sampled masks": METHODS["klms"](steps=3).with_parts(down=Delta()),
    "stacks": METHODS["flora"](steps=3, rank=4, capacities=(1.0, 0.5)),
    "scalars": METHODS["decomfl"](steps=3, perturbations=4),
    "curvature": METHODS["hiso"](steps=3, perturbations=4, smoothing=0.3),
    "curvature, gauss": METHODS["hiso"](steps=1, perturbations=4, smoothing=0.3, directions="gauss"),
    "compressed": THREE_STEPS.with_parts(down=Delta(OnWeights(Eden(2)))),
    "compressed, float16": THREE_STEPS.with_parts(down=Delta(OnWeights(Drive()), Dense("float16"))),
}
"""Uploads that clients replay, and compressed deltas."""

DROPOUT = "dropout "
"""Start of the names of cases with random layers."""
STEPS = METHODS["fedavg"](steps=5)


def characters() -> Task:
    """The recurrent network of FedMRN, with dropout."""
    x, y = torch.arange(96).view(16, 6) % 20, torch.arange(16) % 20
    return Task.of(lambda: build("lstm", torch.Size([6]), 20).double(), (x, y), (x, y), clients=5)


def random_cases() -> dict[str, tuple[Method, Task]]:
    """Networks with random layers, trained with FedAvg and SCAFFOLD."""
    x, y = torch.sin(torch.arange(276.0, dtype=torch.float64)).view(46, 6), torch.arange(46) % 3

    def task(make: Callable[[], nn.Module]) -> Task:
        return Task.of(lambda: make().double(), (x, y), (x, y), clients=5)

    found = {f"{DROPOUT}{name}": (STEPS, task(make)) for name, make in RANDOM_NETS.items()}
    found[f"{DROPOUT}scaffold"] = METHODS["scaffold"](), task(RANDOM_NETS["dense"])
    return found | {f"{DROPOUT}net lstm": (STEPS, characters())}


def final(method: Method, task: Task, device: str, executor: str) -> tuple[State, list[str]]:
    """The server's state after two rounds, on the CPU, and why clients failed."""
    clients = max(3, method.server.rule.min_cohort) if isinstance(method.server, Robust) else 3
    clients = task.clients if task.clients > FEW else clients
    run = Simulation(method, task, Options(rounds=2, per_round=clients, device=device, executor=executor))
    result = run.run(None, lambda record: None)
    return tree.move(run.server, "cpu"), [f["reason"] for record in result.metrics for f in record["failures"]]


def apart(one: State, other: State) -> float:
    """The largest difference of two models."""
    a, b = tree.flatten(one["params"]), tree.flatten(other["params"])
    return max(float((a[name] - b[name]).abs().max()) for name in a)


class Elsewhere(Simulation):
    """A simulation in which every download is also read by a client on another device; each keeps its own state."""

    def __init__(self, method: Method, task: Task, options: Options, device: str) -> None:
        super().__init__(method, task, options)
        self.other = method.bind(Objective(task.adapted(method.adapter), device, self.key)).training
        self.devices: dict[int, State] = {}

    def client_tasks(self, stage: Stage, *rest: Any) -> Iterator[ClientTask]:
        for client_task in super().client_tasks(stage, *rest):
            clock, data = client_task.clock, bytes(client_task.data)
            # The checksum of the model is compared in here.
            job = self.other.read_download(data, self.devices.get(clock.client, {}), clock, client_task.key)
            self.devices[clock.client] = job.state
            yield client_task


def read_elsewhere(method: Method, here: str, there: str) -> int:
    """Run a method on one device, read its downloads on another, and return the number of rounds with steps."""
    x, y = torch.sin(torch.arange(9200.0)).view(46, 200), torch.arange(46) % 3
    data = (x, y), (x, y)
    task = Task.of(lambda: nn.Sequential(nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 3)), *data, clients=3)
    run = Elsewhere(method, task, Options(rounds=6, per_round=2, device=here, executor="one-by-one"), there)
    run.run(None, lambda record: None)
    return sum("down.steps" in record["bytes_down"] for record in run.metrics)


def check_deltas(devices: tuple[str, str]) -> int:
    """Run all cases of delta downlinks, and return how many fail."""
    wrong = 0
    for name, (here, there) in product(DELTAS, (devices, devices[::-1])):
        try:
            steps = read_elsewhere(DELTAS[name], here, there)
            well, result = steps > 0, f"{steps} rounds with steps, all equal"
        except Exception as error:  # shown in its row, and counted
            well, result = False, f"{type(error).__name__}: {str(error)[:200]}"
        wrong += not well
        print(f"{'ok  ' if well else 'BAD '} {DELTA}{name:20} {here} to {there}: {result}", flush=True)
    return wrong


SCHEDULED = "schedule "
"""Start of the names of rows with virtual time."""
SCHEDULES = {"deadline": "deadline:60s,over=1.6", "fold": "deadline:40s,late=fold", "fedbuff": "fedbuff:buffer=2"}
SPEEDS = (200.0, 350.0, 600.0, 900.0, 2000.0)


def timed(name: str, schedule: str, device: str, executor: str) -> tuple[State, list[Any]]:
    """The server's state after six rounds under a schedule, on the CPU, and the tasks of all rounds."""
    devices = tuple(Device(f"{x:g}", 1, None, x, up=1e3, down=1e4) for x in SPEEDS)
    options = {"rounds": 6, "per_round": 3, "device": device, "executor": executor, "schedule": schedule}
    task, method = tiny_task(FEW, torch.float64), METHODS[name](steps=3)
    run = Simulation(method, task, Options(**options, channel=FleetLinks(Fleet(devices))))  # type: ignore[arg-type]
    result = run.run(None, lambda record: None)
    return tree.move(run.server, "cpu"), [record["tasks"] for record in result.metrics]


def check_schedules(executors: tuple[str, ...]) -> int:
    """Compare schedules with the CPU: the same events, and the same models up to rounding."""
    wrong = 0
    for name, (title, schedule) in product(("fedavg", "scaffold", "heterofl"), SCHEDULES.items()):
        wanted, events = timed(name, schedule, "cpu", "one-by-one")
        for executor in executors:
            try:
                found, same = timed(name, schedule, "cuda", executor)
                far = apart(found, wanted)
                well, result = far < 1e-9 and same == events, f"{far:.1e}{'' if same == events else ', other events'}"
            except Exception as error:  # shown in its row, and counted
                well, result = False, f"{type(error).__name__}: {str(error)[:200]}"
            wrong += not well
            print(f"{'ok  ' if well else 'BAD '} {SCHEDULED}{title:9} {name:10} {executor:15} {result}", flush=True)
    return wrong


MESSAGES = "messages "
"""Start of the names of rows that compare messages."""
ENCODERS: dict[str, Codec] = {
    **{name: make() for name, make in CODECS.items()},
    **{
        f"{kind}{' signed' * signed}{' by sign' * (not drawn)}": MaskedNoise(signed, kind, stochastic=drawn, spread=0.7)
        for kind, signed, drawn in product(KINDS, (False, True), (False, True))
    },
    "blocks of any length": MaskedNoise(block=100),
}


def vectors() -> Iterator[tuple[Layout, Tensor]]:
    """Updates of tensors of several sizes: ordinary, heavy-tailed, tiny, large, and with zeros."""
    shapes = {"a": (40, 100), "b": (300,), "c": (16, 8)}
    for scale, power in ((0.01, 1), (1.0, 5), (1e-38, 1), (1e20, 1)):
        drawn = {
            name: scale * torch.sin(torch.arange(1.0, 1 + math.prod(shape)) ** 1.3) ** power
            for name, shape in shapes.items()
        }
        drawn["b"][:100] = 0
        params = {name: tensor.view(shapes[name]) for name, tensor in drawn.items()}
        yield (layout := Layout.of(params)), layout.flatten(params)


def same_message(codec: Codec, layout: Layout, x: Tensor) -> bool:
    """Whether both devices send the same bits for an update, and read the same values from them."""
    ctx = Coding(layout, key(7))
    (here, _), (there, _) = (codec.encode_with(x.to(at), codec.init(layout), ctx) for at in ("cpu", "cuda"))
    sent = list(here) == list(there) and all(bits(here[name]) == bits(there[name]) for name in here)
    values = (codec.decode({name: part.to(at) for name, part in here.items()}, ctx) for at in ("cpu", "cuda"))
    return sent and len(set(map(bits, values))) == 1


def bits(tensor: Tensor) -> bytes:
    """The bytes of a tensor."""
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def check_messages() -> int:
    """Encode and decode with every codec on both devices, and return how many differ."""
    wrong = 0
    for name, codec in ENCODERS.items():
        try:
            same = [same_message(codec, layout, x) for layout, x in vectors()]
            well, result = all(same), f"{sum(same)} of {len(same)} messages are equal"
        except Exception as error:  # shown in its row, and counted
            well, result = False, f"{type(error).__name__}: {str(error)[:200]}"
        wrong += not well
        print(f"{'ok  ' if well else 'BAD '} {MESSAGES}{name:20} {result}", flush=True)
    return wrong


ROWS = "rows "
"""Start of the names of the table's rows that compare the rows of a group with each client alone."""


def row_ways(n: int, start: int) -> Iterator[tuple[str, Tensor, Iterator[Tensor]]]:
    """What a GPU computes for all rows in one launch, and the CPU for each key alone."""
    keys = Keys([Key(0, 0), Key(2**63, 2**64 - 1), *fold_each(key(3), "client", range(70))])
    there, steps = tensor(keys, "cuda"), torch.arange(len(keys)) * 2**33

    def stepped(k: Tensor, at: Tensor) -> Tensor:
        return draws(k, at, n, 2, 1)

    each = [stepped(tensor(k), at) for k, at in zip(keys, steps, strict=True)]
    yield "words", words(keys, n, start=start, device="cuda"), (words(k, n, start=start) for k in keys)
    yield "draws", stepped(there, steps.cuda()), iter(each)
    yield "stacked draws", torch.vmap(stepped)(there, steps.cuda()), iter(each)
    gauss = draw("gauss", 1.0, keys, n, start=start, device="cuda")
    rows = [draw("gauss", 1.0, k, n, start=start) for k in keys]
    yield "gauss", gauss, iter(rows)
    yield "norm", exact.norm(gauss), (exact.norm(row) for row in rows)
    yield "bits", packing.bits(gauss > 0), (packing.bits(row > 0) for row in rows)
    yield "codes", packing.codes(gauss > 0, 3), (packing.codes(row > 0, 3) for row in rows)
    yield "trits", packing.trits(gauss.sign().char()), (packing.trits(row.sign().char()) for row in rows)
    turned = zip(keys, rows, strict=True)
    yield "rotation", Rotation(n, keys).forward(gauss), (Rotation(n, k).forward(row) for k, row in turned)


def check_rows() -> int:
    """Compare the rows of a group, and return how many cases differ."""
    wrong = 0
    for n, start in product((0, 1, 650, 1023, 4097, 20_001), (0, 1, 3, 2**40 + 3)):
        try:
            ways = row_ways(n, start)
            bad = [name for name, found, each in ways if not torch.equal(found.cpu(), torch.stack(list(each)))]
            result = f"{', '.join(bad)} differ" if bad else "all equal"
        except Exception as error:  # shown in its row, and counted
            bad, result = ["all"], f"{type(error).__name__}: {str(error)[:200]}"
        wrong += bool(bad)
        print(f"{'BAD ' if bad else 'ok  '} {ROWS}{n:6} from {start}: {result}", flush=True)
    return wrong


PRECISION = "precision "
BOUNDS = {"float32": (0.0, 2e-5), "tf32": (2e-5, 0.01), "bf16": (2e-4, 0.05)}
"""Least and largest distance from the CPU's float32, relative to the change of the model in two rounds.

With the least one, a precision that has no effect is found, as is TF32 where float32 was asked for.
"""


def images() -> Task:
    """A network of float32 with convolutions and group norms, wide enough for tensor cores."""
    x, y = torch.sin(torch.arange(320 * 3 * 64.0) ** 1.3).view(320, 3, 8, 8), torch.arange(320) % 4

    def network() -> nn.Module:
        body = (
            nn.Conv2d(3, 32, 3, padding=1),
            nn.GroupNorm(4, 32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
        )
        return nn.Sequential(*body, nn.Flatten(), nn.Linear(4096, 64), nn.ReLU(), nn.Linear(64, 4))

    return Task.of(network, (x, y), (x, y), clients=5)


def trained(device: str, executor: str, precision: str) -> tuple[State, list[str]]:
    """The parameters after two rounds of FedAvg, on the CPU, and why clients failed."""
    options = Options(rounds=2, per_round=3, device=device, executor=executor, precision=precision)
    run = Simulation(METHODS["fedavg"](epochs=2, batch=16, lr=0.05), images(), options)
    with warnings.catch_warnings():
        for advice in ("TensorFloat32 tensor cores", "Please use the new API", "clients could not be trained together"):
            warnings.filterwarnings("error", advice)
        result = run.run(None, lambda record: None)
    reasons = [f["reason"] for record in result.metrics for f in record["failures"]]
    return tree.move(run.server["params"], "cpu"), reasons


def relative(found: State, wanted: State, start: State) -> float:
    """The distance of two models, relative to the change of training."""
    one, other, first = (torch.cat([tensor.flatten() for tensor in each.values()]) for each in (found, wanted, start))
    return float((one - other).norm() / (other - first).norm())


def check_precisions(executors: tuple[str, ...]) -> int:
    """Run every executor in every precision against the CPU, and return how many fail."""
    wrong, before = 0, settings()
    wanted, _ = trained("cpu", "one-by-one", "float32")
    start = Simulation(METHODS["fedavg"](), images(), Options()).like
    for precision, executor in product(BOUNDS, executors):
        least, most = BOUNDS[precision]
        try:
            found, reasons = trained("cuda", executor, precision)
            far, restored = relative(found, wanted, start), settings() == before
            well = not reasons and least <= far <= most and restored
            result = f"{far:.1e}, within {least:g} and {most:g}" + ("" if restored else ", settings not restored")
            result += f" failures: {reasons[0]}" if reasons else ""
        except Exception as error:  # shown in its row, and counted
            well, result = False, f"{type(error).__name__}: {str(error)[:200]}"
        wrong += not well
        print(f"{'ok  ' if well else 'BAD '} {PRECISION}{precision:8} {executor:15} {result}", flush=True)
    return wrong


def shared(names: list[str], jobs: int, words: list[str]) -> int:
    """Run the cases in several processes, which print their rows; return 0 if all pass."""
    command = [sys.executable, __file__, *words, "--only"]
    started = [subprocess.Popen([*command, *names[job::jobs]]) for job in range(jobs)]
    wrong = sum(job.wait() != 0 for job in started)
    print(f"{wrong} of {jobs} processes have wrong rows, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    return min(wrong, 1)


def main() -> int:
    """Print a row for each method. The exit status is 0 if all pass."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    if find_spec("dp_accounting") is None:  # epsilons do not depend on the device
        vars(kept_run)["privacy_of"] = lambda *about, **more: None
    methods = {**{name: recipe() for name, recipe in METHODS.items() if not recipe().pooled}, **VARIANTS}
    cases = {name: (method, tiny_task(FEW, torch.float64)) for name, method in methods.items()} | random_cases()
    cases["twelve clients"] = METHODS["fedspa"](steps=20, batch=2), tiny_task(12, torch.float64)
    if asked.jobs > 1:
        names = asked.only or [*(start.strip() for start in (DELTA, PRECISION, MESSAGES, ROWS, SCHEDULED)), *cases]
        return shared(names, min(asked.jobs, len(names)), ["--quick"] if asked.quick else [])
    executors = (*EXECUTORS, *(() if asked.quick else COMPILED))
    wrong = check_deltas(("cuda", "cpu")) if not asked.only or DELTA.strip() in asked.only else 0
    wrong += check_precisions(executors) if not asked.only or PRECISION.strip() in asked.only else 0
    wrong += check_schedules(executors) if not asked.only or SCHEDULED.strip() in asked.only else 0
    wrong += check_messages() if not asked.only or MESSAGES.strip() in asked.only else 0
    wrong += check_rows() if not asked.only or ROWS.strip() in asked.only else 0
    for name, (method, task) in cases.items():
        if asked.only and name not in asked.only and not (name.startswith(DROPOUT) and "dropout" in asked.only):
            continue
        wanted, _ = final(method, task, "cpu", "one-by-one")
        for executor in executors:
            begin = time.perf_counter()
            try:
                found, reasons = final(method, task, "cuda", executor)
                far = apart(found, wanted)
                well = not reasons and (far < 1e-9 or (name in ROUGH and far < 1))
                result = f"{far:.1e}" + (f" failures: {reasons[0]}" if reasons else "")
            except Exception as error:  # shown in its row, and counted
                well, result = False, f"{type(error).__name__}: {str(error)[:200]}"
            wrong += not well
            print(
                f"{'ok  ' if well else 'BAD '} {name:18} {executor:15} {result} ({time.perf_counter() - begin:.1f} s)",
                flush=True,
            )
    print(f"{wrong} wrong, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    return min(wrong, 1)


if __name__ == "__main__":
    raise SystemExit(main())
