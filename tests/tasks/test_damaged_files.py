"""A file that is damaged, cut short, altered, mislabelled or malicious is refused by name, and never half read."""

import gzip
import hashlib
import pickle
import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from gossamer.core.errors import ConfigError
from gossamer.tasks import data as gd
from gossamer.tasks.data import image_sets
from gossamer.tasks.data.cifar import unpickled, unpickled_array
from gossamer.tasks.data.image_sets import check_unaltered
from gossamer.tasks.data.leaf import pixels
from gossamer.tasks.data.readers import Facts, Images, images, read_npz
from helpers.small_files import (
    COLOUR,
    COMPRESSED,
    DIGITS,
    FORMATS,
    GREY,
    LINE,
    TEST,
    TRAIN,
    batch_bytes,
    cifar10_folder,
    cifar10_npz,
    cifar100_folder,
    femnist_leaf,
    files,
    idx_bytes,
    leaf_bytes,
    load,
    mnist_idx,
    number,
    same,
    shakespeare_leaf,
    string,
    write,
)

# What is damaged is named, and not half read.


def refused(spec: str, root: Path, path: Path, before: gd.Data) -> bool:
    """Whether a set is refused with the name of the damaged file; read otherwise it must be what it was."""
    try:
        after = load(spec, root)
    except ConfigError as error:
        message = str(error)
    else:
        assert same(before, after)
        return False
    assert str(path) in message
    return True


def lengths(size: int) -> list[int]:
    some = random.Random(0).sample(range(size), min(size, 12))
    return sorted({0, 1, 3, 4, 8, 15, 16, size // 2, size - 9, size - 1, *some} & set(range(size)))


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_cut_short_anywhere_is_refused_by_name(form: str, tmp_path: Path) -> None:
    spec = FORMATS[form](tmp_path)
    before = load(spec, tmp_path)
    for path in files(tmp_path):
        whole = path.read_bytes()
        for length in lengths(len(whole)):
            path.write_bytes(whole[:length])
            # A MATLAB file ends in up to seven bytes of padding, which may go.
            assert refused(spec, tmp_path, path, before) or (path.suffix == ".mat" and length >= len(whole) - 8), length
        path.write_bytes(whole)
    assert same(load(spec, tmp_path), before)


@pytest.mark.parametrize("form", COMPRESSED)
def test_a_bit_flipped_under_compression_is_refused_by_name(form: str, tmp_path: Path) -> None:
    spec = FORMATS[form](tmp_path)
    before = load(spec, tmp_path)
    path = max(files(tmp_path), key=lambda path: path.stat().st_size)
    whole = path.read_bytes()
    refusals = 0
    for index in random.Random(1).sample(range(len(whole)), 40):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1 << index % 8]) + whole[index + 1 :])
        refusals += refused(spec, tmp_path, path, before)
    assert refusals >= 38, "a few bits, such as a time stamp's, mean nothing"


@pytest.mark.parametrize("form", FORMATS)
def test_noise_is_refused_by_name_whatever_it_is_called(form: str, tmp_path: Path) -> None:
    spec = FORMATS[form](tmp_path)
    before = load(spec, tmp_path)
    for path in files(tmp_path):
        whole = path.read_bytes()
        path.write_bytes(random.Random(2).randbytes(5000))
        assert refused(spec, tmp_path, path, before)
        path.write_bytes(whole + b"more")
        # Archives and MATLAB files store their length.
        assert refused(spec, tmp_path, path, before) or path.suffix in (".npz", ".zip", ".mat")
        path.write_bytes(whole)


@pytest.mark.parametrize("form", FORMATS)
def test_a_missing_file_is_named_with_its_folder(form: str, tmp_path: Path) -> None:
    spec = FORMATS[form](tmp_path)
    for path in files(tmp_path):
        if path.parent.name in ("train", "test") and spec == "femnist":
            continue
        whole = path.read_bytes()
        path.unlink()
        with pytest.raises(ConfigError) as error:
            load(spec, tmp_path)
        assert path.name.removesuffix(".gz") in str(error.value) or f"{path.parent} holds no .json" in str(error.value)
        assert str(path.parent) in str(error.value)
        path.write_bytes(whole)


def test_swapped_files_are_refused(tmp_path: Path) -> None:
    mnist_idx(tmp_path)
    images, labels = (tmp_path / "mnist" / stem for stem in image_sets.STEMS[:2])
    x, y = images.read_bytes(), labels.read_bytes()
    images.write_bytes(y)
    with pytest.raises(ConfigError, match=f"{images} holds 1 dimensions, expected 3: labels where images should be"):
        load("mnist", tmp_path)
    images.write_bytes(x)
    labels.write_bytes(x)
    with pytest.raises(ConfigError, match=f"{labels} holds 3 dimensions, expected 1: images where labels should be"):
        load("mnist", tmp_path)
    labels.write_bytes((tmp_path / "mnist" / image_sets.STEMS[3]).read_bytes())
    with pytest.raises(ConfigError, match=f"{images} holds 20 images and {labels} 5 labels"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "begins with nothing"),
        (b"\x00\x00\x0d\x03" + bytes(12), "no idx file: it begins with 00 00 0d 03"),
        (idx_bytes(np.zeros((0, 28, 28), np.uint8)), "holds 0 images"),
        (idx_bytes(np.zeros((3, 28, 27), np.uint8)), "holds samples of 1 x 28 x 27"),
        (idx_bytes(np.zeros((3, 28, 28), np.uint8)) + b"x", "too long: 2,369 bytes, expected 2,368"),
        (bytes((0, 0, 8, 3)) + b"\xff" * 12, "cut short: 16 bytes, expected 79,228,162,458,924,105,385,300,197,391"),
    ],
)
def test_an_idx_header_must_fit_its_file(raw: bytes, reason: str, tmp_path: Path) -> None:
    mnist_idx(tmp_path)
    path = tmp_path / "mnist" / image_sets.STEMS[0]
    path.write_bytes(raw)
    if "images" in reason or "samples" in reason:
        count = int.from_bytes(raw[4:8], "big")
        (tmp_path / "mnist" / image_sets.STEMS[1]).write_bytes(idx_bytes(np.zeros(count, np.uint8)))
    with pytest.raises(ConfigError) as error:
        load("mnist", tmp_path)
    assert f"{path}" in str(error.value)
    assert reason in str(error.value)


def bad_labels(form: str, root: Path) -> Path:
    """Put a label out of range into a valid set; the file it is in."""
    wrong = [np.full(len(y), 10, dtype=np.uint8) for y in DIGITS]
    if form == "npz":
        path = root / "fashion_mnist.npz"
        np.savez(path, x_train=GREY[0], y_train=DIGITS[0], x_test=GREY[1], y_test=wrong[1])
    elif form == "idx":
        path = root / "mnist" / image_sets.STEMS[3]
        path.write_bytes(idx_bytes(wrong[1]))
    elif form == "emnist":
        path = root / f"{image_sets.LETTERS[1]}.gz"
        path.write_bytes(gzip.compress(idx_bytes(np.zeros(TRAIN, np.uint8))))
    elif form == "cifar-10":
        path = root / "cifar-10-batches-py/data_batch_4"
        path.write_bytes(batch_bytes(COLOUR[0][:4], wrong[0][:4]))
    elif form == "mat":
        path = root / "test_32x32.mat"
        savemat(path, {"X": COLOUR[1].transpose(1, 2, 3, 0), "y": np.full((TEST, 1), 11, np.uint8)})
    else:
        path = root / "femnist/data/test/ada.json"
        path.write_bytes(leaf_bytes({"ada": ([[0.5] * 784], [62])}))
    return path


@pytest.mark.parametrize("form", ["npz", "idx", "emnist", "cifar-10", "mat", "femnist"])
def test_a_label_out_of_range_is_refused_by_name(form: str, tmp_path: Path) -> None:
    spec = FORMATS[form](tmp_path)
    path = bad_labels(form, tmp_path)
    with pytest.raises(ConfigError, match="label") as error:
        load(spec, tmp_path)
    assert str(path) in str(error.value)


def test_one_cifar_is_not_taken_for_the_other(tmp_path: Path) -> None:
    cifar10_folder(tmp_path)
    path = tmp_path / "cifar-10-batches-py/test_batch"
    path.write_bytes(batch_bytes(COLOUR[1], DIGITS[1], b"fine_labels"))
    with pytest.raises(ConfigError, match=f"{path} holds no labels: is it a batch of the other CIFAR"):
        load("cifar-10", tmp_path)
    cifar100_folder(tmp_path)
    path = tmp_path / "cifar-100-python/train"
    path.write_bytes(batch_bytes(COLOUR[0], DIGITS[0]))
    with pytest.raises(ConfigError, match=f"{path} holds no fine_labels"):
        load("cifar-100", tmp_path)


def test_mnist_as_colour_or_floats_is_refused(tmp_path: Path) -> None:
    for x in (COLOUR, [part / 255 for part in GREY], [part.reshape(len(part), -1) for part in GREY]):
        np.savez(tmp_path / "mnist.npz", x_train=x[0], y_train=DIGITS[0], x_test=x[1], y_test=DIGITS[1])
        with pytest.raises(ConfigError, match=r"mnist\.npz, x_train, holds .* expected images of 1 x 28 x 28 in uint8"):
            load("mnist", tmp_path)


def test_an_npz_must_hold_four_plain_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", x_train=GREY[0], y_train=DIGITS[0], x_test=GREY[1])
    with pytest.raises(ConfigError, match=r"mnist\.npz lacks y_test"):
        load("mnist", tmp_path)
    objects = np.array([Trap()] * TRAIN, dtype=object)
    np.savez(tmp_path / "mnist.npz", x_train=GREY[0], y_train=objects, x_test=GREY[1], y_test=DIGITS[1])
    with pytest.raises(ConfigError, match=r"mnist\.npz is damaged, or is no npz archive: Object arrays"):
        load("mnist", tmp_path)
    assert Trap.sprung == 0


def test_more_images_than_the_set_has_are_refused() -> None:
    facts = Facts((1, 28, 28), 10, (TRAIN - 1, TEST))
    with pytest.raises(ConfigError, match="x holds 20 images, expected 19 or, of a subset, fewer"):
        images(GREY[0][:, None], DIGITS[0], ("x", "y"), 0, facts)


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([[0.5] * 783], [1], "cannot reshape"),
        ([[0.5] * 784] * 2, [1], "has 2 inputs and 1 labels"),
        ([[1.5] * 784], [1], "784 numbers from 0 to 1"),
        ([[float("nan")] * 784], [1], "784 numbers from 0 to 1"),
        ([["a"] * 784], [1], "could not convert"),
        ([[0.5] * 784], [1.5], "whole number from 0 to 61"),
        ([[0.5] * 784], [-1], "whole number from 0 to 61"),
    ],
)
def test_a_writer_whose_samples_are_wrong_is_refused(x: list[Any], y: list[Any], reason: str, tmp_path: Path) -> None:
    femnist_leaf(tmp_path)
    path = tmp_path / "femnist/data/train/bob.json"
    path.write_bytes(leaf_bytes({"bob": (x, y)}))
    with pytest.raises(ConfigError, match=reason) as error:
        load("femnist", tmp_path)
    assert str(path) in str(error.value)


def test_a_leaf_file_must_agree_with_itself_and_with_the_others(tmp_path: Path) -> None:
    shakespeare_leaf(tmp_path)
    path = tmp_path / "shakespeare/test/all_data_test_9.json"
    for x, y in (([LINE[1:]], ["d"]), ([LINE], ["dd"]), ([LINE], [""])):
        path.write_bytes(leaf_bytes({"ANNE": (x, y)}))
        with pytest.raises(ConfigError, match=f"{path} is damaged, .*: a sample must have 80 characters"):
            load("shakespeare", tmp_path)
    path.write_bytes(b'{"users": ["ANNE"], "num_samples": [1], "user_data": {}}')
    with pytest.raises(ConfigError, match=f"{path} names 1 users, counts 1 and holds 0"):
        load("shakespeare", tmp_path)
    path.write_bytes(b"[]")
    with pytest.raises(ConfigError, match=f"{path} is damaged, or is no json file of LEAF"):
        load("shakespeare", tmp_path)
    write(path, leaf_bytes({"ANNE": ([LINE], ["d"])}))
    write(path.with_name("more.json"), leaf_bytes({"ANNE": ([LINE], ["d"])}))
    with pytest.raises(ConfigError, match=r"more\.json holds the user ANNE, who is also in .*all_data_test_9\.json"):
        load("shakespeare", tmp_path)


def test_roles_must_be_lists_of_speeches(tmp_path: Path) -> None:
    for content in (b'{"roles": {"A": "text"}}', b'{"roles": {"A": [3]}}', b'{"plays": {}}', b"3"):
        write(tmp_path / "tinyshakespeare_roles.json", content)
        with pytest.raises(ConfigError, match=r"roles\.json is damaged, or is no file of roles"):
            load("shakespeare", tmp_path)
    write(tmp_path / "tinyshakespeare_roles.json", b'{"roles": {"A": ["too short"]}}')
    with pytest.raises(ConfigError, match=r"roles\.json has no role with more than 80 characters"):
        load("shakespeare", tmp_path)


def test_a_folder_or_a_locked_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").mkdir()
    with pytest.raises(ConfigError, match=r"mnist\.npz cannot be read: Is a directory"):
        load("mnist", tmp_path)


# What is altered is refused, where the original is known.


def test_a_set_of_full_size_must_equal_the_original() -> None:
    x, y = ([a.reshape(-1, 1, 28, 28) for a in GREY], [a.astype(np.int64) for a in DIGITS])
    digests = [hashlib.sha256(a.tobytes()).hexdigest() for a in (GREY[0], DIGITS[0], GREY[1], DIGITS[1])]
    facts = Facts((1, 28, 28), 10, (TRAIN, TEST), arrays=tuple(digests))
    parts = [Images(x[i], y[i], f"x{i}", f"y{i}") for i in (0, 1)]
    check_unaltered("this", facts, *parts)
    for at, part in enumerate(parts):
        changed = part.x.copy()
        changed[3, 0, 7, 7] ^= 1
        swapped = part.y.copy()
        swapped[[0, 1]] = swapped[[1, 0]]
        for bad, file in ((part._replace(x=changed), f"x{at}"), (part._replace(y=swapped), f"y{at}")):
            train, test = (bad, parts[1]) if at == 0 else (parts[0], bad)
            with pytest.raises(ConfigError, match=f"{file} is altered or belongs to another set: .* not those of this"):
                check_unaltered("this", facts, train, test)
            subset = replace(facts, counts=(TRAIN + 1, TEST + 1))
            check_unaltered("this", subset, train, test)


def test_digests_of_colour_are_taken_with_channels_last() -> None:
    part = Images(COLOUR[0].transpose(0, 3, 1, 2), DIGITS[0].astype(np.int64), "x", "y")
    digests = tuple(hashlib.sha256(a.tobytes()).hexdigest() for a in (COLOUR[0], DIGITS[0])) * 2
    check_unaltered("this", Facts((3, 32, 32), 10, (TRAIN, TRAIN), arrays=digests), part, part)


def test_a_whole_batch_or_matlab_file_must_be_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form, image_set, name in (
        ("cifar-10", image_sets.Cifar10, "cifar-10-batches-py/data_batch_1"),
        ("cifar-100", image_sets.Cifar100, "cifar-100-python/train"),
        ("mat", image_sets.Svhn, "train_32x32.mat"),
    ):
        spec = FORMATS[form](tmp_path)
        facts = replace(image_set.whole.facts, counts=(TRAIN, TEST), arrays=())
        monkeypatch.setattr(image_set, "whole", replace(image_set.whole, facts=facts))
        with pytest.raises(ConfigError, match=f"{tmp_path / name} is altered: the MD5 of the original file"):
            load(spec, tmp_path)


def test_a_full_mnist_that_is_not_mnist_is_refused(tmp_path: Path) -> None:
    x, y = (
        [np.zeros((n, 28, 28), np.uint8) for n in (60_000, 10_000)],
        [np.zeros(n, np.uint8) for n in (60_000, 10_000)],
    )
    np.savez(tmp_path / "mnist.npz", x_train=x[0], y_train=y[0], x_test=x[1], y_test=y[1])
    with pytest.raises(ConfigError, match=r"mnist\.npz, x_train, is altered or belongs to another set"):
        load("mnist", tmp_path)


# Nothing in a pickle is run.


class Trap:
    sprung = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Trap.spring, ()

    @staticmethod
    def spring() -> None:
        Trap.sprung += 1


def test_the_batches_of_these_tests_are_what_numpy_pickles() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy has since moved its function, and warns
        found = pickle.loads(batch_bytes(COLOUR[0], DIGITS[0]), encoding="bytes")
    assert found[b"labels"] == DIGITS[0].tolist()
    assert np.array_equal(found[b"data"], unpickled_array(unpickled(batch_bytes(COLOUR[0], DIGITS[0]))[b"data"]))


@pytest.mark.parametrize(
    "value",
    [
        pickle.dumps(Trap(), protocol=2)[2:-1],
        b"cos\nsystem\n" + string(b"touch harmed") + b"\x85R",
        b"cbuiltins\neval\n" + string(b"1") + b"\x85R",
        b"c__builtin__\neval\n" + string(b"1") + b"\x85R",
        b"cnumpy\nload\n" + string(b"x") + b"\x85R",
        b"(" + string(b"touch harmed") + b"ios\nsystem\n",
        b"cnumpy\ndtype.type\n)R",
        b"cnumpy\nndarray\n}(" + string(b"shape") + b"K\x01ub",
        b"cnumpy\nndarray\n)\x81",
        b"Pbatch\n",
    ],
)
def test_a_malicious_batch_is_refused_and_not_run(
    value: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cifar10_folder(tmp_path)
    path = tmp_path / "cifar-10-batches-py/data_batch_2"
    path.write_bytes(batch_bytes(COLOUR[0][:4], DIGITS[0][:4], extra=string(b"extra") + value))
    with pytest.raises(ConfigError, match=f"{path} is damaged, or is no CIFAR python batch"):
        load("cifar-10", tmp_path)
    assert Trap.sprung == 0
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"cnumpy\ndtype\n" + string(b"u1"), b"cnumpy\ndtype\n" + string(b"O8")),
        (number(4) + number(3072), number(2) + number(3072)),
        (number(4) + number(3072), number(-1) + number(3072 * 4)),
        (number(4) + number(3072), number(3) + number(4096)),
        (string(b"data"), string(b"date")),
        (b"](" + number(0), b"](" + number(256)),
        (b"](" + number(0), b"](" + number(-1)),
        (b"](" + number(0), b"](" + string(b"0")),
    ],
)
def test_a_batch_with_a_wrong_shape_of_its_array_is_refused(old: bytes, new: bytes, tmp_path: Path) -> None:
    cifar10_folder(tmp_path)
    path = tmp_path / "cifar-10-batches-py/data_batch_1"
    raw = path.read_bytes()
    assert raw.count(old) == 1
    path.write_bytes(raw.replace(old, new))
    with pytest.raises(ConfigError) as error:
        load("cifar-10", tmp_path)
    assert str(path) in str(error.value)


def test_leaf_pixels_of_nobody_are_no_samples() -> None:
    x, y = pixels([], [])
    assert (x.shape, y.shape) == ((0, 1, 28, 28), (0,))


def test_npz_members_are_read_to_their_checksum(tmp_path: Path) -> None:
    cifar10_npz(tmp_path)
    path = tmp_path / "cifar10.npz"
    raw = bytearray(path.read_bytes())
    raw[raw.find(COLOUR[0].tobytes()[:64]) + 5] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"cifar10\.npz is damaged, or is no npz archive: Bad CRC-32"):
        read_npz([path], image_sets.CIFAR_10.facts)
