"""Files of public data sets: every format is read exactly, with owners where there are some."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from gossamer.cli import main
from gossamer.core import specs
from gossamer.core.errors import ConfigError
from gossamer.core.random import key
from gossamer.tasks import data as gd
from gossamer.tasks import nets
from gossamer.tasks.data import image_sets, leaf
from gossamer.tasks.data.cifar import read_cifar
from gossamer.tasks.data.image_sets import ImageSet, Norm
from gossamer.tasks.data.readers import Facts
from helpers.narrow import present
from helpers.small_files import (
    COLOUR,
    DIGITS,
    FORMATS,
    GREY,
    LINE,
    TEST,
    TRAIN,
    cifar10_npz,
    emnist_gz,
    fashion_npz,
    femnist_leaf,
    load,
    records,
    shakespeare_leaf,
    shakespeare_roles,
    write_idx,
)

# Every format is read exactly.


def bytes_again(x: torch.Tensor, norm: Norm) -> np.ndarray:
    """Normalised images as the bytes they were, with channels last."""
    mean, std = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in norm)
    return ((x.double() * std + mean) * 255).round().to(torch.uint8).movedim(1, -1).numpy()


@pytest.mark.parametrize(
    ("form", "image_set"),
    [
        ("npz", image_sets.FASHION_MNIST),
        ("idx", image_sets.MNIST),
        ("idx.gz", image_sets.MNIST),
        ("emnist", image_sets.EMNIST_LETTERS),
        ("emnist.zip", image_sets.EMNIST_LETTERS),
        ("cifar npz", image_sets.CIFAR_10),
        ("cifar-10", image_sets.CIFAR_10),
        ("cifar-10.tar.gz", image_sets.CIFAR_10),
        ("cifar-100", image_sets.CIFAR_100),
        ("mat", image_sets.SVHN),
        ("mat, compressed", image_sets.SVHN),
    ],
)
def test_images_and_labels_come_back_as_they_were_written(form: str, image_set: ImageSet, tmp_path: Path) -> None:
    data = load(FORMATS[form](tmp_path), tmp_path)
    first = 80 if form == "cifar-100" else 0
    for samples, norm, n, grey, colour in zip(
        (data.train, data.test), image_set.norms["plain"], (TRAIN, TEST), GREY, COLOUR, strict=True
    ):
        expected = grey[..., None] if image_set.facts.shape[0] == 1 else colour
        assert np.array_equal(bytes_again(samples.x, norm), expected)
        assert samples.y.tolist() == [first + i if image_set.facts.classes > 10 else i % 10 for i in range(n)]


@pytest.mark.parametrize("form", FORMATS)
def test_data_from_files_comes_with_a_split_and_a_model_that_fit(form: str, tmp_path: Path) -> None:
    spec = FORMATS[form](tmp_path)
    data = load(spec, tmp_path)
    assert data.name == spec
    assert data.train.y.dtype == torch.int64
    assert 0 <= int(data.train.y.min()) <= int(data.train.y.max()) < data.classes
    assert gd.split(specs.parse(data.split, gd.SPLITS, "split"), data, 1, key(2)).clients == 1
    if spec != "shakespeare":
        assert data.train.x.dtype == torch.float32
        assert nets.build(data.model, data.shape, data.classes)(data.train.x[:3]).shape == (min(3, TRAIN), data.classes)


def test_a_binary_cifar_is_read_only_when_it_is_whole(tmp_path: Path) -> None:
    facts = Facts((3, 32, 32), 10, (TRAIN, TEST))
    parts = [*zip(np.split(COLOUR[0], 5), np.split(DIGITS[0], 5), strict=True), (COLOUR[1], DIGITS[1])]
    paths = [tmp_path / f"{i}.bin" for i in range(6)]
    for path, (x, y) in zip(paths, parts, strict=True):
        path.write_bytes(records(x, y))
    train, test = read_cifar(paths, facts)
    assert np.array_equal(train.x, COLOUR[0].transpose(0, 3, 1, 2))
    assert np.array_equal(test.x, COLOUR[1].transpose(0, 3, 1, 2))
    assert (train.y.tolist(), test.y.tolist()) == (DIGITS[0].tolist(), DIGITS[1].tolist())
    whole = paths[2].read_bytes()
    for length in (0, 1, 3073, len(whole) - 3073, len(whole) - 1):
        paths[2].write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=f"{paths[2]} holds .* bytes, expected 12,292"):
            read_cifar(paths, facts)


def test_a_binary_cifar_100_has_the_coarse_label_first(tmp_path: Path) -> None:
    paths = [tmp_path / "train.bin", tmp_path / "test.bin"]
    for path, x in zip(paths, COLOUR, strict=True):
        fine = np.arange(len(x), dtype=np.uint8) + 70
        path.write_bytes(records(x, np.full(len(x), 19, dtype=np.uint8), fine))
    train, test = read_cifar(paths, Facts((3, 32, 32), 100, (TRAIN, TEST)))
    assert train.y.tolist() == list(range(70, 70 + TRAIN))
    assert np.array_equal(test.x, COLOUR[1].transpose(0, 3, 1, 2))


def test_emnist_is_turned_upright(tmp_path: Path) -> None:
    emnist_gz(tmp_path)
    raw = gzip.decompress((tmp_path / "emnist-letters-train-images-idx3-ubyte.gz").read_bytes())
    assert raw[16 : 16 + 28] == GREY[0][0][:, 0].tobytes(), "the file has columns first"


def test_the_names_that_copies_of_mnist_go_by_are_all_taken(tmp_path: Path) -> None:
    write_idx(tmp_path, GREY, DIGITS, [stem.replace("-idx", ".idx") for stem in image_sets.STEMS])
    assert len(load("mnist", tmp_path).train) == TRAIN


def test_normalising_is_dividing_by_255_then_shifting_then_scaling() -> None:
    x = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(3, axis=1)
    norm = Norm((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    for channel in range(3):
        mean, std = np.float32(norm.mean[channel]), np.float32(norm.std[channel])
        expected = (np.arange(256, dtype=np.float32) / np.float32(255) - mean) / std
        assert norm(x)[0, channel].flatten().tolist() == expected.tolist()
    assert norm.black() == tuple(norm(x)[0, :, 0, 0].tolist())


def test_the_statistics_of_a_paper_are_an_option(tmp_path: Path) -> None:
    fashion_npz(tmp_path)
    plain, fedmrn = (load(spec, tmp_path) for spec in ("fashion-mnist", "fashion-mnist:norm=fedmrn"))
    assert fedmrn.name == "fashion-mnist:norm=fedmrn"
    assert torch.equal(plain.train.x, fedmrn.train.x)
    shifted = (plain.test.x * 0.3530 + 0.2860 - 0.2868) / 0.3524
    assert torch.allclose(fedmrn.test.x, shifted, atol=1e-6)
    with pytest.raises(ConfigError, match="norm must be one of fedmrn, plain, got 'imagenet'"):
        load("fashion-mnist:norm=imagenet", tmp_path)
    with pytest.raises(ConfigError, match="'norm=plain' does not fit: write it as mnist"):
        load("mnist:norm=plain", tmp_path)


def test_the_cifars_are_augmented_by_default(tmp_path: Path) -> None:
    cifar10_npz(tmp_path)
    imagenet = load("cifar-10:norm=imagenet", tmp_path)
    assert imagenet.augment == gd.CropFlip(pad=4, fill=Norm((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)).black())
    bare = load("cifar-10:augment=no", tmp_path)
    assert bare.augment is None
    assert load(bare.name, tmp_path).augment is None
    fashion_npz(tmp_path)
    assert load("fashion-mnist", tmp_path).augment is None


# Owners.


def test_leaf_writers_are_the_groups_of_training_and_test_samples(tmp_path: Path) -> None:
    data = load(femnist_leaf(tmp_path), tmp_path)
    assert data.shape == (1, 28, 28)
    assert present(data.train.group).tolist() == present(data.test.group).tolist() == [0, 0, 0, 1, 1]
    assert data.train.y.tolist() == [60, 61, 60, 60, 61]
    assert data.train.x[4, 0, 0, :3].tolist() == [float(np.float32(v / 255)) for v in (1, 2, 3)]
    split = gd.split(gd.Natural(), data, 2, key(0))
    assert [split.test(client).tolist() for client in (0, 1)] == [[0, 1, 2], [3, 4]]


def test_leaf_users_have_the_same_number_in_both_folders(tmp_path: Path) -> None:
    data = load(shakespeare_leaf(tmp_path), tmp_path)
    assert data.shape == (80,)
    assert present(data.train.group).tolist() == [1, 1, 0]
    assert present(data.test.group).tolist() == [0]
    assert "".join(leaf.ALPHABET[i] for i in data.train.x[1]) == LINE[1:] + "d"
    assert [leaf.ALPHABET[i] for i in data.train.y] == ["d", " ", "!"]


def test_roles_are_cut_into_windows_and_split_in_time(tmp_path: Path) -> None:
    data = load(shakespeare_roles(tmp_path), tmp_path)
    hamlet = LINE + "\n" + LINE
    assert len(hamlet) - 80 == 81
    assert present(data.train.group).tolist() == [0] + [1] * 65, "the clown's one sample, Hamlet's first four fifths"
    assert present(data.test.group).tolist() == [1] * 16
    whole = [(hamlet[i : i + 80], hamlet[i + 80]) for i in range(81)]
    x = torch.cat([data.train.x[1:], data.test.x])
    y = torch.cat([data.train.y[1:], data.test.y])
    assert [("".join(leaf.ALPHABET[i] for i in a), leaf.ALPHABET[b]) for a, b in zip(x, y, strict=True)] == whole


def test_a_stride_takes_every_so_manyth_sample(tmp_path: Path) -> None:
    shakespeare_roles(tmp_path)
    every, some = (load(spec, tmp_path) for spec in ("shakespeare", "shakespeare:stride=7"))
    assert some.name == "shakespeare:stride=7"
    pooled = torch.cat([every.train.x[1:], every.test.x])
    assert torch.equal(torch.cat([some.train.x[1:], some.test.x]), pooled[::7])
    with pytest.raises(ConfigError, match="stride must be at least 1, got 0"):
        load("shakespeare:stride=0", tmp_path)


def test_the_alphabet_has_80_characters_and_others_are_spaces() -> None:
    assert len(set(leaf.ALPHABET)) == len(leaf.ALPHABET) == 80
    assert leaf.encode(leaf.ALPHABET).tolist() == list(range(80))
    assert {leaf.ALPHABET[i] for i in leaf.encode("$é\t\x00\u20ac\U0001f642")} == {" "}


def test_an_lstm_learns_from_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shakespeare_roles(tmp_path)
    monkeypatch.chdir(tmp_path)
    few = ["--clients", "1", "--rounds", "1", "--steps", "1", "--executor", "one-by-one"]
    assert main(["run", "fedmrn", "--data", "shakespeare", "--data-dir", str(tmp_path), *few]) == 0
