"""Accuracy against bytes: the same training with one codec after the other.

python examples/one_bit.py
"""

from gossamer import Codec, Dense, Eden, Feedback, Lift, MaskedNoise, Task, Ternary, TopK, fedavg, nets, simulate
from gossamer.data import load
from gossamer.random import key
from gossamer.tasks import deal

CODECS: dict[str, Codec] = {
    "every entry as a float": Dense(),
    "half precision": Dense("float16"),
    "3 % largest, the rest later": Lift(Feedback(TopK(0.03))),
    "-1, 0 or 1": Lift(Ternary(), each=True),
    "two bits, rotated": Lift(Eden(2)),
    "one bit, rotated": Lift(Eden(1)),
    "one bit, learned while training": Lift(MaskedNoise(alpha=0.02)),
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
