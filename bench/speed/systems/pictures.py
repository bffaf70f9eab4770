"""A folder of images, one PNG file each, that are read when they are needed."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from workloads import MEAN, SPREAD, Workload, made_up

PER_FOLDER = 1_000
TEST = 1_000


class Pictures(Dataset[tuple[Tensor, int]]):
    """The images of a workload; the first use writes the files, under the system's folder of temporary files."""

    def __init__(self, work: Workload) -> None:
        self.folder = Path(tempfile.gettempdir()) / f"gossamer-bench-{work.samples}"
        images = made_up(work.samples, 1)
        self.targets = images.y.tolist()
        if not self.folder.exists():
            write(self.folder, images.x)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        with Image.open(self.folder / place(row)) as image:
            pixels = torch.from_numpy(np.array(image, dtype=np.float32))
        return ((pixels / 255 - MEAN) / SPREAD)[None], self.targets[row]


def place(row: int) -> str:
    return f"{row // PER_FOLDER}/{row % PER_FOLDER}.png"


def write(folder: Path, images: np.ndarray) -> None:
    """Write all files; a folder that is there is complete."""
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    for row, image in enumerate(images):
        path = made / place(row)
        path.parent.mkdir(exist_ok=True)
        Image.fromarray((127 + 40 * image).clip(0, 255).astype(np.uint8)).save(path, compress_level=1)
    try:
        made.rename(folder)
    except OSError:  # another system was faster
        shutil.rmtree(made)
