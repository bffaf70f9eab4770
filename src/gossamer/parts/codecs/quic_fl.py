"""QUIC-FL (Ben Basat et al., ICML 2024, https://arxiv.org/abs/2205.13341): quantization with shared randomness.

1 to 4 bits per entry. The vector is rotated (``gossamer.parts.codecs.rotation``), and each segment is scaled to
variance 1. Two ideas follow:

    bounded support      an entry z with |z| > T is sent as it is, with its index; that is about one entry in 512
    shared randomness    sender and receiver draw the same random number h per entry. For a message x, the receiver
                         decodes R(h, x). The sender chooses x, given h, such that the mean of R(h, x) over h is z

The receiver's table R minimizes the squared error for the normal distribution, under the constraint that every z with
|z| <= T is unbiased. ``bench/quic_fl_tables.py`` computes it. Given R, the best sender raises the messages of all h
one step after the other, ordered by the mean of the two values of a step. Let f_k be the mean of R over h after k
steps. For z between f_k and f_{k+1}, the first k steps are made, and step k + 1 with probability (z - f_k) / (f_{k+1} -
f_k). The mean is then exactly z. The authors round z to a grid first, and have a table of the sender in place of these
steps.

Every entry is unbiased, for any rotation. So errors of different clients cancel, also if they share a rotation, and a
sum can be decoded with one inverse rotation; this is not done here. For many entries, the squared error is

    bits             1        2        3         4
    squared error    1.465    0.2135   0.04264   0.009513     of |x|^2
    authors' table   1.467    0.2149   0.04312                computed from the tables in their repository

EDEN has a smaller error at the same number of bits (0.571, 0.133, 0.0358, 0.0096), and is unbiased over rotations.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.core import indices
from gossamer.core.bits import codes, expect_codes
from gossamer.core.codec import Codec, Coding, each_row
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.exact import root, shift, total, unit
from gossamer.core.random import Key, Keys, fold, uniform, words
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite
from gossamer.parts.codecs.rotation import BLOCK, Rotation
from gossamer.parts.codecs.scale import expect_scales

# The upper half of R for 1 to 4 bits: a paragraph per table, and in it the values of a message for all h, separated by
# slashes. The lower half is its mirror image. Constants, so that sender and receiver have the same bits.
TABLES = """
0.057976 0.131908 0.188919 0.240402 0.288790 0.335129 0.380007 0.423815 0.466832 0.509276 0.551324 0.593124 0.634806
0.676487 0.718273 0.760263 0.802553 0.845235 0.888401 0.932141 0.976549 1.021719 1.067748 1.114741 1.162804 1.212053
1.262610 1.314607 1.368189 1.423510 1.480742 1.540073 1.601710 1.665886 1.732858 1.802918 1.876394 1.953657 2.035132
2.121307 2.212745 2.310099 2.414134 2.525751 2.646021 2.776225 2.917915 3.072984 3.243775 3.433219 3.645040 3.884046
4.156562 4.471093 4.839368 5.278064 5.811773 6.478455 7.340193 8.506618 10.193142 12.896922 18.133635 34.876578

0.041857 0.041492 0.102891 0.142793 0.182223 0.221282 0.260055 0.298617 0.337037 0.375378 0.413703 0.452072 0.490544
0.529180 0.568039 0.607185 0.646682 0.686601 0.727014 0.768003 0.809657 0.852074 0.895370 0.939676 0.985152 1.031994
1.080453 1.130869 1.183749 1.239952 1.300868 1.376655
/
1.495674 1.454302 1.538886 1.582807 1.628188 1.675187 1.723983 1.774778 1.827801 1.883315 1.941625 2.003087 2.068119
2.137217 2.210977 2.290117 2.375516 2.468264 2.569729 2.681657 2.806313 2.946701 3.106903 3.292624 3.512121 3.777884
4.109867 4.542420 5.141128 6.052812 7.713332 12.779281

0.017508 0.052536 0.087595 0.122704 0.157875 0.193118 0.228445 0.263864 0.299386 0.335020 0.370777 0.406672 0.442721
0.478943 0.515364 0.552027
/
0.588997 0.626320 0.663995 0.702000 0.740322 0.778956 0.817907 0.857185 0.896811 0.936816 0.977243 1.018146 1.059605
1.101731 1.144709 1.189030
/
1.235202 1.282352 1.329596 1.377074 1.424934 1.473335 1.522450 1.572479 1.623658 1.676275 1.730699 1.787430 1.847202
1.911253 1.982259 2.072397
/
2.173112 2.232489 2.295306 2.362259 2.434236 2.512395 2.598284 2.694035 2.802689 2.928780 3.079459 3.266855 3.513868
3.871242 4.488876 6.302420

0.008308 0.024924 0.041543 0.058165 0.074793 0.091427 0.108070 0.124723 0.141388 0.158065 0.174757 0.191466 0.208192
0.224938 0.241704 0.258493
/
0.275307 0.292146 0.309013 0.325909 0.342837 0.359797 0.376791 0.393822 0.410890 0.427999 0.445150 0.462344 0.479583
0.496871 0.514207 0.531596
/
0.549037 0.566535 0.584090 0.601705 0.619383 0.637125 0.654934 0.672812 0.690763 0.708788 0.726889 0.745071 0.763334
0.781683 0.800119 0.818645
/
0.837265 0.855982 0.874798 0.893719 0.912746 0.931884 0.951138 0.970510 0.990005 1.009626 1.029376 1.049260 1.069281
1.089443 1.109750 1.130208
/
1.150822 1.171602 1.192556 1.213691 1.235015 1.256531 1.278244 1.300158 1.322278 1.344606 1.367147 1.389907 1.412894
1.436115 1.459587 1.483334
/
1.507404 1.531835 1.556626 1.581757 1.607213 1.632987 1.659072 1.685472 1.712193 1.739248 1.766658 1.794457 1.822690
1.851433 1.880819 1.911256
/
1.943269 1.976143 2.009051 2.042080 2.075316 2.108851 2.142789 2.177248 2.212369 2.248330 2.285365 2.323808 2.364173
2.407387 2.455611 2.519747
/
2.595765 2.633524 2.672866 2.714118 2.757692 2.804120 2.854108 2.908624 2.969036 3.037373 3.116830 3.212810 3.335452
3.507414 3.795865 4.640707
"""


class Table(NamedTuple):
    """The quantization of a number of bits.

    Args:
        values: what the receiver decodes, for each h and each message
        means: the mean of the values over h before the first step, and after each
        steps: the h of each step
        sent: the message of each h after each number of steps
    """

    values: Tensor
    means: Tensor
    steps: Tensor
    sent: Tensor


@dataclass(frozen=True)
class QuicFL(Codec):
    """Sends an unbiased message per entry of the rotated vector, large entries as floats, and a scale per 8192 entries.

    See https://arxiv.org/abs/2205.13341.

    Args:
        bits: the number of bits per entry, from 1 to 4
    """

    bits: int = 2

    def __post_init__(self) -> None:
        require((1 <= self.bits <= 4, wrong(self, "bits", "must be a whole number from 1 to 4")))

    @property
    def unbiased(self) -> bool:
        """True: every entry is unbiased."""
        return True

    @each_row
    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the messages, the large entries and their indices, and a scale per segment."""
        rotation = Rotation(ctx.layout.size, ctx.key)
        y, exponent = unit(finite(x, "change"))
        scaled = [_scaled(rows) for rows in rotation.cut(rotation.forward(y))]
        z = torch.cat([entries for entries, _ in scaled])
        scales = shift(torch.cat([scale for _, scale in scaled]), exponent)
        table = _table(self.bits, z.dtype, z.device)
        large = z.abs() > table.means[-1]
        messages = self._messages(torch.where(large, 0, z), ctx.key, table)
        coded = {"messages": codes(messages, self.bits), "scales": scales.clamp(max=torch.finfo(x.dtype).max)}
        return {**coded, "large": z[large], **indices.pack(large)}

    @each_row
    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return value times scale, rotated back."""
        rotation = Rotation(ctx.layout.size, ctx.key)
        messages = expect_codes(payload, "messages", self.bits, ctx.layout.size).long()
        scales, exponent = unit(expect_scales(payload, ctx.layout, rotation.segments))
        table = _table(self.bits, ctx.layout.dtype, messages.device)
        z = table.values[_shared(ctx.key, table, ctx.layout.size, messages.device), messages]
        mask = indices.unpack(payload, ctx.layout.size)
        z = torch.where(mask, indices.spread(_expect_large(payload, ctx.layout, table, mask), mask), z)
        pieces, limit = rotation.cut(z), torch.finfo(ctx.layout.dtype).max
        for rows, scale in zip(pieces, scales.split([len(rows) for rows in pieces]), strict=True):
            rows.mul_(scale.view(-1, 1))
        return shift(rotation.inverse_(z), exponent).clamp(-limit, limit)

    def _messages(self, z: Tensor, key: Key | Keys, table: Table) -> Tensor:
        """Return a random message for each entry, given its shared number."""
        step = torch.bucketize(z, table.means, right=True).clamp(1, len(table.steps)) - 1
        low, high = table.means[step], table.means[step + 1]
        shared = _shared(key, table, len(z), z.device)
        up = uniform(fold(key, "private"), len(z), dtype=z.dtype, device=z.device) < (z - low) / (high - low)
        return table.sent[shared, step] + (up & (table.steps[step] == shared))


def _scaled(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return segments scaled to variance 1 as one vector, and the scale of each."""
    y, exponent = unit(rows)
    # Tensors as divisors: a GPU rounds a division by a Python number differently.
    scale = root(total(y * y)) / rows.new_tensor(math.sqrt(rows.shape[1]))
    z = y / torch.where(scale > 0, scale, 1).view(-1, 1)
    return z.view(-1), shift(scale, exponent[:, 0])


def _shared(key: Key | Keys, table: Table, count: int, device: torch.device) -> Tensor:
    """Return the shared random number of each entry: the low bits of a byte."""
    drawn = words(fold(key, "shared"), -(-count // 8), device=device)
    octets = drawn.view(-1, 1) >> torch.arange(0, 64, 8, device=device)
    return (octets & len(table.values) - 1).view(-1)[:count]


def _expect_large(payload: Payload, layout: Layout, table: Table, mask: Tensor) -> Tensor:
    values = finite(expect(payload, "large", layout.dtype, indices.marked(mask)), "large")
    sizes = values.abs()
    if bool(((sizes <= table.means[-1]) | (sizes > math.sqrt(BLOCK) + 1)).any()):
        raise PayloadError(f"'large' has a value outside of {float(table.means[-1]):.3f} to {math.sqrt(BLOCK) + 1:.3f}")
    return values


@functools.cache
def _table(bits: int, dtype: torch.dtype, device: torch.device) -> Table:
    """Return the table of a number of bits. All sums are on a CPU in float64, so that they are the same everywhere."""
    rows = [[float(number) for number in row.split()] for row in TABLES.split("\n\n")[bits - 1].split("/")]
    upper = torch.tensor(rows, dtype=torch.float64).T
    values = torch.cat((-upper.flip(0, 1), upper), 1)
    owners = torch.arange(len(values)).repeat_interleave(values.shape[1] - 1)
    order = ((values[:, 1:] + values[:, :-1]) / 2).reshape(-1).argsort(stable=True)
    steps = owners[order]
    means = [math.fsum(values[:, 0].tolist()) / len(values)]
    for rise in (values[:, 1:] - values[:, :-1]).reshape(-1)[order].tolist():
        means.append(means[-1] + rise / len(values))
    made = torch.nn.functional.one_hot(steps, len(values)).cumsum(0)
    sent = torch.cat((torch.zeros_like(made[:1]), made)).T
    return Table(
        values.to(device, dtype),
        torch.tensor(means, dtype=torch.float64).to(device, dtype),
        steps.to(device),
        sent.contiguous().to(device),
    )
