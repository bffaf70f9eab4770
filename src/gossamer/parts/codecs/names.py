"""Match names of tensors with patterns."""


def fits(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern, in which ``*`` matches any text.

    It uses plain string operations, which ``torch.compile`` can trace.

    >>> fits("block.norm.weight", "*norm*"), fits("embedding.weight", "embedding")
    (True, False)
    """
    head, *tail = pattern.split("*")
    if not tail:
        return name == head
    if not name.startswith(head) or len(name) < len(head) + len(tail[-1]) or not name.endswith(tail[-1]):
        return False
    middle = name[len(head) : len(name) - len(tail[-1])]
    for piece in tail[:-1]:
        found = middle.find(piece)
        if found < 0:
            return False
        middle = middle[found + len(piece) :]
    return True
