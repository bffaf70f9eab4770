"""Encode sections as arrays of a message, and decode them.

An array whose name starts with ``@`` belongs to a section. ``@noise`` is the only array of a section, for example a
scalar. ``@control.values`` is one of several arrays of a section. All other arrays are the payload of the codec.
Decoding checks every array: messages are untrusted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.core.bits import bits, expect_bits
from gossamer.core.codec import Coding, checked
from gossamer.core.errors import PayloadError, require
from gossamer.core.exchange import Context, Section, Sections
from gossamer.core.random import Key, fold
from gossamer.core.types import Layout, Params, Part, Payload
from gossamer.core.untrusted import ReadArrays, check_names
from gossamer.core.wire import expect, finite

MARK = "@"
ALONE = ""
"""The array name in a section with a single array."""

SectionArrays = dict[str, Payload]
"""The arrays of each section, by the name of the section."""

Take = Callable[[Params], Params]
"""Slices the tensors of a model to the part that a client holds."""


def joined(payload: Payload, packed: Mapping[str, Payload]) -> Payload:
    """Return a payload together with the arrays of sections."""
    named = {_name(section, name): array for section, arrays in packed.items() for name, array in arrays.items()}
    return {**payload, **named}


def _name(section: str, array: str) -> str:
    return MARK + section + (f".{array}" if array else "")


def split(arrays: Payload) -> tuple[Payload, SectionArrays]:
    """Return the payload of the codec, and the arrays of each section."""
    payload, packed = Payload(), SectionArrays()
    for name, array in arrays.items():
        if name.startswith(MARK):
            section, _, rest = name[len(MARK) :].partition(".")
            packed.setdefault(section, {})[rest] = array
        else:
            payload[name] = array
    return payload, packed


def kind(name: str, parts: Mapping[str, str], otherwise: str) -> str:
    """Return the kind under which the bytes of an array are counted: ``solver.noise``, ``codec.values``."""
    section = name[len(MARK) :].partition(".")[0]
    return f"{parts.get(section, otherwise)}.{section}" if name.startswith(MARK) else f"{otherwise}.{name}"


def pack(
    sections: Iterable[Section], values: Sections, layout: Layout, key: Key, whose: object, take: Take | None = None
) -> SectionArrays:
    """Encode the sections of a part. ``take``, if given, slices those with shape model."""
    wanted = {section.name: section for section in sections}
    if wanted.keys() - values.keys():
        missing = ", ".join(sorted(wanted.keys() - values.keys()))
        raise TypeError(f"{type(whose).__name__} declares sections that it does not write: {missing}")
    held = cut(wanted.values(), values, take) if take else values
    keys = {name: fold(key, "section", name) for name in wanted}
    return {name: _packed(section, held[name], layout, keys[name]) for name, section in wanted.items()}


def cut(sections: Iterable[Section], values: Sections, take: Take) -> Sections:
    """Return the values with those of shape model sliced to the part that a client holds."""
    shaped = {section.name for section in sections if section.shape == "model"}
    return {name: take(value) if name in shaped else value for name, value in values.items()}


def _packed(section: Section, value: Any, layout: Layout, key: Key) -> Payload:
    if section.shape == "scalar":
        return {ALONE: torch.as_tensor(value).detach().reshape(1).to(layout.dtype)}
    if section.shape == "model":
        own = layout.only(value.keys())
        vector = own.flatten(value)
        return (
            section.codec.encode(vector, Coding(own, key))
            if section.codec
            else {"values": finite(vector, section.name)}
        )
    return dict(value)


def unpack(
    sections: Iterable[Section], unread: SectionArrays, layout: Layout, trained: Iterable[str], key: Key
) -> Sections:
    """Decode the declared sections, and remove them from ``unread``. Raise ``PayloadError`` if one is missing."""
    found: dict[str, Any] = {}
    for section in sections:
        if section.name not in unread:
            raise PayloadError(f"the message has no section {section.name}")
        at = fold(key, "section", section.name)
        found[section.name] = _unpacked(section, unread.pop(section.name), layout.only({*trained}), at)
    return found


def check_read(unread: SectionArrays) -> None:
    """Raise ``PayloadError`` if a message has a section that no part declares."""
    if unread:
        raise PayloadError(f"the message has a section that no part reads: {min(unread)}")


def _unpacked(section: Section, arrays: Payload, layout: Layout, key: Key) -> Any:
    if section.shape == "scalar":
        return float(finite(_only(section.name, arrays, layout.dtype), section.name))
    if section.shape == "model":
        codec, read = section.codec, ReadArrays(arrays)
        vector = codec.decode(read, Coding(layout, key)) if codec else expect(read, "values", layout.dtype, layout.size)
        read.check()
        return layout.unflatten(checked(vector, layout))
    return arrays


def _only(section: str, arrays: Payload, dtype: torch.dtype) -> Tensor:
    """Return the single number of a section. Errors name the section."""
    named = joined({}, {section: arrays})
    check_names(named, {MARK + section})
    return expect(named, MARK + section, dtype, 1)


def index(number: int) -> Payload:
    """Return a small integer as the arrays of a section."""
    return {ALONE: torch.tensor([number], dtype=torch.int32)}


def read_index(unread: SectionArrays, name: str, below: int) -> int:
    """Return the integer of a section, at least 0 and less than ``below``, and remove it from ``unread``."""
    number = int(_only(name, unread.pop(name, {}), torch.int32)[0])
    if not 0 <= number < below:
        raise PayloadError(f"{name} must be from 0 to {below - 1}, got {number}")
    return number


@dataclass(frozen=True)
class OwnLabels:
    """The labels that a client has samples of.

    Only these labels take part in the client's loss, and only their rows in the aggregation.

    Args:
        rows: names of tensors, each with the dimension that has one index per label
        count: the number of labels
    """

    rows: tuple[tuple[str, int], ...]
    count: int

    @classmethod
    def of(cls, widths: Any, context: Context) -> "OwnLabels":
        """Return the labels of a network, from its width rule."""
        classes = "labels=own needs targets that are classes, one per sample: use labels=all"
        require((context.network.scores_classes, classes))
        rows = (widths or context.network.widths()).labels
        missing = "labels=own: no dimension with one index per label is known: declare the width group labels"
        require((bool(rows), missing))
        name, dim = rows[0]
        return cls(rows, context.network.outline()[name].shape[dim])

    def packed(self, labels: Tensor) -> Payload:
        """Return a client's labels as the arrays of a section."""
        return {ALONE: bits(labels > 0)}

    def counting(self, part: Part, unread: SectionArrays, model: Params) -> Part:
        """Return the part with only the rows of the labels in a message. Remove the section from ``unread``."""
        arrays = joined({}, {"labels": unread.pop("labels", {})})
        check_names(arrays, {f"{MARK}labels"})
        return part.counting(self.rows, expect_bits(arrays, f"{MARK}labels", self.count), model)
