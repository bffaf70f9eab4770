"""What all runs of the study share: the model, the clients, and the number of rounds.

The model is a transformer of 4 layers, pretrained on five plays (``shakespeare-pretrain``). The clients are 50 roles of
four other plays (``shakespeare-roles``). Ten of them take part in a round, for two epochs. Hyper-parameters are chosen
on every fifth training sequence of each client, held out, with a seed of its own.
"""

from pathlib import Path

from gossamer import Adam, Cosine, Task
from reproduce.common.store import ROOT

STUDY = "finetune"
MODEL = "gpt"
PRETRAINED = ROOT / "build/pretrained.safetensors"
"""The model after pretraining, from which all runs start."""
PRETRAINING = Adam(0.006, steps=150, batch=64, warmup=30, schedule=Cosine())
PRETRAINING_ROUNDS = 16
PER_ROUND = 10
ROUNDS, MANY_ROUNDS, TRIAL_ROUNDS = 20, 500, 100
"""Rounds of most methods, of those with one short step per round, and at most of a trial of hyper-parameters."""
EXECUTOR = "captured-plain"
"""The executor on a GPU."""
EPOCHS, BATCH = 2, 16
HELD_OUT = 5
TRIAL_SEED = 100
SEEDS = (0, 1, 2)


def task(data_dir: Path) -> Task:
    """Return the task: one client per role."""
    return Task.named("shakespeare-roles", data_dir=data_dir, model=MODEL)
