"""From the files of a public set of images to data: read, compare with what is known of the set, normalise.

Pixels become (value / 255 - mean) / std in float32, channel by channel. A set has statistics of its own, called
``plain``, for training and test images alike; papers that use others have theirs under another name.
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
    """Mean and standard deviation by channel, of values from 0 to 1; one of each serves all channels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, x: Bytes) -> Tensor:
        """Images in bytes, normalised."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in self)
        whole = torch.from_numpy(np.require(x, requirements="W")).contiguous()  # torch wants what it may write to
        return whole.float().div_(255).sub_(mean).div_(std)

    def black(self) -> tuple[float, ...]:
        """What a black pixel becomes."""
        return tuple(((0 - torch.tensor(self.mean)) / torch.tensor(self.std)).tolist())


@dataclass(frozen=True)
class Album:
    """All that there is to know of a public set of images: its files, its facts, its statistics, its model."""

    name: str
    facts: Facts
    forms: tuple[FileLayout[Reader], ...]
    remotes: tuple[Remote, ...]
    norms: Mapping[str, tuple[Norm, Norm]]
    model: str

    def load(self, data_dir: Path | None, norm: str, augment: bool = False) -> Data:
        """The set, with the named statistics; ``augment`` has training images moved and mirrored."""
        found = find(self.name, folder(data_dir), self.forms, self.remotes)
        train, test = found.read(found.paths, self.facts)
        check_unaltered(self.name, self.facts, train, test)
        ours, theirs = self.norms[norm]
        return Data(
            self.name,
            Samples(ours(train.x), torch.from_numpy(train.y)),
            Samples(theirs(test.x), torch.from_numpy(test.y)),
            self.facts.classes,
            split="dirichlet:0.3",
            model=self.model,
            augment=CropFlip(fill=ours.black()) if augment else None,
        )


def check_unaltered(name: str, facts: Facts, train: Images, test: Images) -> None:
    """Refuse a set as large as the whole whose arrays are not the known ones; a subset cannot be compared."""
    known = iter(facts.arrays)
    for part, whole in zip((train, test), facts.counts, strict=True):
        for array, file, digest in ((part.x, part.x_file, next(known, "")), (part.y, part.y_file, next(known, ""))):
            if digest and len(array) == whole and _digest(array) != digest:
                raise ConfigError(f"{file} is altered or of another set: its samples are not those of {name}")


def _digest(array: Integers) -> str:
    last = np.moveaxis(array, 1, -1) if array.ndim == 4 else array
    return hashlib.sha256(np.ascontiguousarray(last, dtype=np.uint8).data).hexdigest()
