"""Choose the learning rate of two codecs on held-out samples, over two seeds, and report the test accuracy.

The folder knows the sweep, so the command line works on it: gossamer compare sweeps/tune, gossamer resume sweeps/tune.
"""

from typing import Any

from gossamer import fedavg, sweep


def main() -> None:
    grid: dict[str, list[Any]] = {"codec": ["dense", "eden:1"], "lr": [0.03, 0.1]}
    result = sweep(fedavg, grid=grid, seeds=2, rounds=3, clients=10, epochs=1, validate=5, out="sweeps/tune")
    print(result)
    for point in result.points:
        print(point.label, point.over_seeds("validation_accuracy"), point.over_seeds("accuracy"))
    print("chosen:", result.best)


if __name__ == "__main__":
    main()
