"""Small files of every format that data sets come in, written as their publishers write them."""

import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import savemat

from gossamer.core.random import key
from gossamer.tasks import data as gd
from gossamer.tasks.data import image_sets

TRAIN, TEST = 20, 5
DRAW = np.random.default_rng(0)
GREY = [DRAW.integers(0, 256, (n, 28, 28), dtype=np.uint8) for n in (TRAIN, TEST)]
COLOUR = [DRAW.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for n in (TRAIN, TEST)]
DIGITS = [np.arange(n, dtype=np.uint8) % 10 for n in (TRAIN, TEST)]


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_idx(
    folder: Path,
    x: list[np.ndarray],
    y: list[np.ndarray],
    stems: Sequence[str] = image_sets.STEMS,
    zipped: bool = False,
) -> None:
    for stem, array in zip(stems, (x[0], y[0], x[1], y[1]), strict=True):
        raw = idx_bytes(array)
        write(folder / (stem + ".gz" * zipped), gzip.compress(raw, mtime=0) if zipped else raw)


def string(content: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(content)) + content


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def batch_bytes(x: np.ndarray, y: np.ndarray, name: bytes = b"labels", extra: bytes = b"") -> bytes:
    """A batch as Python 2 pickled it; ``x`` has channels last."""
    rows = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R(K\x01"
    array += number(len(rows)) + number(rows.shape[1]) + b"\x86cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
    array += b"(K\x03" + string(b"|") + b"NNN" + number(-1) * 2 + b"K\x00tb\x89" + string(rows.tobytes()) + b"tb"
    labels = b"](" + b"".join(number(int(label)) for label in y) + b"e"
    held = string(b"batch_label") + string(b"a batch") + string(name) + labels + string(b"data") + array
    return b"\x80\x02}(" + held + extra + b"u."


def batches(x: list[np.ndarray], y: list[np.ndarray]) -> dict[str, bytes]:
    """Five training batches and a test batch of CIFAR-10."""
    parts = zip(np.split(x[0], 5), np.split(y[0], 5), strict=True)
    train = {f"data_batch_{i}": batch_bytes(*part) for i, part in enumerate(parts, 1)}
    return train | {"test_batch": batch_bytes(x[1], y[1])}


def records(x: np.ndarray, *labels: np.ndarray) -> bytes:
    return np.concatenate(
        [*(y[:, None] for y in labels), x.transpose(0, 3, 1, 2).reshape(len(x), -1)], axis=1
    ).tobytes()


def tar_bytes(files: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), mtime=0)


def leaf_bytes(users: dict[str, tuple[list[Any], list[Any]]]) -> bytes:
    counts = [len(y) for _, y in users.values()]
    held = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    return json.dumps({"users": list(users), "num_samples": counts, "user_data": held}).encode()


def fashion_npz(root: Path) -> str:
    np.savez_compressed(
        root / "fashion_mnist.npz", x_train=GREY[0], y_train=DIGITS[0], x_test=GREY[1], y_test=DIGITS[1]
    )
    return "fashion-mnist"


def mnist_idx(root: Path) -> str:
    write_idx(root / "mnist", GREY, DIGITS)
    return "mnist"


def mnist_gz(root: Path) -> str:
    write_idx(root / "MNIST/raw", GREY, DIGITS, zipped=True)
    return "mnist"


def emnist_gz(root: Path) -> str:
    y = [np.arange(1, n + 1, dtype=np.uint8) for n in (TRAIN, TEST)]
    write_idx(root, [x.swapaxes(1, 2) for x in GREY], y, image_sets.LETTERS, zipped=True)
    return "emnist-letters"


def emnist_zip(root: Path) -> str:
    emnist_gz(root / "aside")
    with zipfile.ZipFile(root / "gzip.zip", "w") as archive:
        for path in sorted((root / "aside").iterdir()):
            archive.write(path, f"gzip/{path.name}")
            path.unlink()
    (root / "aside").rmdir()
    return "emnist-letters"


def cifar10_npz(root: Path) -> str:
    np.savez(root / "cifar10.npz", x_train=COLOUR[0], y_train=DIGITS[0], x_test=COLOUR[1], y_test=DIGITS[1])
    return "cifar-10"


def cifar10_folder(root: Path) -> str:
    for name, content in batches(COLOUR, DIGITS).items():
        write(root / "cifar-10-batches-py" / name, content)
    return "cifar-10"


def cifar10_tar(root: Path) -> str:
    files = {f"cifar-10-batches-py/{name}": content for name, content in batches(COLOUR, DIGITS).items()}
    write(root / "cifar-10-python.tar.gz", tar_bytes({"cifar-10-batches-py/readme.html": b"read me", **files}))
    return "cifar-10"


def cifar100_folder(root: Path) -> str:
    for name, x, n in zip(("train", "test"), COLOUR, (TRAIN, TEST), strict=True):
        coarse = string(b"coarse_labels") + b"](" + number(0) * n + b"e"
        write(root / "cifar-100-python" / name, batch_bytes(x, np.arange(n) + 80, b"fine_labels", coarse))
    return "cifar-100"


def svhn_mat(root: Path, compressed: bool = False) -> str:
    for name, x, y in zip(("train", "test"), COLOUR, DIGITS, strict=True):
        held = {"X": x.transpose(1, 2, 3, 0), "y": np.where(y == 0, 10, y)[:, None].astype(np.uint8)}
        savemat(root / f"{name}_32x32.mat", held, do_compression=compressed)
    return "svhn"


WRITERS = {"ada": 3, "bob": 2}


def femnist_leaf(root: Path) -> str:
    for part in ("train", "test"):
        for user, n in WRITERS.items():
            x = [[((i + p) % 256) / 255 for p in range(784)] for i in range(n)]
            write(root / f"femnist/data/{part}/{user}.json", leaf_bytes({user: (x, [60 + i % 2 for i in range(n)])}))
    return "femnist"


LINE = "Now is the winter of our discontent made glorious summer by this sun of York; an"


def shakespeare_leaf(root: Path) -> str:
    speeches = {"RICHARD": ([LINE, LINE[1:] + "d"], ["d", " "]), "ANNE": ([LINE[::-1]], ["!"])}
    write(root / "shakespeare/train/all_data_train_9.json", leaf_bytes(speeches))
    write(root / "shakespeare/test/all_data_test_9.json", leaf_bytes({"ANNE": ([LINE], ["d"])}))
    return "shakespeare"


def shakespeare_roles(root: Path) -> str:
    roles = {"Ghost": ["", "Mark me."], "Hamlet": [LINE, "", LINE], "Clown": [LINE[:79], "x"]}
    write(root / "tinyshakespeare_roles.json", json.dumps({"source": "here", "roles": roles}).encode())
    return "shakespeare"


FORMATS: dict[str, Callable[[Path], str]] = {
    "npz": fashion_npz,
    "idx": mnist_idx,
    "idx.gz": mnist_gz,
    "emnist": emnist_gz,
    "emnist.zip": emnist_zip,
    "cifar npz": cifar10_npz,
    "cifar-10": cifar10_folder,
    "cifar-10.tar.gz": cifar10_tar,
    "cifar-100": cifar100_folder,
    "mat": svhn_mat,
    "mat, compressed": partial(svhn_mat, compressed=True),
    "femnist": femnist_leaf,
    "shakespeare": shakespeare_leaf,
    "roles": shakespeare_roles,
}
COMPRESSED = ("npz", "idx.gz", "emnist", "emnist.zip", "cifar npz", "cifar-10.tar.gz")


def load(spec: str, root: Path) -> gd.Data:
    return gd.load(spec, data_dir=root, key=key(0))


def tensors(data: gd.Data) -> list[Any]:
    return [part for samples in (data.train, data.test) for part in (samples.x, samples.y, samples.group)]


def same(one: gd.Data, two: gd.Data) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(tensors(one), tensors(two), strict=True) if a is not None)


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())
