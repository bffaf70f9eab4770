"""Accuracy against bytes: the same training with different codecs.

python examples/one_bit.py
"""

from gossamer import Codec, Dense, Eden, Feedback, MaskedNoise, OnWeights, Task, Ternary, TopK, fedavg, simulate
from gossamer.core.random import key
from gossamer.tasks import nets
from gossamer.tasks.data import load
from gossamer.tasks.task import deal

CODECS: dict[str, Codec] = {
    "float32": Dense(),
    "float16": Dense("float16"),
    "top 3 %, error feedback": OnWeights(Feedback(TopK(0.03))),
    "ternary": OnWeights(Ternary(), per_tensor=True),
    "EDEN, 2 bits": OnWeights(Eden(2)),
    "EDEN, 1 bit": OnWeights(Eden(1)),
    "FedMRN, below 1 bit": OnWeights(MaskedNoise()),
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
