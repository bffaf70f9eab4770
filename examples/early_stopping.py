"""Run control: a target, patience, a callback with a budget, more rounds for the same run, and a warm start.

The folder knows the run by name, so the command line works on it: gossamer show runs/early, gossamer resume runs/early.
"""

from typing import Any

from gossamer import Task, fedavg, load_run, resume, simulate

BUDGET = 40e6


def within_budget(record: dict[str, Any], run: Any) -> str | None:
    """Return a reason to stop once the clients have sent too many bytes."""
    sent = sum(sum(each["bytes_up"].values()) for each in run.metrics)
    return f"the clients sent {sent:,} bytes" if sent > BUDGET else None


def main() -> None:
    task = Task.named("digits", clients=10)
    rules: dict[str, Any] = {"until": {"accuracy": 0.8}, "patience": 5, "callbacks": [within_budget]}
    result = simulate(fedavg(epochs=2), task, rounds=30, out="runs/early", **rules)
    print(result, "stopped:", result.stopped)
    print(resume("runs/early", rounds=len(result.metrics) + 2))
    print(load_run("runs/early").metrics[-1]["accuracy"])
    print(simulate(fedavg(epochs=1), task, rounds=1, init="runs/early"))


if __name__ == "__main__":
    main()
