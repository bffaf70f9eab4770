"""The book of one round: bytes, operations, seconds, joules, and who failed.

What a run ran on: versions and machine, for its run.json.
"""

import math
import os
import platform
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from gossamer.core.channel import Cost, Receipt
from gossamer.core.delivery import Delivery
from gossamer.core.errors import RunError
from gossamer.core.types import Flops


def machine(device: str) -> dict[str, str | int]:
    """Versions, processor and device."""
    from gossamer import __version__

    return {
        "gossamer": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.platform(),
        "cores": os.cpu_count() or 1,
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
    }


def peak_memory() -> int:
    """The most memory this process has held so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass
class Tally:
    """What one client spent in a round, as the channel says, and what became of its messages.

    Args:
        seconds: computing and sending
        joules: the same
        messages: how many it sent
        lost: how many of them were lost
        wasted: joules for sending those
    """

    seconds: float = 0.0
    joules: float = 0.0
    messages: int = 0
    lost: int = 0
    wasted: float = 0.0

    def spend(self, seconds: float, joules: float) -> None:
        """Add what something took."""
        self.seconds += seconds
        self.joules += joules


class Ledger:
    """Costs of a round as they come up; every second of it belongs to exactly one phase."""

    def __init__(self) -> None:
        self.up: Counter[str] = Counter()
        self.down: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.losses: list[float] = []
        self.failures: list[dict[str, Any]] = []
        self.lost: list[int] = []
        self.notes: dict[str, Any] = {}
        self.figures: dict[str, Any] = {}
        self.flops = self.useful = 0
        self.energy = {"computing": 0.0, "sending": 0.0}
        self.airtime = self.delay = 0.0
        self.tallies: defaultdict[int, Tally] = defaultdict(Tally)
        self.exchanges: list[dict[str, int]] = []
        self._said: dict[int, Delivery] = {}
        self._delivery: dict[int, Delivery] = {}
        self._before: dict[int, float] = {}
        self._phase, self._since = "other", time.perf_counter()

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Count the seconds spent inside towards a phase, and not towards the phase around it."""
        outer = self._phase
        self._turn(phase)
        try:
            yield
        finally:
            self._turn(outer)

    def _turn(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[self._phase] += now - self._since  # type: ignore[assignment]  # Counter adds floats as well
        self._phase, self._since = phase, now

    def train(self, loss: float, flops: Flops) -> None:
        """Note one client's training."""
        self.losses.append(loss)
        self.flops += flops.done
        self.useful += flops.useful

    def work(self, client: int, cost: Cost) -> None:
        """Note what one client's training took, as the channel says."""
        self.energy["computing"] += cost.joules
        self.tallies[client].spend(*cost)

    def begin(self) -> None:
        """Note that an exchange begins."""
        self.exchanges.append({"sent": 0, "lost": 0, "folded": 0})

    def send(self, client: int, kinds: dict[str, int], receipt: Receipt, delivery: Delivery) -> None:
        """Note one upload: its bytes count, whether it arrived or not. ``fate`` is of those that were lost before."""
        self.up.update(kinds)
        self.energy["sending"] += receipt.joules
        self.airtime = max(self.airtime, receipt.seconds)
        tally = self.tallies[client]
        tally.spend(receipt.seconds, receipt.joules)
        tally.messages += 1
        self.exchanges[-1]["sent"] += 1
        self._said[client] = delivery
        if not receipt.delivered:
            self.exchanges[-1]["lost"] += 1
            self.lost.append(client)
            tally.lost += 1
            tally.wasted += receipt.joules

    def fold(self, client: int) -> None:
        """Note that a message was folded in: what it says of lost ones counts."""
        self.exchanges[-1]["folded"] += 1
        if any(delivery := self._said.get(client, Delivery())):
            self._delivery[client] = delivery

    def wait(self) -> None:
        """Note that an exchange is over, once its slowest client is done."""
        now = {client: tally.seconds for client, tally in self.tallies.items()}
        self.delay += max((spent - self._before.get(client, 0.0) for client, spent in now.items()), default=0.0)
        self._before = now

    def measure(self, figures: Mapping[str, Any]) -> None:
        """Note figures of parts, by name."""
        self.figures |= {name: _plain(value, name) for name, value in figures.items()}

    def fail(self, client: int, reason: str) -> None:
        """Note a failure."""
        self.failures.append({"client": client, "reason": reason})

    def record(self, round_: int, cohort: list[int], evaluated: dict[str, float]) -> dict[str, Any]:
        """The line that goes into the metrics; what is not a finite number is null."""
        self._turn("other")
        losses = [loss for loss in self.losses if math.isfinite(loss)]
        return {
            "round": round_,
            **{name: value if math.isfinite(value) else None for name, value in evaluated.items()},
            "train_loss": sum(losses) / len(losses) if losses else None,
            "bytes_up": dict(self.up),
            "bytes_down": dict(self.down),
            "flops": self.flops,
            "useful_flops": self.useful,
            "joules": sum(self.energy.values()),
            "energy": self.energy,
            "airtime": self.airtime,
            "delay": self.delay,
            "seconds": {phase: round(spent, 6) for phase, spent in self.seconds.items()},
            "memory_bytes": peak_memory(),
            "clients": cohort,
            "failures": self.failures,
            "lost": self.lost,
            "exchanges": self.exchanges,
            **self._told(cohort),
            **self._by_client(cohort),
            **self.notes,
            **({"figures": self.figures} if self.figures else {}),
        }

    def _told(self, cohort: Sequence[int]) -> dict[str, Any]:
        """What became of lost messages of each of the cohort, in its order; nothing where nothing did."""
        if not self._delivery:
            return {}
        delivery = [self._delivery.get(client, Delivery()) for client in cohort]
        return {"fates": {name: [getattr(delivery, name) for delivery in delivery] for name in Delivery._fields}}

    def _by_client(self, cohort: Sequence[int]) -> dict[str, Any]:
        """What each of the cohort spent, in its order; nothing where the channel counts neither time nor energy."""
        if not any(tally.seconds or tally.joules for tally in self.tallies.values()):
            return {}
        tallies = [self.tallies[client] for client in cohort]
        return {"by_client": {f.name: [_short(getattr(tally, f.name)) for tally in tallies] for f in fields(Tally)}}


def _short(number: float) -> float:
    """A count as it is, and of anything else six figures."""
    return number if isinstance(number, int) else float(f"{number:.6g}")


def _plain(value: Any, name: str) -> Any:
    """A figure as JSON has it: numbers of torch and NumPy as Python's, and what is not finite as none."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, name) for inner in value]
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list):
        return _plain(value, name)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    raise RunError(f"the figure {name} that a part measures must be a number, text, or a list or mapping of these")
