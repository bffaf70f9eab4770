"""What all runs of the study share: the model, the clients, and the number of rounds.

The model is a transformer of 4 layers, pretrained on five plays (``shakespeare-pretrain``). The clients are the roles of
four other plays (``shakespeare-roles``). Ten of them take part in a round. Hyper-parameters are chosen on sequences held
out from training, with another seed.
"""

from pathlib import Path

from gossamer import Task
from reproduce.common.store import ROOT

STUDY = "finetune"
MODEL = "gpt"
PRETRAINED = ROOT / "build/pretrained"
"""The exported model of the pretraining run; ``--init`` of all others."""
ROLES = 64
"""More clients than there are roles: every role is a client."""
PER_ROUND = 10
ROUNDS = 40
MANY_ROUNDS = 600
"""Rounds of methods that send scalars, whose rounds are short."""
HELD_OUT = 5
"""In trials, every fifth training sequence of a client is held out."""
TRIAL_SEED = 100
SEEDS = (0, 1, 2)
PRETRAINING = "gossamer run pretrain --data shakespeare-pretrain --model gpt"


def task(data_dir: Path) -> Task:
    """Return the task: one client per role."""
    return Task.named("shakespeare-roles", data_dir=data_dir, model=MODEL)
