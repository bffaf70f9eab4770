"""Accuracy against bytes: the same training with one codec after the other.

python examples/one_bit.py
"""

from gossamer import Codec, Dense, Eden, Feedback, MaskedNoise, OnWeights, Task, Ternary, TopK, fedavg, simulate
from gossamer.core.random import key
from gossamer.tasks import nets
from gossamer.tasks.data import load
from gossamer.tasks.task import deal

CODECS: dict[str, Codec] = {
    "every entry as a float": Dense(),
    "half precision": Dense("float16"),
    "3 % largest, the rest later": OnWeights(Feedback(TopK(0.03))),
    "-1, 0 or 1": OnWeights(Ternary(), per_tensor=True),
    "two bits, rotated": OnWeights(Eden(2)),
    "one bit, rotated": OnWeights(Eden(1)),
    "one bit, learned while training": OnWeights(MaskedNoise(alpha=0.02)),
}


def main() -> None:
    digits = load("digits", clients=20, key=key(0))
    split = deal(digits, "dirichlet:0.5", 20, 0)
    task = Task(lambda: nets.build("mlp", digits.shape, digits.classes), digits, split)
    for name, codec in CODECS.items():
        result = simulate(fedavg(lr=0.1, epochs=5).with_parts(codec=codec), task, rounds=15)
        print(f"{name:32} {result.accuracy:6.1%}  {result.summary()['bytes_up']:>12,} bytes up")


if __name__ == "__main__":
    main()
