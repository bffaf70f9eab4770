"""Public image sets: MNIST and variants, SVHN, CIFAR. To add one, write an ``ImageSet`` and a class with its options.

A set is read from its files, verified and normalized. Pixels become (value / 255 - mean) / std in float32, per channel.
The norm ``plain`` uses the set's own statistics for training and test images. Papers with other statistics have named
norms. Checksums of downloads are the same as torchvision's. Digests of arrays were computed from the original files.
"""

import hashlib
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import ConfigError
from gossamer.core.random import Key
from gossamer.tasks.data.cifar import read_cifar, read_cifar_tar
from gossamer.tasks.data.locate import FileLayout, Remote, find, folder
from gossamer.tasks.data.readers import Bytes, Facts, Images, read_idx, read_idx_zip, read_mat, read_npz
from gossamer.tasks.data.samples import CropFlip, Data, Samples

Reader = Callable[[Sequence[Path], Facts], tuple[Images, Images]]


class Norm(NamedTuple):
    """Mean and standard deviation per channel, of values in [0, 1]; a single value applies to all channels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, x: Bytes) -> Tensor:
        """Normalize images of bytes."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in self)
        whole = torch.from_numpy(np.require(x, requirements="W")).contiguous()  # torch needs a writable array
        return whole.float().div_(255).sub_(mean).div_(std)

    def black(self) -> tuple[float, ...]:
        """Return the normalized value of a black pixel."""
        return tuple(((0 - torch.tensor(self.mean)) / torch.tensor(self.std)).tolist())


@dataclass(frozen=True)
class ImageSet:
    """A public image set: its known facts, file layouts, downloads, normalizations and default model."""

    name: str
    facts: Facts
    layouts: tuple[FileLayout[Reader], ...]
    remotes: tuple[Remote, ...]
    norms: Mapping[str, tuple[Norm, Norm]]
    model: str

    def load(self, data_dir: Path | None, norm: str = "plain", augment: bool = False) -> Data:
        """Load the set with the named statistics; with ``augment`` training images are shifted and mirrored."""
        found = find(self.name, folder(data_dir), self.layouts, self.remotes)
        train, test = found.read(found.paths, self.facts)
        check_unaltered(self.name, self.facts, train, test)
        train_norm, test_norm = self.norms[norm]
        return Data(
            self.name,
            Samples(train_norm(train.x), torch.from_numpy(train.y)),
            Samples(test_norm(test.x), torch.from_numpy(test.y)),
            self.facts.classes,
            split="dirichlet:0.3",
            model=self.model,
            augment=CropFlip(fill=train_norm.black()) if augment else None,
        )


def check_unaltered(name: str, facts: Facts, train: Images, test: Images) -> None:
    """Refuse a complete set whose arrays differ from the known digests; subsets cannot be verified."""
    known = iter(facts.arrays)
    for part, whole in zip((train, test), facts.counts, strict=True):
        for array, file, digest in ((part.x, part.x_file, next(known, "")), (part.y, part.y_file, next(known, ""))):
            if not digest or len(array) != whole:
                continue
            last = np.moveaxis(array, 1, -1) if array.ndim == 4 else array
            if hashlib.sha256(np.ascontiguousarray(last, dtype=np.uint8).data).hexdigest() != digest:
                raise ConfigError(f"{file} is altered or belongs to another set: its samples are not those of {name}")


GREY, COLOUR = (1, 28, 28), (3, 32, 32)
STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
LETTERS = tuple(f"emnist-letters-{stem.replace('t10k', 'test')}" for stem in STEMS)
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def _npz(*names: str) -> FileLayout[Reader]:
    return FileLayout((names,), (".",), read_npz)


def _idx(stems: Sequence[str], folders: tuple[str, ...], read: Reader) -> FileLayout[Reader]:
    """Four files, plain or gzipped; some copies have a dot instead of the hyphen before idx."""
    dotted = [stem.replace("-idx", ".idx") for stem in stems]
    files = ((a, f"{a}.gz", b, f"{b}.gz") for a, b in zip(stems, dotted, strict=True))
    return FileLayout(tuple(files), folders, read)


def _cifar(name: str, kind: str, inner: str, files: Sequence[str]) -> tuple[FileLayout[Reader], FileLayout[Reader]]:
    """Python or binary files of CIFAR, from the unpacked folder or from the archive."""
    archived = partial(read_cifar_tar, members=[f"{inner}/{file}" for file in files])
    unpacked: FileLayout[Reader] = FileLayout(tuple((file,) for file in files), (inner, f"{name}/{inner}"), read_cifar)
    return unpacked, FileLayout(((f"{name}-{kind}.tar.gz",),), (".", name), archived)


def _remotes(base: str, checksums: dict[str, str]) -> tuple[Remote, ...]:
    return tuple(Remote(name, base + name, f"md5:{md5}") for name, md5 in checksums.items())


def _both(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[Norm, Norm]:
    """Use the same statistics for training and test images."""
    return Norm(mean, std), Norm(mean, std)


FASHION_MNIST = ImageSet(
    name="fashion-mnist",
    facts=Facts(
        GREY,
        10,
        (60_000, 10_000),
        arrays=(
            "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
            "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
        ),
    ),
    layouts=(
        _npz("fashion_mnist.npz", "fashion-mnist.npz"),
        _idx(STEMS, ("fashion-mnist", "FashionMNIST/raw", "."), read_idx),
    ),
    remotes=_remotes(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    norms={
        "plain": _both((0.2860,), (0.3530,)),
        "fedmrn": (Norm((0.2860,), (0.3530,)), Norm((0.2868,), (0.3524,))),
    },
    model="cnn4",
)

MNIST = ImageSet(
    name="mnist",
    facts=Facts(
        GREY,
        10,
        (60_000, 10_000),
        arrays=(
            "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        ),
    ),
    layouts=(_npz("mnist.npz"), _idx(STEMS, ("mnist", "MNIST/raw", "."), read_idx)),
    remotes=_remotes(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    norms={"plain": _both((0.1307,), (0.3081,))},
    model="cnn4",
)

EMNIST_LETTERS = ImageSet(
    name="emnist-letters",
    facts=Facts(GREY, 26, (124_800, 20_800), first=1),
    layouts=(
        _idx(LETTERS, ("emnist-letters", "emnist", "EMNIST/raw", "gzip", "."), partial(read_idx, transposed=True)),
        FileLayout(
            (("gzip.zip", "emnist.zip"),),
            ("emnist-letters", "emnist", "EMNIST/raw", "."),
            partial(read_idx_zip, members=[f"gzip/{stem}.gz" for stem in LETTERS]),
        ),
    ),
    remotes=_remotes("https://biometrics.nist.gov/cs_links/EMNIST/", {"gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"}),
    norms={"plain": _both((0.1722,), (0.3309,))},
    model="cnn4",
)

SVHN_FILES = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}

SVHN = ImageSet(
    name="svhn",
    facts=Facts(COLOUR, 10, (73_257, 26_032), first=1, files=SVHN_FILES),
    layouts=(FileLayout((("train_32x32.mat",), ("test_32x32.mat",)), ("svhn", "SVHN", "."), read_mat),),
    remotes=_remotes("http://ufldl.stanford.edu/housenumbers/", SVHN_FILES),
    norms={
        "plain": _both((0.4496,), (0.1995,)),
        "fedmrn": (Norm((0.4496,), (0.1995,)), Norm((0.4560,), (0.2244,))),
    },
    model="cnn4",
)

CIFAR_10 = ImageSet(
    name="cifar-10",
    facts=Facts(
        COLOUR,
        10,
        (50_000, 10_000),
        arrays=(
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
        files={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
    layouts=(
        _npz("cifar10.npz", "cifar-10.npz"),
        *_cifar("cifar-10", "python", "cifar-10-batches-py", BATCHES),
        *_cifar("cifar-10", "binary", "cifar-10-batches-bin", [f"{batch}.bin" for batch in BATCHES]),
    ),
    remotes=_remotes(
        "https://www.cs.toronto.edu/~kriz/", {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"}
    ),
    norms={
        "plain": _both((0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768)),
        "imagenet": _both((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "fedrolex": _both((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    },
    model="cnn8",
)

CIFAR_100 = ImageSet(
    name="cifar-100",
    facts=Facts(
        COLOUR,
        100,
        (50_000, 10_000),
        files={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    ),
    layouts=(
        *_cifar("cifar-100", "python", "cifar-100-python", ("train", "test")),
        *_cifar("cifar-100", "binary", "cifar-100-binary", ("train.bin", "test.bin")),
    ),
    remotes=_remotes(
        "https://www.cs.toronto.edu/~kriz/", {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"}
    ),
    norms={
        "plain": _both((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        "fedrolex": _both((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    },
    model="cnn8",
)


@dataclass(frozen=True)
class FromFiles(ABC):
    """A public set that is read from its files; ``norm`` and ``augment`` are the options of those that have them."""

    whole: ClassVar[ImageSet]

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """The set, from its files."""
        return self.whole.load(data_dir, **vars(self))


@dataclass(frozen=True)
class FashionMnist(FromFiles):
    """60,000 and 10,000 grey pictures of clothes, 28 x 28 pixels, 10 classes."""

    whole: ClassVar[ImageSet] = FASHION_MNIST
    norm: Literal["plain", "fedmrn"] = "plain"


@dataclass(frozen=True)
class Mnist(FromFiles):
    """60,000 and 10,000 handwritten digits, 28 x 28 pixels, 10 classes."""

    whole: ClassVar[ImageSet] = MNIST


@dataclass(frozen=True)
class EmnistLetters(FromFiles):
    """124,800 and 20,800 handwritten letters, 28 x 28 pixels, 26 classes."""

    whole: ClassVar[ImageSet] = EMNIST_LETTERS


@dataclass(frozen=True)
class Svhn(FromFiles):
    """73,257 and 26,032 photographed house numbers, cropped to a digit, 32 x 32 pixels in colour, 10 classes."""

    whole: ClassVar[ImageSet] = SVHN
    norm: Literal["plain", "fedmrn"] = "plain"


@dataclass(frozen=True)
class Cifar10(FromFiles):
    """50,000 and 10,000 photographs, 32 x 32 pixels in colour, 10 classes."""

    whole: ClassVar[ImageSet] = CIFAR_10
    norm: Literal["plain", "imagenet", "fedrolex"] = "plain"
    augment: bool = True


@dataclass(frozen=True)
class Cifar100(FromFiles):
    """50,000 and 10,000 photographs, 32 x 32 pixels in colour, 100 classes."""

    whole: ClassVar[ImageSet] = CIFAR_100
    norm: Literal["plain", "fedrolex"] = "plain"
    augment: bool = True
