"""Tensors of low-rank adapters, found by their names.

Those of ``gossamer.parts.adapters.lora`` are called ``layer.lora_A`` and ``layer.lora_B``, those of the package peft
``layer.lora_A.default.weight`` and ``layer.lora_B.default.weight``, or ``layer.lora_embedding_A.default``.
"""

from collections.abc import Iterable

RANKS = {"lora_A": 0, "lora_embedding_A": 0, "lora_B": 1, "lora_embedding_B": 1}
"""The dimension of a tensor that is the rank, by a word of its name: rows of A, columns of B."""

PARTNERS = {"lora_A": "lora_B", "lora_embedding_A": "lora_embedding_B"}


def rank_dimension(name: str) -> int | None:
    """Return the dimension that is the rank; none if a tensor does not belong to a low-rank adapter.

    >>> rank_dimension("h.0.lora_A"), rank_dimension("q.lora_B.default.weight"), rank_dimension("h.0.weight")
    (0, 1, None)
    """
    return next((RANKS[word] for word in name.split(".") if word in RANKS), None)


def pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names of A and B of each adapted layer of which both are among the names.

    >>> pairs(["h.lora_A", "h.lora_B", "k.lora_B", "h.weight"])
    [('h.lora_A', 'h.lora_B')]
    """
    known = list(names)
    found = [(name, ".".join(PARTNERS.get(word, word) for word in name.split("."))) for name in known]
    return [(a, b) for a, b in found if a != b and b in known]
