"""Run the rows of the study: trials on held-out sequences, and measured runs over seeds. Finished runs are stored."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gossamer import Method, Result, Task, centralised, simulate
from gossamer.core import files
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.engines.warm_start import Init
from gossamer.runs.jobs import Job, Local, spread
from reproduce.common import store
from reproduce.common.cells import seconds
from reproduce.common.store import Facts
from reproduce.finetune.rows import ROWS, Candidate
from reproduce.finetune.settings import (
    EXECUTOR,
    HELD_OUT,
    MODEL,
    PER_ROUND,
    PRETRAINED,
    PRETRAINING,
    PRETRAINING_ROUNDS,
    SEEDS,
    STUDY,
    TRIAL_ROUNDS,
    TRIAL_SEED,
    task,
)

BASE = "base"
"""The name of the entry of the model as it is."""


def device() -> str:
    """Return the device of all runs."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def pretrain(data_dir: Path) -> None:
    """Pretrain the model, unless it is there."""
    if PRETRAINED.exists():
        return
    whole = Task.named("shakespeare-pretrain", data_dir=data_dir, model=MODEL)
    method = centralised().with_parts(solver=PRETRAINING)
    result = simulate(method, whole, rounds=PRETRAINING_ROUNDS, eval_every=PRETRAINING_ROUNDS, device=device())
    PRETRAINED.parent.mkdir(parents=True, exist_ok=True)
    files.write(PRETRAINED, files.to_tensors({n: t.cpu() for n, t in result.model.state_dict().items()}))
    last = result.metrics[-1]
    spent = sum(map(seconds, result.metrics))
    facts = {name: last[name] for name in ("token_accuracy", "perplexity")}
    store.write(STUDY, "pretraining", {**facts, "seconds": round(spent, 1)})


def trial_name(row: str, given: Candidate) -> str:
    """Return the name of the entry of a candidate."""
    return "-".join(["tune", row, *(f"{name}={value:g}" for name, value in given.items())])


def run_name(row: str, seed: int) -> str:
    """Return the name of the entry of a measured run."""
    return f"{row}-{seed}"


def chosen(row: str) -> Candidate:
    """Return the candidate with the smallest perplexity on held-out sequences, or the first one without trials."""
    stored = store.read(STUDY)

    def perplexity(given: Candidate) -> float:
        return float(stored.get(trial_name(row, given), {}).get("validation_perplexity", "inf"))

    return min(ROWS[row].candidates, key=perplexity)


def trial(row: str, given: Candidate, data_dir: Path) -> str:
    """Run and store a candidate on held-out sequences."""
    rounds = min(ROWS[row].rounds, TRIAL_ROUNDS)
    result, _ = ran(row, given, TRIAL_SEED, data_dir, rounds, validate=HELD_OUT)
    last = result.metrics[-1]
    held = {name: last[f"personal_{name}"] for name in ("validation_perplexity", "validation_token_accuracy")}
    store.write(STUDY, trial_name(row, given), {"row": row, "given": dict(given), "rounds": rounds, **held})
    return f"{trial_name(row, given)}: perplexity {held['validation_perplexity']:.3f}"


def measured(row: str, seed: int, data_dir: Path) -> str:
    """Run and store a row with the chosen hyper-parameters."""
    given = chosen(row)
    result, spent = ran(row, given, seed, data_dir, ROWS[row].rounds)
    facts = {"row": row, "seed": seed, "given": dict(given), "seconds": round(spent, 1), **figures(result)}
    store.write(STUDY, run_name(row, seed), facts)
    return f"{run_name(row, seed)}: perplexity {facts['perplexity']:.3f}, {facts['up'] + facts['down']:,.0f} bytes"


def ran(row: str, given: Candidate, seed: int, data_dir: Path, rounds: int, **options: Any) -> tuple[Result, float]:
    """Run a row from the pretrained model. Return the result, and the seconds of all rounds without evaluations."""
    here = device()
    asked = {"rounds": rounds, "per_round": PER_ROUND, "seed": seed, "eval_every": rounds, "device": here, **options}
    asked |= {"executor": EXECUTOR if here == "cuda" else "auto", "init": PRETRAINED}
    result = simulate(ROWS[row].make(**given), task(data_dir), **asked)
    return result, sum(map(seconds, result.metrics))


def figures(result: Result) -> Facts:
    """Return the metrics of the last round, and what a client has spent on average over all rounds."""
    last, clients = result.metrics[-1], result.about["task"]["clients"]
    spent = {
        "up": sum(sum(record["bytes_up"].values()) for record in result.metrics) / clients,
        "down": sum(sum(record["bytes_down"].values()) for record in result.metrics) / clients,
        "flops": sum(record["flops"] for record in result.metrics) / clients,
    }
    scores = {name: last[f"personal_{name}"] for name in ("perplexity", "token_accuracy")}
    failed = sum(len(record["failures"]) for record in result.metrics)
    where = {"executor": result.about["executor"], "device": result.about["machine"]["device"]}
    return {**scores, **spent, **where, "parameters": result.about["parameters"], "failures": failed}


def memory(method: Method, data_dir: Path) -> int:
    """Return the bytes that the largest client needs for training."""
    run = Simulation(method, task(data_dir), Options(), init=Init.of(PRETRAINED))
    return run.objective.memory(run.objective.initial(), run.method.training.solver)


def base(data_dir: Path) -> None:
    """Store the metrics of the model as it is, and the memory of every row."""
    run = Simulation(ROWS["full"].make(lr=1e-3), task(data_dir), Options(device=device()), init=Init.of(PRETRAINED))
    found = run.evaluated(run.evaluate, 0)
    store.write(STUDY, BASE, {name: found[f"personal_{name}"] for name in ("perplexity", "token_accuracy")})
    needs = {row: memory(ROWS[row].make(**chosen(row)), data_dir) for row in ROWS}
    store.write(STUDY, "memory", needs)


def jobs(kind: str, rows: Sequence[str], data_dir: Path) -> Iterator[Job]:
    """Yield the missing runs of some rows. A run with other hyper-parameters than the chosen ones is missing too."""
    stored = store.read(STUDY)
    if kind == "tune":
        tried = [(row, given) for row in rows for given in ROWS[row].candidates]
        tried = [each for each in tried if trial_name(*each) not in stored]
        yield from (Job(trial_name(*each), partial(trial, *each, data_dir)) for each in tried)
    else:
        found = {(row, seed): stored.get(run_name(row, seed), {}).get("given") for seed in SEEDS for row in rows}
        missing = [each for each, given in found.items() if given != dict(chosen(each[0]))]
        yield from (Job(run_name(*each), partial(measured, *each, data_dir)) for each in missing)


def run(kind: str, rows: Sequence[str], data_dir: Path, parallel: int, limit: float) -> None:
    """Run the missing runs of a kind, several in parallel. None starts after ``limit`` seconds."""
    with Local(parallel, fresh=False) as launcher:
        for job, line, error in spread(list(jobs(kind, rows, data_dir)), launcher, limit):
            print(f"{job.name}: FAILED, {error}" if error else line, flush=True)
