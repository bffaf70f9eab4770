"""Counter-based random streams with the same bits on every device, and noise from them."""

from gossamer.core.random.streams import (
    Key,
    choice,
    draws,
    draws_like,
    fold,
    generator,
    halves,
    key,
    permutation,
    seeded,
    signed,
    tensor,
    torch_seed,
    uniform,
    words,
    words_by_tensor_ops,
)

__all__ = [
    "Key",
    "choice",
    "draws",
    "draws_like",
    "fold",
    "generator",
    "halves",
    "key",
    "permutation",
    "seeded",
    "signed",
    "tensor",
    "torch_seed",
    "uniform",
    "words",
    "words_by_tensor_ops",
]
