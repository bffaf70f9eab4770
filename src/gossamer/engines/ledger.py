"""The book of one round: bytes, operations, seconds, joules, and who failed."""

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gossamer.channels import Receipt
from gossamer.machine import peak_memory
from gossamer.types import Flops


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
        self.flops = self.useful = 0
        self.joules = self.airtime = 0.0
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

    def send(self, client: int, kinds: dict[str, int], receipt: Receipt) -> None:
        """Note one upload: its bytes count, whether it arrived or not."""
        self.up.update(kinds)
        self.joules += receipt.joules
        self.airtime = max(self.airtime, receipt.seconds)
        if not receipt.delivered:
            self.lost.append(client)

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
            "joules": self.joules,
            "airtime": self.airtime,
            "seconds": {phase: round(spent, 6) for phase, spent in self.seconds.items()},
            "memory_bytes": peak_memory(),
            "clients": cohort,
            "failures": self.failures,
            "lost": self.lost,
            **self.notes,
        }
