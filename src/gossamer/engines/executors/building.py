"""Compile recorded steps with inductor, torch's compiler, and load them.

A child process compiles, and ends: the compiler takes seconds to import and 300 MB, which this process never holds. Its
result is a shared library (AOTInductor), which another child tries. Loading one takes milliseconds, and a call has no
Python in it.
"""

import hashlib
import os
import platform
import shutil
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gossamer
from gossamer.core.errors import ConfigError
from gossamer.core.processes import die_with_parent
from gossamer.engines.executors.kept import SIDECAR, KeptPrograms
from gossamer.engines.executors.recording import Recording

Graph = Callable[[list[Tensor]], Sequence[Tensor]]
"""A compiled graph: map its inputs to its outputs; it may update inputs in place."""

OPTIONS: dict[str, Any] = {
    "aot_inductor.compile_wrapper_opt_level": "O0",  # it only calls kernels: 5 s of the compiler instead of 9
    "aot_inductor.precompile_headers": False,  # for one program they cost more than they save
    "compile_threads": 1,
    "cpp.threads": 1,  # each core runs a program of its own
    "layout_optimization": False,  # channels-last convolutions gain less than norms and pooling lose
    "cpp.vec_isa_ok": True,  # else three test programs are compiled first
}
PROBED: dict[str, Any] = {"cpp.vec_isa_ok": None}
"""The option with which the compiler compiles these test programs."""
USUAL: dict[str, Any] = {"cpp.cxx": (None, "g++")}
"""The system's C++ compiler in place of the variable CXX. A compiler that links a copy of the C++ library of its own
makes programs that end the process when they are loaded: torch has loaded another copy."""


def key(recording: Recording) -> str:
    """Return a digest of everything that a compiled program depends on."""
    return hashlib.sha256("\n".join((*_surroundings(), recording.describe())).encode()).hexdigest()


def _surroundings() -> list[str]:
    """Return versions, settings and hardware."""
    git = getattr(torch.version, "git_version", "")
    found = [gossamer.__version__, torch.__version__, str(git), torch.get_float32_matmul_precision(), repr(OPTIONS)]
    found.append(str(torch.are_deterministic_algorithms_enabled()))
    return [*found, platform.machine(), torch.backends.cpu.get_cpu_capability(), *_processor()]


def _processor() -> list[str]:
    """Return the model and the instructions of the processor: programs are compiled for exactly this one."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    wanted = ("model name", "cpu family", "model\t", "stepping", "flags", "Features")
    return [next((line for line in lines if line.startswith(name)), "") for name in wanted]


def compile_graph(recording: Recording, programs: KeptPrograms) -> Graph:
    """Return the compiled graph of a recording, from the kept programs if it is there."""
    return programs.obtain(key(recording), lambda room: _build_library(recording, room), _load_library)


def _load_library(path: Path) -> Graph:
    """Load a shared library, without importing the compiler."""
    run: Graph = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1).run
    return run


def _build_library(recording: Recording, room: Path) -> Path:
    """Compile in a child process, try the shared library in another one, and return its path.

    A program that cannot be loaded or run ends the child, and not the run. It is then compiled again: by the system's
    compiler, which finds out what the processor can run.
    """
    library, report = room / "library.so", room / "problem"
    for options in (OPTIONS, OPTIONS | PROBED | USUAL):
        problem = _in_child(lambda: _compile_library(recording, room, options), report)  # noqa: B023 - called at once
        if problem:
            break
        problem = _in_child(lambda: _try_library(recording, library), report)
        if not problem:
            return library
    raise ConfigError(f"the step cannot be compiled, use another executor: {problem}")


def _try_library(recording: Recording, library: Path) -> None:
    """Run a shared library once, on copies of the recorded tensors."""
    _load_library(library)([example.clone() for example in recording.examples])


def _compile_library(recording: Recording, room: Path, wanted: Mapping[str, Any]) -> None:
    warnings.simplefilter("ignore")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(room)
    import torch._inductor
    from torch._inductor.exc import CppCompileError

    known = set(torch._inductor.list_options())
    options = {name: value for name, value in wanted.items() if name in known}
    graph, examples = recording.graph, tuple(recording.examples)
    with torch.no_grad():
        try:
            made = torch._inductor.aot_compile(graph, examples, options=options)
        except CppCompileError:  # an old compiler, which does not know the processor: find out what it knows
            made = torch._inductor.aot_compile(graph, examples, options=options | PROBED)
    shutil.move(str(made), room / "library.so")
    if (calls := Path(str(made)).with_suffix(SIDECAR)).exists():  # operations that the library calls by name
        shutil.move(calls, room / f"library{SIDECAR}")


def _in_child(work: Callable[[], None], report: Path) -> str:
    """Run some work in a forked process, and return why it failed; empty if it did not."""
    report.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads; the child uses none
        child = os.fork()
    if not child:
        try:
            die_with_parent()
            _silence()
            work()
        except BaseException as error:
            report.write_text(" ".join(f"{type(error).__name__}: {error}".splitlines()[:2]))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if report.exists():
        return report.read_text()
    if os.WIFSIGNALED(status):
        return f"its process was ended by {signal.Signals(os.WTERMSIG(status)).name}: too little memory, or a fault"
    return ""


def _silence() -> None:
    """Drop what the compiler says; its errors are reported."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
