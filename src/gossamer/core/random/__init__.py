"""Counter-based random streams with the same bits on every device, and noise from them."""

from gossamer.core.random.keys import Key, KeyRing, Keys, Purpose, fold, fold_each, key, secret_key, signed, tensor
from gossamer.core.random.streams import (
    choice,
    draw_bits,
    draws,
    draws_like,
    generator,
    halves,
    permutation,
    seeded,
    torch_seed,
    uniform,
    words,
    words_by_tensor_ops,
)

__all__ = [
    "Key",
    "KeyRing",
    "Keys",
    "Purpose",
    "choice",
    "draw_bits",
    "draws",
    "draws_like",
    "fold",
    "fold_each",
    "generator",
    "halves",
    "key",
    "permutation",
    "secret_key",
    "seeded",
    "signed",
    "tensor",
    "torch_seed",
    "uniform",
    "words",
    "words_by_tensor_ops",
]
