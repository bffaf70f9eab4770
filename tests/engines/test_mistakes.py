"""What people type by mistake, and the line that they see: before anything is trained."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gossamer
from gossamer import Task, compose, fedavg, ifca, simulate
from gossamer.core.errors import ConfigError
from gossamer.core.random import key
from gossamer.engines.options import Options
from gossamer.engines.run import FederatedRun
from gossamer.parts.channels import Lossy
from gossamer.parts.codecs import Eden, Feedback, TopK
from gossamer.parts.servers import Median
from gossamer.parts.solvers import SGD
from gossamer.parts.solvers.schedules import Cosine
from gossamer.parts.views import Full
from gossamer.tasks.data.datasets import load
from gossamer.tasks.data.partitioners import Dirichlet

X, Y = torch.zeros(40, 3), torch.arange(40) % 4
ARRAYS: Any = (X, Y)


class Net(nn.Linear):
    """A network that needs an argument."""

    def __init__(self, outputs: int) -> None:
        super().__init__(3, outputs)


def task(model: Any = lambda: nn.Linear(3, 4), **given: Any) -> Task:
    return Task.of(model, ARRAYS, ARRAYS, **{"clients": 4, **given})


TASK = task()


def run(method: Any = None, task: Any = TASK, **options: Any) -> Callable[[], Any]:
    return lambda: simulate(fedavg() if method is None else method, task, **{"rounds": 1, **options})


TABLE: list[tuple[str, Callable[[], Any], str]] = [
    ("simulate(fedavg, ...)", run(fedavg), "method must be a gossamer Method, got the function fedavg: write fedavg()"),
    (
        'simulate("fedavg", ...)',
        run("fedavg"),
        "method must be a gossamer Method, got the text 'fedavg': write fedavg()",
    ),
    (
        "a DataLoader as a method",
        run(DataLoader(TensorDataset(X, Y))),
        "method must be a gossamer Method, got a DataLoader: write a recipe, such as fedavg(), or "
        "compose(view, solver, codec, server)",
    ),
    (
        "an exchange as a method",
        run(fedavg().training),
        "method must be a gossamer Method, got a Exchange: write compose(view, solver, codec, server)",
    ),
    (
        "simulate(task, method)",
        run(TASK, fedavg()),
        "method and task are swapped: the method comes first, as in simulate(fedavg(), task)",
    ),
    (
        'simulate(fedavg(), "digits")',
        run(task="digits"),
        "task must be a gossamer Task, got the text 'digits': write Task.named('digits')",
    ),
    (
        "arrays as a task",
        run(task=ARRAYS),
        "task must be a gossamer Task, got a tuple: write Task.of(model, train, test)",
    ),
    ("a function as a task", run(task=task), "task must be a gossamer Task, got the function task: write task()"),
    ("round=3", run(round=3), "unknown option 'round': did you mean rounds? known: "),
    ("outt=", run(outt="x"), "unknown option 'outt': did you mean out? known: "),
    (
        "simulate(..., lr=0.1)",
        run(lr=0.1),
        "lr is not an option of the run: give it to the method, such as fedavg(lr=...)",
    ),
    (
        "simulate(..., clients=3)",
        run(clients=3),
        "clients is not an option of the run: give it to the task, such as Task.of(..., clients=...)",
    ),
    (
        "simulate(..., codec=Eden())",
        run(codec=Eden()),
        "codec is not an option of the run: give it to the method: fedavg().with_parts(codec=...)",
    ),
    ('rounds="3"', run(rounds="3"), "rounds must be a whole number, got '3': write rounds=3"),
    ("rounds=3.0", run(rounds=3.0), "rounds must be a whole number, got 3.0: write rounds=3"),
    ("per_round=0.5", run(per_round=0.5), "per_round must be a whole number or none, got 0.5"),
    ("per_round=-1", run(per_round=-1), "per_round must be at least 1, got -1"),
    ("seed=-1", run(seed=-1), "seed must not be negative, got -1"),
    ("seed=1.5", run(seed=1.5), "seed must be a whole number, got 1.5"),
    ("seed=True", run(seed=True), "seed must be a whole number, got True"),
    ("device='gpu'", run(device="gpu"), "unknown device 'gpu': did you mean cuda? known: cpu, cuda"),
    (
        "device='cuda:1'",
        run(device="cuda:1"),
        "device cuda:1: a run uses the first visible GPU: set CUDA_VISIBLE_DEVICES=1, use cuda",
    ),
    ("channel=Lossy", run(channel=Lossy), "channel must be a Channel, got the class Lossy: write Lossy()"),
    ('channel="lossy:0.1"', run(channel="lossy:0.1"), "channel must be a Channel, got 'lossy:0.1'"),
    ("attack=3", run(attack=3), "attack must be an Attack or none, got 3"),
    (
        "server=Median()",
        lambda: fedavg().with_parts(server=Median()),
        "server must be a gossamer Server, got Median: write Robust(Median(...), method.server)",
    ),
    ('fedavg(lr="0.1")', lambda: fedavg(lr="0.1"), "SGD.lr must be a number, got '0.1': write lr=0.1"),  # type: ignore[arg-type]
    (
        "fedavg(learning_rate=0.1)",
        lambda: fedavg(learning_rate=0.1),  # type: ignore[call-arg]
        "fedavg has no parameter 'learning_rate': it takes lr, epochs, steps, batch, weights, server_lr",
    ),
    ('SGD(epochs="5")', lambda: SGD(epochs="5"), "SGD.epochs must be a whole number, got '5': write epochs=5"),  # type: ignore[arg-type]
    ("SGD(batch=16.0)", lambda: SGD(batch=16.0), "SGD.batch must be a whole number or none, got 16.0: write batch=16"),  # type: ignore[arg-type]
    ("SGD(momentun=0.9)", lambda: SGD(momentun=0.9), "SGD has no field 'momentun': did you mean momentum?"),  # type: ignore[call-arg]
    (
        "SGD(schedule=Cosine)",
        lambda: SGD(schedule=Cosine),  # type: ignore[arg-type]
        "SGD.schedule must be a LRSchedule, got the class Cosine: write Cosine()",
    ),
    ('TopK("0.03")', lambda: TopK("0.03"), "TopK.share must be a number, got '0.03': write share=0.03"),  # type: ignore[arg-type]
    ("Feedback(TopK)", lambda: Feedback(TopK), "Feedback.codec must be a Codec, got the class TopK: write TopK()"),  # type: ignore[arg-type]
    ('Dirichlet("0.3")', lambda: Dirichlet("0.3"), "Dirichlet.alpha must be a number, got '0.3': write alpha=0.3"),  # type: ignore[arg-type]
    ("codec=Eden", lambda: fedavg().with_parts(codec=Eden), "codec: Eden is a class: write Eden()"),
    (
        'codec="eden"',
        lambda: fedavg().with_parts(codec="eden"),
        "codec must be a gossamer Codec, got str 'eden': write the part itself, such as Eden()",
    ),
    ("compose(Full, SGD())", lambda: compose(Full, SGD()), "view: Full is a class: write Full()"),  # type: ignore[arg-type]
    ("tune=SGD", lambda: fedavg().with_parts(tune=SGD), "tune: SGD is a class: write SGD()"),
    ("clients=2.0", lambda: task(clients=2.0), "clients must be a whole number, got 2.0: write clients=2"),
    ("clients=-3", lambda: task(clients=-3), "clients must be at least 1, got -3"),
    (
        'Task.named(..., clients="5")',
        lambda: Task.named("digits", clients="5"),  # type: ignore[arg-type]
        "clients must be a whole number, got '5': write clients=5",
    ),
    ("Task.of(seed=0.5)", lambda: task(seed=0.5), "seed must be a whole number, got 0.5"),
    (
        "the split natural without owners",
        lambda: task(split="natural"),
        "split natural: this data has no natural owners: write Task.of(..., groups=owners), with one number or name "
        "per sample, or give a list or mapping of one data set per client; or use another split, such as dirichlet:0.3",
    ),
    (
        'model="mlp"',
        lambda: task("mlp"),
        "model must be an nn.Module or a function that builds one, such as its class, got 'mlp'; Task.named takes "
        "networks by name",
    ),
    (
        "a configuration as a model",
        lambda: task(SimpleNamespace(model_type="bert")),
        "model must be an nn.Module or a function that builds one, such as its class, got a SimpleNamespace: write "
        "lambda: AutoModelForSequenceClassification.from_config(config), or another AutoModel",
    ),
    (
        "a class that needs arguments",
        run(task=task(Net)),
        "the model is built without arguments, but Net.__init__() missing 1 required positional argument: 'outputs': "
        "write lambda: Net(...)",
    ),
    ("a model that is none", run(task=task(lambda: 3)), "Task.model must build an nn.Module, got a int"),
    (
        "labels from 1",
        run(task=Task.of(lambda: nn.Linear(3, 4), (X, Y + 1), (X, Y + 1), clients=4)),
        "the largest label is 4, but the model has 4 outputs, for the labels 0 to 3: number the labels from 0, or give "
        "the model 5 outputs",
    ),
    (
        "a model in half precision",
        run(task=task(nn.Linear(3, 4).half())),
        "the model's tensor weight has type torch.float16: models are trained in float32 or float64; build the network "
        "in one of these, with model.float() (for half-precision messages use Dense('float16'))",
    ),
    (
        "a list of samples",
        lambda: Task.of(lambda: nn.Linear(3, 4), list(zip(X, Y, strict=True)), ARRAYS),
        "train is a list of samples: give (x, y) arrays or a Dataset; a list means one data set per client",
    ),
    (
        "a list of dicts",
        lambda: Task.of(lambda: nn.Linear(3, 4), [{"x": X[0], "labels": 1}], ARRAYS),
        "train is a list of samples: give (x, y) arrays or a Dataset; a list means one data set per client",
    ),
    (
        "no test data",
        lambda: Task.of(lambda: nn.Linear(3, 4), ARRAYS, clients=3),
        "Task.of needs test data: hold out some samples, such as the last fifth",
    ),
    ("Task.of(client=3)", lambda: task(client=3), "Task.of has no argument 'client': did you mean clients?"),
    ("Task.of(metric=f)", lambda: task(metric="mae"), "Task.of has no argument 'metric': did you mean metrics?"),
    (
        "Task.named(alpha=0.3)",
        lambda: Task.named("digits", alpha=0.3),  # type: ignore[call-arg]
        "Task.named has no argument 'alpha': it takes data, data_dir, model, split, clients, seed, statistics",
    ),
    (
        "resume(round=5)",
        lambda: gossamer.resume("run", round=5),  # type: ignore[call-arg]
        "resume has no argument 'round': did you mean rounds?",
    ),
    (
        "a loss that is not reduced",
        run(task=task(loss=nn.CrossEntropyLoss(reduction="none"))),
        "the loss must return one number for a batch, a tensor of shape [], got [2]",
    ),
    (
        "a loss that is no tensor",
        run(task=task(loss=lambda output, y: float(output.sum()))),
        "the loss must return one number for a batch, a tensor of shape [], got a float",
    ),
    (
        "a loss without a gradient",
        run(task=task(loss=lambda output, y: output.detach().sum())),
        "the loss has no gradient: compute it from the outputs by operations of torch",
    ),
    (
        "four outputs for one number",
        run(task=task(loss="mse")),
        "the loss fails on outputs [2, 4] and targets [2]: mse needs outputs and targets of one shape, got [2, 4] and "
        "[2]",
    ),
    (
        "inputs of float64",
        run(task=Task.of(lambda: nn.Linear(3, 4), (X.double(), Y), (X.double(), Y), clients=4)),
        "the model fails on a batch of samples of shape 3: mat1 and mat2 must have the same dtype, but got "
        "Double and Float: x is float64 and the network float32: write x.float()",
    ),
    (
        "images of bytes",
        run(task=Task.of(lambda: nn.Linear(3, 4), (X.byte(), Y), (X.byte(), Y), clients=4)),
        "the model fails on a batch of samples of shape 3: mat1 and mat2 must have the same dtype, but got "
        "Byte and Float: x is uint8 and the network float32: write x.float() / 255",
    ),
    (
        "one network for several models",
        run(ifca(), task(nn.Linear(3, 4))),
        "Clusters needs different initial models, but the task always builds the same weights: build a new module with "
        "random weights in Task.model",
    ),
]


@pytest.mark.parametrize(("call", "line"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_mistake_is_one_line_and_nothing_is_trained(
    call: Callable[[], Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*args: Any) -> None:
        raise AssertionError("a client was trained")

    monkeypatch.setattr("gossamer.engines.run.FederatedRun.rounds", train)
    with pytest.raises(ConfigError) as found:
        call()
    assert str(found.value).startswith(line) if line.endswith("known: ") else str(found.value) == line
    assert "\n" not in str(found.value)


# What is accepted.


def test_a_network_is_copied_and_every_run_starts_from_its_weights() -> None:
    module = nn.Linear(3, 4).eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    given = task(module)
    results = [simulate(fedavg(steps=1), given, rounds=1, seed=seed) for seed in (0, 1)]
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in before.items())
    assert not module.training
    for result in results:
        assert isinstance(result.run, FederatedRun)
        assert all(torch.equal(result.run.like[name], tensor) for name, tensor in before.items())
    with torch.no_grad():
        module.weight.add_(1)  # after the task was made: it keeps its own copy
    assert torch.equal(given.model().weight, before["weight"])  # type: ignore[arg-type]


def test_a_network_instance_trains_as_its_factory_does() -> None:
    module = nn.Linear(3, 4)

    def build() -> nn.Module:
        made = nn.Linear(3, 4)
        made.load_state_dict(module.state_dict())
        return made

    one, other = (simulate(fedavg(steps=2), task(model), rounds=2).model.state_dict() for model in (module, build))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_task_is_shown_in_one_line() -> None:
    assert repr(task()) == "<Task: custom, 4 clients, iid, 40 + 40 samples, cross_entropy, accuracy>"
    assert repr(TASK.data) == "<Data: custom, 40 + 40 samples, 4 classes>"
    assert repr(TASK.data.train) == "<Samples: 40, inputs 3, targets []>"


def test_devices_and_numbers_of_numpy_and_torch_are_accepted() -> None:
    options = Options(rounds=np.int64(3), seed=np.int32(2), failure_rate=np.float64(0.5), device=torch.device("cpu"))  # type: ignore[arg-type]
    assert options == Options(rounds=3, seed=2, failure_rate=0.5)
    assert [type(value) for value in (options.rounds, options.seed, options.failure_rate)] == [int, int, float]
    assert options.device == "cpu"
    assert task(clients=np.int64(3)).clients == 3
    assert SGD(lr=np.float64(0.1)).lr == SGD(lr=0.1).lr


def test_a_folder_of_data_may_be_a_text(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="mnist") as found:
        load("mnist", data_dir=str(tmp_path), key=key(0))
    assert str(tmp_path) in str(found.value)
