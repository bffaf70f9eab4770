"""Sections as arrays of a message, and back.

An array whose name begins with ``@`` belongs to a section: ``@noise`` is a scalar, ``@control.values`` an array of a
section with several. All others are what the codec made of the model. Nothing that is read is trusted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.core.bits import bits, expect_bits
from gossamer.core.codec import checked
from gossamer.core.errors import PayloadError, require
from gossamer.core.exchange import Context, Section, Sections
from gossamer.core.random import Key, fold
from gossamer.core.types import Layout, Params, Part, Payload
from gossamer.core.wire import expect, finite

MARK = "@"
ALONE = ""
"""What the array is called of a section that has one array alone."""

Said = dict[str, Payload]
"""The arrays of each section, by its name."""

Take = Callable[[Params], Params]
"""Cuts tensors of a model to the part that a client holds."""


def joined(payload: Payload, said: Mapping[str, Payload]) -> Payload:
    """A payload with the arrays of sections beside it."""
    named = {_name(section, name): array for section, arrays in said.items() for name, array in arrays.items()}
    return {**payload, **named}


def _name(section: str, array: str) -> str:
    return MARK + section + (f".{array}" if array else "")


def split(arrays: Payload) -> tuple[Payload, Said]:
    """The payload, and the arrays of each section."""
    payload, said = Payload(), Said()
    for name, array in arrays.items():
        if name.startswith(MARK):
            section, _, rest = name[len(MARK) :].partition(".")
            said.setdefault(section, {})[rest] = array
        else:
            payload[name] = array
    return payload, said


def kind(name: str, parts: Mapping[str, str], otherwise: str) -> str:
    """An array's bytes are counted as those of a part's section: ``solver.noise``, ``codec.values``."""
    section = name[len(MARK) :].partition(".")[0]
    return f"{parts.get(section, otherwise)}.{section}" if name.startswith(MARK) else f"{otherwise}.{name}"


def pack(
    sections: Iterable[Section], values: Sections, layout: Layout, key: Key, whose: object, take: Take | None = None
) -> Said:
    """What a part says in its sections; those shaped as the model are cut by ``take``, if they are not yet."""
    wanted = {section.name: section for section in sections}
    if wanted.keys() - values.keys():
        missing = ", ".join(sorted(wanted.keys() - values.keys()))
        raise TypeError(f"{type(whose).__name__} declares sections that it does not write: {missing}")
    held = cut(wanted.values(), values, take) if take else values
    keys = {name: fold(key, "section", name) for name in wanted}
    return {name: _packed(section, held[name], layout, keys[name]) for name, section in wanted.items()}


def cut(sections: Iterable[Section], values: Sections, take: Take) -> Sections:
    """The same, with what is shaped as the model cut to what a client holds."""
    shaped = {section.name for section in sections if section.shape == "model"}
    return {name: take(value) if name in shaped else value for name, value in values.items()}


def _packed(section: Section, value: Any, layout: Layout, key: Key) -> Payload:
    if section.shape == "scalar":
        return {ALONE: torch.as_tensor(value).detach().reshape(1).to(layout.dtype)}
    if section.shape == "model":
        own = layout.only(value.keys())
        vector = own.flatten(value)
        return section.codec.encode(vector, own, key) if section.codec else {"values": finite(vector, section.name)}
    return dict(value)


def unpack(sections: Iterable[Section], said: Said, layout: Layout, trained: Iterable[str], key: Key) -> Sections:
    """The values of declared sections, which are taken out of what was said; one that is missing is a refusal."""
    found: dict[str, Any] = {}
    for section in sections:
        if section.name not in said:
            raise PayloadError(f"the message has no section {section.name}")
        at = fold(key, "section", section.name)
        found[section.name] = _unpacked(section, said.pop(section.name), layout.only({*trained}), at)
    return found


def check_read(said: Said) -> None:
    """Refuse a message with sections that nobody has read."""
    if said:
        raise PayloadError(f"the message has a section that nobody reads: {min(said)}")


def _unpacked(section: Section, arrays: Payload, layout: Layout, key: Key) -> Any:
    if section.shape == "scalar":
        return float(finite(_only(section.name, arrays, layout.dtype), section.name))
    if section.shape == "model":
        codec = section.codec
        vector = codec.decode(arrays, layout, key) if codec else expect(arrays, "values", layout.dtype, layout.size)
        return layout.unflatten(checked(vector, layout))
    return arrays


def _only(section: str, arrays: Payload, dtype: torch.dtype) -> Tensor:
    """The one number of a section; what is wrong with it is told by its name."""
    return expect(joined({}, {section: arrays}), MARK + section, dtype, 1)


def index(number: int) -> Payload:
    """A small whole number as a section."""
    return {ALONE: torch.tensor([number], dtype=torch.int32)}


def read_index(said: Said, name: str, below: int) -> int:
    """A whole number from 0 on, below a limit, taken out of what was said."""
    number = int(_only(name, said.pop(name, {}), torch.int32)[0])
    if not 0 <= number < below:
        raise PayloadError(f"{name} must be from 0 to {below - 1}, got {number}")
    return number


@dataclass(frozen=True)
class OwnLabels:
    """Which labels a client has samples of: only these count in its loss, and only their rows in the mean.

    Args:
        rows: tensors and the dimension in which they have an entry for each label
        count: how many labels there are
    """

    rows: tuple[tuple[str, int], ...]
    count: int

    @classmethod
    def of(cls, widths: Any, context: Context) -> "OwnLabels":
        """From a network's width rule, which knows the rows."""
        rows = (widths or context.network.widths()).labels
        missing = "labels=own: no dimension is known to have an entry for each label: state them as the group labels"
        require((bool(rows), missing))
        name, dim = rows[0]
        return cls(rows, context.network.outline()[name].shape[dim])

    def said(self, labels: Tensor) -> Payload:
        """What tells the server."""
        return {ALONE: bits(labels > 0)}

    def counting(self, part: Part, said: Said, model: Params) -> Part:
        """The part of which only the rows count that a message says; that is taken out of it."""
        arrays = joined({}, {"labels": said.pop("labels", {})})
        return part.counting(self.rows, expect_bits(arrays, f"{MARK}labels", self.count), model)
