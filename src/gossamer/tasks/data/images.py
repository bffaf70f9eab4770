"""Load a public image set from its files: read, verify, normalize.

Pixels become (value / 255 - mean) / std in float32, per channel. The norm ``plain`` uses the set's own statistics for
training and test images. Papers with other statistics have named norms.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import ConfigError
from gossamer.tasks.data.augment import CropFlip
from gossamer.tasks.data.download import Remote
from gossamer.tasks.data.locate import FileLayout, find, folder
from gossamer.tasks.data.readers.base import Bytes, Facts, Images, Integers
from gossamer.tasks.data.samples import Data, Samples

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

    def load(self, data_dir: Path | None, norm: str, augment: bool = False) -> Data:
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
            if digest and len(array) == whole and _digest(array) != digest:
                raise ConfigError(f"{file} is altered or belongs to another set: its samples are not those of {name}")


def _digest(array: Integers) -> str:
    last = np.moveaxis(array, 1, -1) if array.ndim == 4 else array
    return hashlib.sha256(np.ascontiguousarray(last, dtype=np.uint8).data).hexdigest()
