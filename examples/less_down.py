"""Fewer bytes on the downlink: clients receive what they have missed instead of the whole model.

python examples/less_down.py
"""

from gossamer import Codec, Delta, Dense, Eden, OnWeights, Task, fedmrn, simulate

DOWNLINKS: dict[str, Codec | Delta] = {
    "the whole model, float32": Dense(),
    "the whole model, float16": Dense("float16"),
    "missed uploads, exact": Delta(),
    "missed changes, 2 bits": Delta(OnWeights(Eden(2))),
}


def main() -> None:
    task = Task.named("digits", model="mlp", split="dirichlet:0.5", clients=10)
    for name, down in DOWNLINKS.items():
        result = simulate(fedmrn(lr=0.1, epochs=2, alpha=0.05).with_parts(down=down), task, rounds=15)
        print(f"{name:26} {result.accuracy:6.1%}  {result.summary()['bytes_down']:>12,} bytes down")


if __name__ == "__main__":
    main()
