"""Records of runs with a schedule, made without training: a small event loop over clients of unequal speed."""

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gossamer.core.availability import SECOND

COLUMNS = ("client", "version", "start", "received", "computed", "end", "outcome", "joules")
BUSY_WATTS, IDLE_WATTS = 2.0, 0.5


def about(schedule: str | None, clients: int, slots: int, rounds: int, seed: int = 0) -> dict[str, Any]:
    """Return the contents of ``run.json``."""
    return {
        "method": {"view": "Full()", "solver": "SGD(lr=0.1)", "codec": "Dense()"},
        "task": {"data": "digits", "model": "mlp", "split": "iid", "clients": clients},
        "parameters": 12345,
        "options": {
            "rounds": rounds, "per_round": slots, "seed": seed, "executor": "one-by-one", "schedule": schedule
        },
        "slots": slots,
        "request": {"method": "fedavg"},
        "machine": {"gossamer": "0.1.0"},
    }  # fmt: skip


@dataclass
class Made:
    """The records of a run so far.

    Args:
        accuracy: the accuracy of a round, by its number
        evaluated: every how many rounds the model is evaluated
    """

    gain: float = 0.02
    evaluated: int = 1
    records: list[dict[str, Any]] = field(default_factory=list)
    now: int = 0

    def end_round(self, now: int, tasks: list[tuple[Any, ...]], waits: bool) -> None:
        """Add the record of a round that ends now; clients that have finished wait for it if ``waits``."""
        number, tasks = len(self.records) + 1, sorted(tasks)
        columns = dict(zip(COLUMNS, map(list, zip(*tasks, strict=True)), strict=True)) if tasks else {}
        columns = {name: columns.get(name, []) for name in COLUMNS}
        idle = IDLE_WATTS * sum(now - end for end in columns["end"]) / SECOND if waits else 0.0
        busy = [end - start for start, end in zip(columns["start"], columns["end"], strict=True)]
        vain = [place for place, outcome in enumerate(columns["outcome"]) if outcome != "folded"]
        lost = [columns["client"][place] for place in vain if columns["outcome"][place] == "lost"]
        folded = len(tasks) - len(vain)
        scores = {"accuracy": min(0.99, 0.1 + self.gain * number), "loss": 1 / number}
        self.records.append(
            {
                "round": number,
                **(scores if number % self.evaluated == 0 else {}),
                "train_loss": 0.8 / number,
                "bytes_up": {"codec.values": 1000 * (folded + len(lost))},
                "bytes_down": {"down.values": 2000 * len(tasks)},
                "flops": 5_000_000 * len(tasks),
                "useful_flops": 5_000_000 * len(tasks),
                "joules": sum(columns["joules"]) + idle,
                "energy": {"computing": sum(columns["joules"]), "sending": 0.0, "receiving": 0.0, "idle": idle},
                "airtime": 0.0,
                "delay": (now - self.now) / SECOND,
                "time": now / SECOND,
                "seconds": {"train": 0.1},
                "memory_bytes": 400_000_000,
                "clients": columns["client"],
                "failures": [],
                "lost": lost,
                "exchanges": [{"sent": folded + len(lost), "lost": len(lost), "folded": folded}],
                "tasks": columns,
                "spent_in_vain": {
                    "joules": sum((columns["joules"][place] for place in vain), 0.0),
                    "seconds": sum(busy[place] for place in vain) / SECOND,
                },
            }
        )
        self.now = now


def speeds(clients: int, seed: int) -> list[int]:
    """Return the nanoseconds of a whole task of each client, spread over a factor of ten."""
    draw = random.Random(seed)
    return [int(SECOND * 10 ** draw.uniform(0.5, 1.5)) for _ in range(clients)]


def task(client: int, version: int, start: int, length: int, outcome: str = "folded", cut: int | None = None) -> Any:
    """Return the columns of one task: a tenth download, two tenths upload; ``cut`` ends it early."""
    end = start + length if cut is None else cut
    phases = (start + length // 10, start + 8 * length // 10)
    reached = [time if time <= end else None for time in phases]
    return (client, version, start, *reached, end, outcome, BUSY_WATTS * (end - start) / SECOND)


def rounds_with_deadline(
    rounds: int, clients: int = 12, slots: int = 4, deadline: float = 20.0, seed: int = 0, **how: Any
) -> list[dict[str, Any]]:
    """Return the records of rounds that end with the last client, or at the deadline; every ninth upload is lost."""
    made, draw, lengths = Made(**how), random.Random(seed), speeds(clients, seed)
    sent = 0
    for version in range(rounds):
        cohort, start = sorted(draw.sample(range(clients), slots)), made.now
        end = min(start + max(lengths[client] for client in cohort), start + int(deadline * SECOND))
        done = []
        for client in cohort:
            if (late := start + lengths[client] > end) or (sent := sent + 1) % 9:
                outcome = "cancelled" if late else "folded"
            else:
                outcome = "lost"
            done.append(task(client, version, start, lengths[client], outcome, end if late else None))
        made.end_round(end, done, waits=True)
    return made.records


def buffered(rounds: int, clients: int = 12, slots: int = 6, buffer: int = 3, seed: int = 0, **how: Any) -> list[Any]:
    """Return the records of FedBuff: a free slot is filled at once."""
    made, draw, lengths = Made(**how), random.Random(seed), speeds(clients, seed)
    queue: list[tuple[int, int, int, int]] = []

    def fill(now: int, busy: set[int]) -> None:
        free = [client for client in range(clients) if client not in busy | {each[1] for each in queue}]
        for client in draw.sample(free, min(len(free), slots - len(queue))):
            heapq.heappush(queue, (now + lengths[client], client, len(made.records), now))

    fill(0, set())
    while len(made.records) < rounds:
        done: list[Any] = []
        while len(done) < buffer:
            end, client, version, start = heapq.heappop(queue)
            done.append(task(client, version, start, end - start))
            if len(done) < buffer:
                fill(end, {each[0] for each in done})
        made.end_round(end, done, waits=False)
        fill(end, set())
    return made.records


def counted(records: list[dict[str, Any]]) -> Counter[str]:
    """Return the number of tasks by outcome."""
    return Counter(outcome for record in records for outcome in record["tasks"]["outcome"])
