"""Fewer bytes on the downlink: clients receive what they have missed instead of the whole model.

python examples/less_down.py
"""

from gossamer import Delta, Dense, Eden, OnWeights, Task, fedmrn, simulate

METHOD = fedmrn(lr=0.1, epochs=2, alpha=0.05, weights="uniform")
ADDING = fedmrn(lr=0.1, epochs=2, alpha=0.05, weights="uniform", common_noise=True)
METHODS = {
    "the whole model, float32": METHOD.with_parts(down=Dense()),
    "the whole model, float16": METHOD.with_parts(down=Dense("float16")),
    "missed uploads, exact": METHOD.with_parts(down=Delta()),
    "sums of missed uploads, exact": ADDING.with_parts(down=Delta(sums_only=True)),
    "missed changes, 2 bits": METHOD.with_parts(down=Delta(OnWeights(Eden(2)))),
}


def main() -> None:
    task = Task.named("digits", model="mlp", split="dirichlet:0.5", clients=10)
    for name, method in METHODS.items():
        result = simulate(method, task, rounds=15)
        print(f"{name:30} {result.accuracy:6.1%}  {result.summary()['bytes_down']:>12,} bytes down")


if __name__ == "__main__":
    main()
