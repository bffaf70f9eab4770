"""Recorded steps, and compiled programs that are kept on disk."""

import importlib
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer import ConfigError
from gossamer.core.solver import descended
from gossamer.core.types import State
from gossamer.engines.executors.building import compile_graph, key
from gossamer.engines.executors.kept import VARIABLE, KeptPrograms, KeptProgramWarning
from gossamer.engines.executors.pieces import take_apart
from gossamer.engines.executors.products import add_products, separate
from gossamer.engines.executors.program import _picked
from gossamer.engines.executors.recording import Drawn, Piece, Recording, record

WEIGHT = torch.arange(12.0).view(3, 4) - 5


def descend(nest: State) -> Tensor:
    """One step of gradient descent on a small network; the parameters are updated in place."""
    weight = nest["params"]["w"].detach().requires_grad_()
    with torch.enable_grad():
        loss = (torch.relu(nest["x"] @ weight.T) * WEIGHT[:, 0]).square().mean()
        (grad,) = torch.autograd.grad(loss, weight)
    nest["params"]["w"].sub_(0.1 * grad)
    return loss.detach()


def nest(rows: int = 5, dtype: torch.dtype = torch.float32) -> State:
    generator = torch.Generator().manual_seed(1)
    x, w = (torch.randn(n, 4, generator=generator).to(dtype) for n in (rows, 3))
    return {"params": {"w": w}, "x": x, "unused": {}}


# Recordings.


def test_a_recording_repeats_the_function_and_leaves_its_argument_unchanged() -> None:
    given, before, wanted = nest(), nest(), nest()
    recording = record(descend, given)
    assert torch.equal(given["params"]["w"], before["params"]["w"])
    loss = descend(wanted)
    other = nest()
    found = recording.graph(other["params"]["w"], other["x"], WEIGHT)[0]
    assert recording.inputs[:2] == [("params", "w"), ("x",)]
    assert recording.inputs[2] is WEIGHT
    assert torch.equal(found, loss)
    assert torch.equal(other["params"]["w"], wanted["params"]["w"])


def test_random_numbers_are_drawn_before_the_program() -> None:
    from gossamer.core.random import Key, draw_bits, draws, tensor

    given = {"key": tensor(Key(3, 4)), "step": torch.tensor(2)}
    recording = record(lambda nest: draws(nest["key"], nest["step"], 5, 1) * 2, given)
    assert recording.inputs == [Drawn(("key",), ("step",), (5, 1, 0))]
    assert torch.equal(recording.examples[0], draw_bits(given["key"], given["step"], 5, 1))


READS: dict[str, Callable[[State], Tensor]] = {
    "a number": lambda nest: nest["x"] * nest["x"].sum().item(),
    "a branch": lambda nest: nest["x"] if nest["x"].sum() > 0 else -nest["x"],
    "NumPy": lambda nest: nest["x"] * torch.from_numpy(nest["x"].numpy() + 1),
    "a list": lambda nest: nest["x"] * torch.tensor(nest["x"].tolist()),
    "a list in a number": lambda nest: nest["x"] * nest["x"].tolist()[0],
    "a mask": lambda nest: nest["x"][nest["x"] > 0],
    "torch's generator": lambda nest: nest["x"] * torch.rand(4),
}


@pytest.mark.parametrize("name", READS)
def test_a_step_that_depends_on_values_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be compiled or captured"):
        record(READS[name], {"x": torch.tensor([1.0, -2.0, 3.0, 4.0])})


def test_the_key_covers_operations_shapes_types_and_strides_but_not_values() -> None:
    plain = key(record(descend, nest()))
    assert plain == key(record(descend, {**nest(), "x": torch.ones(5, 4)}))
    turned = {**nest(), "x": torch.ones(4, 5).T}
    others: list[tuple[Any, State]] = [
        (descend, nest(rows=6)),
        (descend, turned),
        (lambda given: descend(given) * 2, nest()),
        (lambda given: descend(given) * 3, nest()),
    ]
    keys = {key(record(function, given)) for function, given in others}
    assert len(keys) == 4
    assert plain not in keys


def test_the_key_covers_versions_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = record(descend, nest())
    found = {key(recording)}
    monkeypatch.setattr(torch, "__version__", "99.0")
    found.add(key(recording))
    monkeypatch.setattr("gossamer.__version__", "99.0")
    found.add(key(recording))
    monkeypatch.setattr("gossamer.engines.executors.building._processor", lambda: ["another one"])
    found.add(key(recording))
    assert len(found) == 4


@pytest.mark.slow
def test_a_compiler_that_links_its_own_copy_of_the_library_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a program cannot be loaded beside torch; the system's compiler makes another one."""
    calls, wrapper = tmp_path / "calls", tmp_path / "g++"
    wrapper.write_text(f'#!/bin/sh\necho >> {calls}\nexec {shutil.which("g++")} -static-libstdc++ "$@"\n')
    wrapper.chmod(0o755)
    config = importlib.import_module("torch._inductor.config")
    monkeypatch.setattr(config.cpp, "cxx", (None, str(wrapper)))
    given, wanted = nest(), nest()
    graph = compile_graph(record(descend, nest()), KeptPrograms(None))
    assert calls.exists()
    torch.testing.assert_close(graph([given["params"]["w"], given["x"], WEIGHT])[0], descend(wanted))
    torch.testing.assert_close(given["params"]["w"], wanted["params"]["w"])


# Vectors that are taken apart, and products that are added in place.


def linear(nest: State, momentum: float = 0.0, clip: float | None = None) -> Tensor:
    """One step of gradient descent on a linear layer with a bias, whose entries are a vector."""
    outputs = nest["target"].shape[1]
    leaf = nest["params"].split([outputs, nest["params"].numel() - outputs])
    bias, weight = leaf[0].detach().requires_grad_(), leaf[1].view(outputs, -1).detach().requires_grad_()
    with torch.enable_grad():
        loss = (torch.addmm(bias, nest["x"], weight.T) - nest["target"]).square().mean()
        grads = torch.cat([grad.reshape(-1) for grad in torch.autograd.grad(loss, (bias, weight))])
    if clip is not None:
        grads = grads * torch.clamp(clip / grads.norm(dim=-1, keepdim=True), max=1.0)
    if momentum:
        grads = torch.add(grads, nest["velocity"], alpha=momentum)
        nest["velocity"].copy_(grads)
    nest["params"].copy_(descended(nest["params"], grads, nest["rate"]))
    return loss.detach()


def layer(outputs: int, inputs: int) -> State:
    generator = torch.Generator().manual_seed(2)
    n = outputs * (inputs + 1)
    shapes = {"params": (n,), "velocity": (n,), "x": (6, inputs), "target": (6, outputs)}
    drawn = {name: torch.randn(*shape, generator=generator).double() for name, shape in shapes.items()}
    return {**drawn, "rate": torch.tensor(0.3).double()}


def run_apart(step: Callable[[State], Tensor], given: State) -> tuple[Recording, list[int], Tensor]:
    """Record a step, take its vectors apart, and run it."""
    recording = take_apart(record(step, given))
    weights = separate(recording)
    inputs = [_picked(given, source) for source in recording.inputs]
    return recording, weights, add_products(inputs, weights, recording.graph(*inputs))


def test_the_gradient_of_a_large_layer_is_added_in_place() -> None:
    given, wanted = layer(128, 300), layer(128, 300)
    recording, weights, found = run_apart(linear, given)
    assert [recording.inputs[number] for number in weights] == [Piece(("params",), 128, 128 * 300)]
    code = recording.graph.code
    assert code.count("copy_.default(") == 1  # of the bias
    assert torch.equal(found, linear(wanted))
    torch.testing.assert_close(given["params"], wanted["params"], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("fields", [{"momentum": 0.9}, {"clip": 1e-3}, {"momentum": 0.5, "clip": 0.1}], ids=str)
def test_operations_by_entry_are_those_of_the_tensors(fields: dict[str, float]) -> None:
    given, wanted = layer(5, 7), layer(5, 7)
    recording, weights, found = run_apart(partial(linear, **fields), given)  # type: ignore[arg-type]
    assert not weights
    assert torch.equal(found, linear(wanted, **fields))
    for name in ("params", "velocity"):
        torch.testing.assert_close(given[name], wanted[name], rtol=1e-12, atol=1e-14)
    whole = [node for node in recording.graph.graph.nodes if node.meta.get("shape") == (40,)]
    assert len(whole) == ("clip" in fields), "only a norm sees all entries"


def clipped(nest: State) -> Tensor:
    """A gradient that is used twice."""
    weight = nest["params"]
    grad = nest["x"].T.mm(nest["x"]).view(-1)
    weight.copy_(descended(weight, grad, nest["rate"]))
    return grad.sum()


def chained(nest: State) -> Tensor:
    """A product with a factor that the step overwrites."""
    first, second = nest["params"], nest["other"]
    new = descended(first, second.mm(first.view(200, 200)).view(-1), nest["rate"])
    second.copy_(second * 2)
    first.copy_(new)
    return first.sum()


@pytest.mark.parametrize("step", [clipped, chained])
def test_gradients_that_are_needed_elsewhere_are_not_separated(step: Callable[[State], Tensor]) -> None:
    square = torch.randn(200, 200, generator=torch.Generator().manual_seed(2))
    given: State = {"params": square.view(-1) / 9, "other": square + 1, "x": square * 2, "rate": torch.tensor(0.3)}
    assert separate(record(step, given)) == []


def test_small_layers_are_updated_by_the_program() -> None:
    assert separate(take_apart(record(linear, layer(10, 20)))) == []


# Kept programs. These build files, not programs.


class Compiler:
    """Counts what it builds; a program is a text."""

    def __init__(self, text: str = "program", size: int = 0) -> None:
        self.built, self.text = 0, text + "." * size

    def build(self, room: Path) -> Path:
        self.built += 1
        (room / "made").write_text(self.text)
        return room / "made"


def load(path: Path) -> str:
    text = path.read_text()
    if "broken" in text:
        raise RuntimeError("not a program\nat all")
    return text


def test_a_program_is_built_once(tmp_path: Path) -> None:
    programs, compiler = KeptPrograms(tmp_path), Compiler()
    assert "k" not in programs
    assert [programs.obtain("k", compiler.build, load) for _ in range(3)] == ["program"] * 3
    assert compiler.built == 1
    assert "k" in programs
    assert len(list(tmp_path.iterdir())) == 1, "nothing else is left in the folder"


def test_a_damaged_program_is_a_miss_with_a_notice(tmp_path: Path) -> None:
    programs, compiler = KeptPrograms(tmp_path), Compiler()
    for damage in (b"", b"progr", b"prOgram", b"program and more"):
        programs.obtain("k", compiler.build, load)
        next(tmp_path.glob("*.program")).write_bytes(damage)
        with pytest.warns(KeptProgramWarning, match="deleted and is compiled again: its content does not fit its name"):
            assert programs.obtain("k", compiler.build, load) == "program"
    assert compiler.built == 5


def test_a_program_is_kept_with_its_sidecar(tmp_path: Path) -> None:
    def build(room: Path) -> Path:
        (room / "made.json").write_text("calls")
        return Compiler().build(room)

    def both(path: Path) -> str:
        return load(path) + path.with_suffix(".json").read_text()

    programs = KeptPrograms(tmp_path)
    assert [programs.obtain("k", build, both) for _ in range(2)] == ["programcalls"] * 2
    next(tmp_path.glob("*.json")).write_text("other calls")
    with pytest.warns(KeptProgramWarning, match="does not fit its name"):
        assert "k" not in programs
    assert not list(tmp_path.iterdir())


def test_a_program_that_cannot_be_loaded_is_a_miss_with_a_notice(tmp_path: Path) -> None:
    programs, accepting = KeptPrograms(tmp_path), Path.read_text
    programs.obtain("k", Compiler("broken").build, accepting)
    with pytest.warns(KeptProgramWarning, match="compiled again: not a program$"):
        assert programs.obtain("k", Compiler().build, load) == "program"


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def build(room: Path) -> Path:
        (room / "part").write_text("half a program")
        raise ConfigError("no compiler")

    with pytest.raises(ConfigError, match="no compiler"):
        KeptPrograms(tmp_path).obtain("k", build, load)
    assert not list(tmp_path.iterdir())


def test_the_oldest_programs_go_if_all_take_too_much(tmp_path: Path) -> None:
    programs = KeptPrograms(tmp_path, limit=250)
    for number, name in enumerate(("a", "b")):
        programs.obtain(name, Compiler(size=90).build, load)
        os.utime(next(tmp_path.glob(f"{name}-*")), (number, number))
    assert programs.obtain("a", Compiler().build, load)  # used again: b is now the oldest
    programs.obtain("c", Compiler(size=90).build, load)
    assert [name in programs for name in "abc"] == [True, False, True]


def test_one_process_builds_and_others_wait(tmp_path: Path) -> None:
    def build(room: Path) -> Path:
        with (tmp_path / "log").open("a") as log:
            log.write("built\n")
        time.sleep(0.3)
        return Compiler().build(room)

    children = []
    for _ in range(3):
        child = os.fork()
        if not child:
            os._exit(0 if KeptPrograms(tmp_path).obtain("k", build, load) == "program" else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "built\n"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_nothing_is_run_from_a_folder_that_others_can_write(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr("gossamer.engines.executors.kept._only_ours", lambda group: False)
    folder = KeptPrograms.of_user().folder
    assert folder == tmp_path / "cache" / "programs"
    folder.chmod(mode)
    with pytest.warns(KeptProgramWarning, match="other users can write to .*programs"):
        assert KeptPrograms.of_user().folder is None
    folder.chmod(0o700)
    folder.parent.chmod(mode)
    if mode & 0o1000:  # as /tmp: others cannot rename what is in it
        assert KeptPrograms.of_user().folder == folder
    else:
        with pytest.warns(KeptProgramWarning, match="other users can write to .*cache"):
            assert KeptPrograms.of_user().folder is None


def test_the_folder_is_the_users_cache_unless_it_is_moved_or_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert KeptPrograms.of_user().folder == tmp_path / "xdg" / "gossamer" / "programs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    assert KeptPrograms.of_user().folder == tmp_path / "home" / ".cache" / "gossamer" / "programs"
    for off in ("off", "0", ""):
        monkeypatch.setenv(VARIABLE, off)
        programs = KeptPrograms.of_user()
        assert programs.folder is None
        assert [programs.obtain("k", Compiler().build, load) for _ in range(2)] == ["program"] * 2


def test_a_folder_that_cannot_be_made_is_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    with pytest.warns(KeptProgramWarning, match="compiled programs are not kept: .*Not a directory"):
        assert KeptPrograms.of_user().folder is None
