"""Secure sums of one-bit updates with differential privacy: what the server sees, and what it may learn.

Twelve clients train an MLP on the bundled digits. Their updates are one random bit per parameter. The server learns the
sum of these bits alone (secure aggregation), and the randomness bounds what the sum reveals about a client.

    python examples/private.py
"""

from gossamer import Task, private, secured, signsgd, simulate

ROUNDS = 10


def main(rounds: int = ROUNDS) -> None:
    task = Task.named("digits", clients=12, split="iid")
    methods = {
        "in the clear": signsgd(),
        "secure sums": secured(signsgd()),
        "secure sums, epsilon 16": private(signsgd(), "distributed", epsilon=16, task=task, rounds=rounds),
    }
    for name, method in methods.items():
        result = simulate(method, task, rounds=rounds)
        last = result.metrics[-1]
        sent = sum(last["bytes_up"].values()) / task.clients
        print(f"{name:24} accuracy {last['accuracy']:.1%}, {sent / 1000:.1f} kB per client and round up")
        for figure in ("secure", "privacy"):
            if figure in last.get("figures", {}):
                print(f"    {figure}: {last['figures'][figure]}")


if __name__ == "__main__":
    main()
