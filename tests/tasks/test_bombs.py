"""Small files that claim, or expand to, far more than a set has: refused by name, without the memory for it."""

import gzip
import io
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from gossamer.core import files
from gossamer.core.errors import ConfigError
from gossamer.tasks.data import readers
from gossamer.tasks.data.cifar import read_cifar, read_cifar_tar
from gossamer.tasks.data.leaf import read_leaf, read_texts
from gossamer.tasks.data.readers import SLACK, Facts

GREY = Facts((1, 28, 28), 10, (8, 4))
COLOUR = Facts((3, 32, 32), 10, (10, 2))
BOMB = 8 * SLACK
"""Bytes that each file would expand to: 128 MiB."""

ROOM = 4 * SLACK
"""Bytes that reading may take: what the set may have, a few times."""


def zeros(size: int = BOMB, pack: Callable[[], "zlib._Compress"] = zlib.compressobj) -> bytes:
    """Zeros, compressed piece by piece."""
    engine, piece = pack(), bytes(2**20)
    return b"".join(engine.compress(piece) for _ in range(size // len(piece))) + engine.flush()


def gzipped(start: bytes = b"") -> bytes:
    """A gzip file of zeros after some bytes."""
    made = io.BytesIO()
    with gzip.GzipFile(fileobj=made, mode="wb", compresslevel=1) as stream:
        stream.write(start)
        for _ in range(BOMB // 2**20):
            stream.write(bytes(2**20))
    return made.getvalue()


def zipped(path: Path, name: str, start: bytes = b"", claim: int | None = None) -> None:
    """A zip archive with zeros after some bytes, which may claim another size."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open(name, "w") as stream:
            stream.write(start)
            for _ in range(BOMB // 2**20):
                stream.write(bytes(2**20))
        for other in readers.NAMES[1:]:
            archive.writestr(f"{other}.npy", b"")
    if claim is not None:
        real = struct.pack("<I", BOMB + len(start))
        path.write_bytes(path.read_bytes().replace(real, struct.pack("<I", claim)))


def npz_bomb(root: Path) -> tuple[Path, Callable[[], object]]:
    path = root / "mnist.npz"
    zipped(path, "x_train.npy", npy((BOMB,)))
    return path, lambda: readers.read_npz([path], GREY)


def npz_liar(root: Path) -> tuple[Path, Callable[[], object]]:
    """It claims to be small."""
    path = root / "mnist.npz"
    zipped(path, "x_train.npy", claim=1000)
    return path, lambda: readers.read_npz([path], GREY)


def npy_claim(root: Path) -> tuple[Path, Callable[[], object]]:
    """An array that claims 64 GB, and has none."""
    path = root / "mnist.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in readers.NAMES:
            archive.writestr(f"{name}.npy", npy((2**36,)))
    return path, lambda: readers.read_npz([path], GREY)


def npy(shape: tuple[int, ...]) -> bytes:
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return made.getvalue()


def idx_bomb(root: Path) -> tuple[Path, Callable[[], object]]:
    path = root / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzipped(bytes((0, 0, 8, 3)) + struct.pack(">III", BOMB // 784, 28, 28)))
    return path, lambda: readers.read_idx([path] * 4, GREY)


def emnist_bomb(root: Path) -> tuple[Path, Callable[[], object]]:
    """A gzip file in a zip archive."""
    path = root / "gzip.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images", gzipped(bytes((0, 0, 8, 3)) + struct.pack(">III", BOMB // 784, 28, 28)))
    return path, lambda: readers.read_idx_zip([path], GREY, members=["images"] * 4)


def tar_bomb(root: Path, name: str = "data_batch_1") -> tuple[Path, Callable[[], object]]:
    path, entry = root / "cifar-10-python.tar.gz", tarfile.TarInfo(name)
    entry.size = BOMB
    path.write_bytes(gzipped(entry.tobuf()))
    return path, lambda: read_cifar_tar([path], COLOUR, members=["data_batch_1", "test_batch"])


def tar_tail(root: Path) -> tuple[Path, Callable[[], object]]:
    """What follows the end of an archive."""
    path = root / "cifar-10-python.tar.gz"
    path.write_bytes(gzipped(bytes(1024)))
    return path, lambda: read_cifar_tar([path], COLOUR, members=["data_batch_1", "test_batch"])


def mat_bomb(root: Path) -> tuple[Path, Callable[[], object]]:
    path, packed = root / "train_32x32.mat", zeros()
    path.write_bytes(bytes(124) + struct.pack("<H", 0x0100) + b"IM" + struct.pack("<II", 15, len(packed)) + packed)
    return path, lambda: readers.read_mat([path, path], COLOUR)


def pickle_table(root: Path) -> tuple[Path, Callable[[], object]]:
    """A pickle of few bytes with an object of a large number, for which pickle makes a table of gigabytes."""
    path = root / "data_batch_1"
    path.write_bytes(b"\x80\x02}r" + struct.pack("<I", 2**28) + b".")
    other = path.with_name("test_batch")
    other.write_bytes(b"")
    return path, lambda: read_cifar([path, other], COLOUR)


def plain_giant(root: Path) -> tuple[Path, Callable[[], object]]:
    """A file with holes: large, and nothing of it on the disk."""
    path = root / "train-images-idx3-ubyte"
    with path.open("wb") as file:
        file.truncate(2**40)
    return path, lambda: readers.read_idx([path] * 4, GREY)


BOMBS = [npz_bomb, npz_liar, npy_claim, idx_bomb, emnist_bomb, tar_bomb, tar_tail, mat_bomb, pickle_table, plain_giant]


@pytest.mark.parametrize("make", BOMBS)
def test_a_bomb_is_refused_by_name_within_little_memory(
    make: Callable[[Path], tuple[Path, Callable[[], object]]], tmp_path: Path
) -> None:
    path, read = make(tmp_path)
    assert make is plain_giant or path.stat().st_size < SLACK
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError) as refused:
            read()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(path) in str(refused.value)
    assert peak < ROOM, f"{peak:,} bytes"


def test_what_fits_is_read_whole() -> None:
    data = bytes(range(256)) * 20_000
    assert readers.expanded(gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(data))), len(data)) == data
    assert readers.inflated(zlib.compress(data), len(data)) == data
    with pytest.raises(ValueError, match=f"more than {len(data) - 1:,} bytes"):
        readers.expanded(gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(data))), len(data) - 1)
    with pytest.raises(ValueError, match="more than the"):
        readers.inflated(zlib.compress(data), len(data) - 1)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_brackets_of_json_are_refused(opening: str, tmp_path: Path) -> None:
    deep = opening * 100_000
    for parse in (files.parse_json, files.json_of):
        with pytest.raises(ValueError, match="its brackets are nested too deeply"):
            parse(deep.encode())
    (tmp_path / "all.json").write_text(deep)
    for read in (
        lambda: read_leaf([tmp_path], lambda x, y: (np.zeros(1), np.zeros(1))),
        lambda: read_texts(tmp_path / "all.json"),
    ):
        with pytest.raises(ConfigError, match=r"all\.json is damaged.* nested too deeply"):
            read()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i4", "f4", "f8", "i8", "u8"])
def test_matlab_files_are_read_as_scipy_reads_them(dtype: str, compress: bool) -> None:
    rng, made = np.random.default_rng(3), io.BytesIO()
    arrays = {name: rng.integers(0, 9, shape).astype(dtype) for name, shape in (("X", (3, 2, 4, 5)), ("y", (5, 1)))}
    savemat(made, {**arrays, "other": np.arange(3), "text": "words"}, do_compression=compress)
    found, theirs = readers.variables(made.getvalue(), {"X", "y"}, SLACK), loadmat(io.BytesIO(made.getvalue()))
    assert found.keys() == {"X", "y"}
    for name, array in found.items():
        assert array.dtype == theirs[name].dtype
        assert np.array_equal(array, theirs[name])


def test_a_leaf_folder_without_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text('{"users": [], "num_samples": [], "user_data": {}}')
    with pytest.raises(ConfigError, match=f"{tmp_path} holds no samples"):
        read_leaf([tmp_path, tmp_path], lambda x, y: (np.zeros(1), np.zeros(1)))
