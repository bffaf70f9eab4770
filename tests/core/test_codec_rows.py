"""The rows of a group: what both sides know of each, and codecs that take one vector alone."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from gossamer.core.codec import Codec, Coding, each_row, row_by_row, rows_of, stacked, treats_rows
from gossamer.core.random import fold, fold_each, key, uniform
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite
from gossamer.parts.codecs import CODECS, OnWeights, Sparse, TopK

KEY = key(5)
LAYOUT = Layout.of({"b": torch.zeros(3), "w": torch.zeros(4, 5)})


def group(start: Tensor | None = None) -> Coding:
    return Coding(LAYOUT, fold_each(KEY, "row", [7, 8]), None if start is None else lambda: start, client=(4, 6))


@dataclass(frozen=True)
class Alone(Codec):
    """Divides by the norm of what it gets, all rows together."""

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        return {"values": finite(x, "change") / x.norm(), "norm": x.norm().view(1)}

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        norm = finite(expect(payload, "norm", ctx.layout.dtype, 1), "norm")
        return finite(expect(payload, "values", ctx.layout.dtype, ctx.layout.size) * norm, "change")


class ByRow(Alone):
    """The same for each row."""

    encode = each_row(Alone.encode)
    decode = each_row(Alone.decode)


def test_a_row_knows_what_the_group_knows_of_it() -> None:
    start = torch.arange(46.0).view(2, 23)
    ctx = group(start)
    one = ctx.row(1)
    assert one.key == fold(KEY, "row", 8)
    assert one.client == 6
    assert one.own == fold(KEY, "row", 8, "client", 6)
    assert list(ctx.own) == [ctx.row(0).own, one.own]
    assert one.start is not None
    assert torch.equal(one.start, start[1])
    part = ctx.of(LAYOUT.only(["w"]), "piece", "")
    assert part.start is not None
    assert torch.equal(part.start, start[:, 3:])
    assert part.row(1).key == fold(KEY, "row", 8, "piece", "")
    assert Coding(LAYOUT, KEY).start is None
    assert Coding(LAYOUT, KEY).own == KEY


def test_what_both_sides_know_is_computed_once_and_only_if_it_is_used() -> None:
    calls = []

    def known() -> Tensor:
        calls.append(1)
        return torch.zeros(23)

    ctx = Coding(LAYOUT, KEY, known)
    part = ctx.of(LAYOUT.only(["b"]), "piece", "")
    assert not calls
    assert part.start is ctx.of(LAYOUT.only(["b"])).start or len(calls) == 1


@pytest.mark.parametrize("name", sorted(CODECS))
def test_every_codec_treats_rows_alone(name: str) -> None:
    assert treats_rows(CODECS[name]())
    if not CODECS[name]().private:
        assert treats_rows(OnWeights(CODECS[name]()))


def test_a_codec_that_mixes_rows_is_found_and_can_be_used_row_by_row() -> None:
    assert not treats_rows(Alone())
    assert treats_rows(ByRow())
    x = uniform(KEY, 46).view(2, 23)
    sent = row_by_row(Alone().encode, x, group())
    assert isinstance(sent, list)
    assert all(torch.equal(one["values"], row / row.norm()) for one, row in zip(sent, x, strict=True))
    assert torch.allclose(row_by_row(Alone().decode, sent, group()), x)
    assert torch.allclose(ByRow().decode(stacked(sent), group()), x)


def test_messages_of_unequal_length_are_a_list() -> None:
    x = torch.zeros(2, 23)
    x[0, 3], x[1, 4:9] = 1.0, 2.0
    codec = OnWeights(Sparse())
    found = codec.encode(x, group())
    assert isinstance(found, list)
    assert [len(one["values"]) for one in found] == [1, 5]
    assert rows_of(found) is found
    assert stacked(found) is found
    assert torch.equal(codec.decode(found, group()), x)
    alike = stacked(OnWeights(TopK(0.2)).encode(x + torch.eye(2, 23), group()))
    assert torch.equal(alike["rest.values"], (x + torch.eye(2, 23))[:, :3])
