"""Names of tensors that contain a slash: they train, are resumed, exported and compiled as any others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer import Task, simulate
from gossamer.engines.export import export
from gossamer.methods import METHODS

X, Y = torch.randn(60, 6, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3


class Slashed(nn.Module):
    """A network whose names would clash if slashes were not escaped."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a/b": nn.Linear(6, 4), "a": nn.ModuleDict({"b": nn.Linear(4, 4)})})
        self.register_parameter("w/~1x", nn.Parameter(torch.ones(4)))
        self.register_buffer("mean/x", torch.zeros(4))
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores."""
        wide: Any = self.parts["a"]
        inside = torch.relu(wide["b"](self.parts["a/b"](x)))
        scores: Tensor = self.out(inside * getattr(self, "w/~1x") + getattr(self, "mean/x"))
        return scores


def task() -> Task:
    return Task.of(Slashed, (X, Y), (X[:12], Y[:12]), clients=3)


def interrupt(record: dict[str, Any], run: Any) -> None:
    if record["round"] == 1:
        raise KeyboardInterrupt


@pytest.mark.parametrize(("name", "given"), [("fedavg", {}), ("ditto", {}), ("fedspa", {"batch": 8}), ("scaffold", {})])
def test_a_run_is_resumed_exactly(name: str, given: dict[str, Any], tmp_path: Path) -> None:
    method = METHODS[name](**given)
    whole = simulate(method, task(), rounds=2)
    with pytest.raises(KeyboardInterrupt):
        simulate(method, task(), rounds=2, out=tmp_path / "run", callbacks=[interrupt])
    again = simulate(method, task(), rounds=2, out=tmp_path / "run", resume=True)
    for client in range(3):
        one, other = whole.client_model(client).state_dict(), again.client_model(client).state_dict()
        assert all(torch.equal(tensor, other[key]) for key, tensor in one.items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's compiler uses what torch deprecates
def test_the_compiled_executor_finds_the_tensors() -> None:
    method = METHODS["fedavg"](steps=3)
    plain, compiled = (simulate(method, task(), rounds=2, executor=name).model for name in ("one-by-one", "compiled"))
    for key, tensor in plain.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[key], tensor)


def test_the_model_is_exported(tmp_path: Path) -> None:
    result = simulate(METHODS["fedavg"](steps=1), task(), rounds=1)
    made = export(result.run, tmp_path / "model")  # type: ignore[arg-type]
    assert made.problem is None
    assert made.score == pytest.approx(result.accuracy)
