"""The metrics of one round (bytes, operations, seconds, joules, failures), and a description of the machine.

A ``Ledger`` collects the costs of a round while it runs. Its record becomes one line of the run's metrics. ``machine``
describes versions and hardware for ``run.json``.
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


@dataclass
class Tally:
    """What one client spent in a round according to the channel.

    Args:
        seconds: time for computing, sending and receiving
        joules: energy for computing, sending and receiving
        messages: number of uploads
        lost: number of lost uploads
        wasted: energy for sending lost uploads
    """

    seconds: float = 0.0
    joules: float = 0.0
    messages: int = 0
    lost: int = 0
    wasted: float = 0.0

    def spend(self, seconds: float, joules: float) -> None:
        """Add time and energy."""
        self.seconds += seconds
        self.joules += joules


class Ledger:
    """Collects the costs of a round; every second belongs to exactly one phase."""

    def __init__(self) -> None:
        self.up: Counter[str] = Counter()
        self.down: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.losses: list[float] = []
        self.failures: list[dict[str, Any]] = []
        self.lost: list[int] = []
        self.notes: dict[str, Any] = {}
        self.figures: dict[str, Any] = {}
        self._reported_figures: defaultdict[str, list[float]] = defaultdict(list)
        self.flops = self.useful = 0
        self.energy = {"computing": 0.0, "sending": 0.0}
        self.airtime = self.delay = 0.0
        self.tallies: defaultdict[int, Tally] = defaultdict(Tally)
        self.exchanges: list[dict[str, int]] = []
        self._reported: dict[int, Delivery] = {}
        self._delivery: dict[int, Delivery] = {}
        self._before: dict[int, float] = {}
        self._phase, self._since = "other", time.perf_counter()

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Count the seconds inside the block towards a phase, and not towards the enclosing phase."""
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
        """Record one client's training."""
        self.losses.append(loss)
        self.flops += flops.done
        self.useful += flops.useful

    def report(self, figures: Mapping[str, float]) -> None:
        """Record the metrics that one client's codec reports."""
        for name, value in figures.items():
            self._reported_figures[name].append(value)

    @property
    def reported(self) -> dict[str, float]:
        """The means of the clients' metrics, in any order of the clients."""
        return {name: math.fsum(values) / len(values) for name, values in self._reported_figures.items()}

    def work(self, client: int, cost: Cost) -> None:
        """Record the time and energy of one client's training, as the channel models it."""
        self.energy["computing"] += cost.joules
        self.tallies[client].spend(*cost)

    def receive(self, client: int, kinds: dict[str, int], cost: Cost) -> None:
        """Record one download."""
        for kind, nbytes in kinds.items():
            self.down[kind] += nbytes
        if any(cost):
            self.energy["receiving"] = self.energy.get("receiving", 0.0) + cost.joules
            self.tallies[client].spend(*cost)

    def begin(self) -> None:
        """Record the start of an exchange."""
        self.exchanges.append({"sent": 0, "lost": 0, "folded": 0})

    def send(self, client: int, kinds: dict[str, int], receipt: Receipt, delivery: Delivery) -> None:
        """Record one upload, delivered or lost; ``delivery`` counts the client's earlier lost uploads."""
        self.answer(client, kinds, receipt)
        self.exchanges[-1]["sent"] += 1
        self._reported[client] = delivery
        if not receipt.delivered:
            self.exchanges[-1]["lost"] += 1
            self.lost.append(client)

    def answer(self, client: int, kinds: Mapping[str, int], receipt: Receipt) -> None:
        """Record a message of a client that is no upload: an answer in a phase of secure aggregation."""
        for kind, nbytes in kinds.items():
            self.up[kind] += nbytes
        self.energy["sending"] += receipt.joules
        self.airtime = max(self.airtime, receipt.seconds)
        tally = self.tallies[client]
        tally.spend(receipt.seconds, receipt.joules)
        tally.messages += 1
        if not receipt.delivered:
            tally.lost += 1
            tally.wasted += receipt.joules

    def interrupt(self, client: int, cost: Cost) -> None:
        """Record what a client spent on an upload that it did not finish."""
        self.energy["sending"] += cost.joules
        self.tallies[client].spend(*cost)

    def idle(self, client: int, joules: float) -> None:
        """Record the energy of a client that waits for the end of the round."""
        if joules:
            self.energy["idle"] = self.energy.get("idle", 0.0) + joules
            self.tallies[client].joules += joules

    def refuse(self, kinds: Mapping[str, int]) -> None:
        """Record that an upload that was sent was refused: what is in it has no meaning."""
        self.up.subtract(kinds)
        self.up = +self.up
        self.up["refused"] += sum(kinds.values())

    def fold(self, client: int) -> None:
        """Record that an upload was aggregated; the delivery counts in it are now valid."""
        self.exchanges[-1]["folded"] += 1
        if any(delivery := self._reported.get(client, Delivery())):
            self._delivery[client] = delivery

    def wait(self) -> None:
        """Record the end of an exchange; its delay is that of the slowest client."""
        now = {client: tally.seconds for client, tally in self.tallies.items()}
        self.delay += max((spent - self._before.get(client, 0.0) for client, spent in now.items()), default=0.0)
        self._before = now

    def measure(self, figures: Mapping[str, Any]) -> None:
        """Record metrics of the method's parts, by name."""
        self.figures |= {name: _plain(value, name) for name, value in figures.items()}

    def fail(self, client: int, reason: str) -> None:
        """Record a failure."""
        self.failures.append({"client": client, "reason": reason})

    def record(self, round_: int, cohort: list[int], evaluated: dict[str, Any]) -> dict[str, Any]:
        """Return the round's record; values that are not finite become null."""
        self._turn("other")
        losses = [loss for loss in self.losses if math.isfinite(loss)]
        self.measure(self.reported)
        return {
            "round": round_,
            **{name: _plain(value, name) for name, value in evaluated.items()},
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
            **self._deliveries(cohort),
            **self._by_client(cohort),
            **self.notes,
            **({"figures": self.figures} if self.figures else {}),
        }

    def _deliveries(self, cohort: Sequence[int]) -> dict[str, Any]:
        """Return the delivery counts of each client of the cohort, in order; nothing if all are zero."""
        if not self._delivery:
            return {}
        counts = [self._delivery.get(client, Delivery()) for client in cohort]
        return {"delivery": {name: [getattr(count, name) for count in counts] for name in Delivery._fields}}

    def _by_client(self, cohort: Sequence[int]) -> dict[str, Any]:
        """Return what each client spent, in cohort order; nothing if the channel models neither time nor energy."""
        if not any(tally.seconds or tally.joules for tally in self.tallies.values()):
            return {}
        tallies = [self.tallies[client] for client in cohort]
        return {"by_client": {f.name: [_short(getattr(tally, f.name)) for tally in tallies] for f in fields(Tally)}}


def _short(number: float) -> float:
    """Round floats to six significant digits; integers stay exact."""
    return number if isinstance(number, int) else float(f"{number:.6g}")


def _plain(value: Any, name: str) -> Any:
    """Convert a metric to JSON types; values that are not finite become none."""
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


def machine(device: str) -> dict[str, str | int]:
    """Return software versions, processor and device."""
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
    """Return the peak memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
