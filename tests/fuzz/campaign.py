"""What campaigns share: their flags, the clock, and the limit of memory."""

import argparse
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable

Case = Callable[[random.Random, Counter[str]], None]
"""One group of cases: counts each as refused, accepted or whatever it is, and raises if a promise is broken."""


def peak() -> float:
    """The largest memory of this process so far, in MB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 2**10


def main(name: str, groups: Callable[[int], Case], whole: int, room: float, argv: list[str] | None = None) -> None:
    """Run groups of cases until the time is over or enough were run; memory may grow by ``room`` MB after the first."""
    parser = argparse.ArgumentParser(description=f"{name}: random damage")
    parser.add_argument("--full", action="store_true", help=f"run {whole:,} cases, whatever time it takes")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of a sample (default: 60)")
    parser.add_argument("--seed", type=int, help="seed of the first group (default: drawn, and printed)")
    asked = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(2**32) if asked.seed is None else asked.seed
    counts, begun, base = Counter[str](), time.monotonic(), 0.0
    print(f"{name}: seed {seed}", flush=True)
    for number in range(sys.maxsize):
        try:
            groups(number)(random.Random(seed + number), counts)
        except BaseException:
            print(f"{name}: failed in group {number}: --seed {seed} reaches it", flush=True)
            raise
        base = base or peak()
        assert peak() < base + room, f"{name}: memory grew from {base:.0f} to {peak():.0f} MB"
        done, spent = sum(counts.values()), time.monotonic() - begun
        if done >= whole or (not asked.full and spent >= asked.seconds):
            break
    figures = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
    print(f"{name}: {done:,} cases in {spent:.0f} s: {figures}; peak memory {peak():.0f} MB", flush=True)
