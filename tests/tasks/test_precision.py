"""Precision of training: torch's settings are set and restored, and only the network's own pass is affected."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer import ConfigError, Task
from gossamer.core.random import key
from gossamer.tasks.objective import Objective
from gossamer.tasks.precision import BF16, FLOAT32, TF32, Precision, check_type, on_cpu, products
from helpers.tf32 import settings

B: Any = torch.backends
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def own_settings() -> Iterator[None]:
    """Restore torch's defaults after a test."""
    yield
    B.fp32_precision = B.cudnn.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    B.cudnn.allow_tf32 = True
    B.cuda.matmul.fp32_precision = B.mkldnn.matmul.fp32_precision = "none"


def forbid_in_cudnn() -> None:
    B.cudnn.allow_tf32 = False


def newer(where: Any, value: str) -> Callable[[], None]:
    return lambda: setattr(where, "fp32_precision", value)


USERS: dict[str, Callable[[], None]] = {
    "defaults": lambda: None,
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "older, without cuDNN": forbid_in_cudnn,
    "newer, products": newer(B.cuda.matmul, "tf32"),
    "newer, convolutions": newer(B.cudnn.conv, "ieee"),
    "newer, everywhere": newer(B, "tf32"),
    "newer, on a GPU": newer(B.cudnn, "tf32"),
}
"""What users may have set before a run."""


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("precision", [FLOAT32, TF32, BF16])
def test_settings_are_set_and_restored(user: str, precision: str, own_settings: None) -> None:
    USERS[user]()
    before, other = settings(), FLOAT32 if precision == TF32 else TF32
    with products(precision, GPU):
        inside = settings()
        assert [(inside[name] == TF32) for name in ("matmul", "conv", "rnn")] == [precision == TF32] * 3
        assert "contradiction" not in inside.values()  # the compiler reads both interfaces
        with products(other, GPU):
            assert settings()["conv"] != inside["conv"]
        assert settings() == inside
    assert settings() == before
    B.fp32_precision = "ieee"  # what a user sets later has the same effect as without the run
    after = settings()
    USERS[user]()
    B.fp32_precision = "ieee"
    assert settings() == after


def test_settings_are_restored_after_an_error(own_settings: None) -> None:
    before = settings()
    with pytest.raises(KeyError), products(TF32, GPU):
        raise KeyError
    assert settings() == before


def test_a_cpu_has_no_settings() -> None:
    before = settings()
    with products(FLOAT32, CPU):
        assert settings() == before


def test_what_a_device_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="precision=tf32 needs a GPU: use device=cuda or precision=bf16"):
        Precision(TF32, CPU)
    with pytest.raises(ConfigError, match="unknown precision 'float16'"):
        Precision("float16", CPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert Precision(FLOAT32, GPU).name == FLOAT32
    for name in (TF32, BF16):
        with pytest.raises(ConfigError, match=f"precision={name} needs a GPU of compute capability 8.0"):
            Precision(name, GPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert Precision(TF32, GPU).name == TF32


def test_a_run_in_tf32_can_be_inspected_on_a_cpu() -> None:
    assert [Precision(on_cpu(name), CPU).name for name in (FLOAT32, TF32, BF16)] == [FLOAT32, FLOAT32, BF16]


def test_a_model_of_float64_has_the_default_alone() -> None:
    check_type(FLOAT32, torch.float64)
    with pytest.raises(ConfigError, match=r"precision=bf16 needs a model of float32, and this one has torch.float64"):
        check_type(BF16, torch.float64)


SEEN: list[dict[str, Any]] = []


class Watched(nn.Module):
    """Notes in ``SEEN`` the types that its layers have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        normed = self.norm(hidden)
        mean = self.norm.running_mean
        assert mean is not None
        tensors = {"weights": self.first.weight, "hidden": hidden, "normed": normed, "mean": mean}
        SEEN.append({"training": self.training, **{name: tensor.dtype for name, tensor in tensors.items()}})
        return self.last(normed.relu())


def watched(precision: str) -> tuple[Objective, list[torch.dtype]]:
    """An objective, and the types of outputs that its loss has seen."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 4, generator=draw), torch.arange(24) % 2
    outputs: list[torch.dtype] = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        outputs.append(output.dtype)
        return nn.functional.cross_entropy(output, target)

    return Objective(Task.of(Watched, (x, y), (x, y), clients=2, loss=loss), "cpu", key(0), precision), outputs


@pytest.mark.parametrize("training", [True, False])
def test_only_the_networks_pass_is_in_bfloat16(training: bool) -> None:
    objective, outputs = watched(BF16)
    params, (x, y) = {**objective.initial(), **objective.local()}, objective.samples.read(torch.arange(8))
    loss, grads, buffers = objective.gradient(params, x, y, training=training)
    assert SEEN[-1] == {
        "training": training,
        "weights": torch.float32,
        "hidden": torch.bfloat16,
        "normed": torch.float32,
        "mean": torch.float32,
    }
    assert outputs[-1] == loss.dtype == torch.float32
    assert {tensor.dtype for tensor in (*grads.values(), buffers["norm.running_mean"])} == {torch.float32}
    plain, _ = watched(FLOAT32)
    exact, wanted, _ = plain.gradient(params, x, y, training=training)
    assert 0 < abs(float(loss - exact)) < 0.01
    one, other = (torch.cat([grad.flatten() for grad in each.values()]) for each in (grads, wanted))
    assert float((one - other).norm()) < 0.02 * float(other.norm())


def test_evaluation_is_in_float32() -> None:
    found = []
    for precision in (BF16, FLOAT32):
        objective, outputs = watched(precision)
        params, (x, y) = {**objective.initial(), **objective.local()}, objective.samples.read(slice(None))
        found.append(objective.evaluate(params, x, y).loss)
        assert SEEN[-1]["hidden"] == outputs[-1] == torch.float32
    assert found[0] == found[1]


def test_a_network_that_lacks_bfloat16_is_named_with_the_precision() -> None:
    class Narrow(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(len(x), 2).index_add(0, torch.arange(len(x)), super().forward(x))

    x, y = torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)
    objective = Objective(Task.of(lambda: Narrow(2, 2), (x, y), (x, y), clients=2), "cpu", key(0), BF16)
    with pytest.raises(ConfigError, match="with precision bf16: "):
        objective.check(objective.initial())
