"""Augmentation: what a batch becomes is what the slow, obvious version makes of each image, wherever it is run."""

import pytest
import torch
from torch import Tensor

from gossamer.core.errors import ConfigError
from gossamer.core.random import fold, key, uniform
from gossamer.tasks.data import CropFlip


def images(n: int = 40, shape: tuple[int, ...] = (3, 8, 6)) -> Tensor:
    return uniform(fold(key(0), "images"), n * torch.Size(shape).numel()).view(n, *shape)


def draws(n: int = 40) -> Tensor:
    return uniform(fold(key(1), "draws"), n * CropFlip.draws).view(n, CropFlip.draws)


def slowly(crop: CropFlip, image: Tensor, draw: Tensor) -> Tensor:
    """Pad, crop, mirror."""
    channels, height, width = image.shape
    padded = torch.empty(channels, height + 2 * crop.pad, width + 2 * crop.pad)
    for channel in range(channels):
        padded[channel] = crop.fill[channel % len(crop.fill)]
    padded[:, crop.pad : crop.pad + height, crop.pad : crop.pad + width] = image
    top, left = (int(float(draw[axis]) * (2 * crop.pad + 1)) for axis in (0, 1))
    cropped = padded[:, top : top + height, left : left + width]
    return cropped.flip(-1) if draw[2] < 0.5 else cropped


@pytest.mark.parametrize("crop", [CropFlip(), CropFlip(pad=2, fill=(-1.0, 2.0, 3.0)), CropFlip(pad=0), CropFlip(pad=9)])
def test_a_batch_becomes_what_each_image_becomes_alone(crop: CropFlip) -> None:
    x, drawn = images(), draws()
    expected = torch.stack([slowly(crop, *one) for one in zip(x, drawn, strict=True)])
    assert torch.equal(crop(x, drawn), expected)
    assert torch.equal(crop(x.double(), drawn), expected.double())


def test_every_shift_is_as_likely_and_half_are_mirrored() -> None:
    n, crop = 20_000, CropFlip(pad=2)
    x = torch.zeros(n, 1, 5, 5)
    x[:, :, 2, 2] = 1
    rows, columns = crop(x, draws(n)).flatten(1).argmax(1) // 5, crop(x, draws(n)).flatten(1).argmax(1) % 5
    for offsets in (rows, columns):
        assert torch.bincount(offsets).tolist() == pytest.approx([n / 5] * 5, rel=0.05)
    corner = torch.zeros(n, 1, 5, 5)
    corner[:, :, :, 0] = 1
    mirrored = CropFlip(pad=0)(corner, draws(n))[:, 0, 0, 4].mean()
    assert float(mirrored) == pytest.approx(0.5, abs=0.02)


def test_the_largest_draw_is_no_shift_too_far() -> None:
    x, row, last = images(1), torch.arange(400.0).view(1, 1, 1, -1), 1 - 2.0**-24
    for pad in range(1, 200):
        moved = CropFlip(pad=pad)(x, torch.full((1, 3), last))
        assert moved.count_nonzero() == 0 if pad >= 8 else torch.isfinite(moved).all()
        shifted = CropFlip(pad=pad)(row, torch.tensor([[0.5, last, last]]))  # no row, the most columns, no mirror
        assert int(shifted[0, 0, 0, 0]) == pad


def test_no_shift_and_no_mirror_is_the_image_itself() -> None:
    x = images()
    assert torch.equal(CropFlip()(x, torch.full((40, 3), 0.5)), x)


def test_it_runs_under_vmap() -> None:
    x, drawn, crop = images().view(4, 10, 3, 8, 6), draws().view(4, 10, 3), CropFlip(fill=(0.1, 0.2, 0.3))
    assert torch.equal(torch.vmap(crop)(x, drawn).flatten(0, 1), crop(images(), draws()))


def test_it_compiles_to_one_graph() -> None:
    crop = CropFlip(pad=2, fill=(0.1, 0.2, 0.3))
    whole = torch.compile(crop.__call__, backend="aot_eager", fullgraph=True)
    assert torch.equal(whole(images(), draws()), crop(images(), draws()))


def test_it_is_a_value_and_checks_its_fields() -> None:
    assert CropFlip(4) == CropFlip(pad=4, fill=(0.0,))
    assert hash(CropFlip(4)) == hash(CropFlip(4))
    with pytest.raises(ConfigError, match=r"CropFlip\.pad must be at least 0, got -1"):
        CropFlip(pad=-1)
