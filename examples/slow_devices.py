"""Slow devices and thin links: synchronous rounds, a deadline and FedBuff, by virtual time and energy.

python examples/slow_devices.py
"""

from gossamer import Deadline, Device, FedBuff, Fleet, FleetLinks, Synchronous, Task, fedavg, fedmrn, simulate
from gossamer.core.schedule import Schedule

SPEEDS = (5e6, 10e6, 20e6, 50e6)
DEVICES = [Device(f"{s / 1e6:g} MFLOPS", clients=10, memory=None, flops=s, up=100e3, down=1e6) for s in SPEEDS]
CHANNEL = FleetLinks(Fleet(tuple(DEVICES)))
SCHEDULES: dict[str, tuple[Schedule, int, int]] = {
    "synchronous": (Synchronous(), 10, 30),
    "deadline": (Deadline("30s", over=1.5), 7, 40),
    "FedBuff": (FedBuff(buffer=5, concurrency=10), 10, 60),
}
METHODS = {"dense": fedavg(lr=0.1, epochs=2), "one bit": fedmrn(lr=0.1, epochs=2)}


def main() -> None:
    task = Task.named("digits", model="mlp", split="dirichlet:0.5", clients=40)
    for name, (schedule, per_round, rounds) in SCHEDULES.items():
        for kind, method in METHODS.items():
            result = simulate(
                method,
                task,
                schedule=schedule,
                channel=CHANNEL,
                per_round=per_round,
                rounds=rounds,
                until="accuracy=0.8",
            )
            minutes, joules = result.metrics[-1]["time"] / 60, sum(record["joules"] for record in result.metrics)
            print(f"{name:12} {kind:8} {result.accuracy:6.1%} after {minutes:5.1f} virtual minutes, {joules:6.1f} J")


if __name__ == "__main__":
    main()
