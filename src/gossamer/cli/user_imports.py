"""How the modules beside a user file are imported: from their sources, and by the user's own code only.

The user agrees to files (``gossamer.cli.trust``): these are what must run. So compiled files in ``__pycache__``, which
Python would take for the source without a look at it, are not read. And the folder does not answer for modules that
Gossamer or an installed package imports, be they installed or not: a ``wandb.py`` there is no wandb.
"""

import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import CodeType, FrameType, ModuleType

_FOLDERS: dict[Path, bool] = {}
"""The folders of user files, and whether they are on ``sys.path`` only because Gossamer has put them there."""


def import_from(folder: Path) -> None:
    """Let user files import modules from their folder, which comes last, so that it hides no installed module."""
    if folder not in {Path(place).resolve() for place in sys.path}:
        sys.path.append(str(folder))
        _FOLDERS[folder] = True
    elif folder not in _FOLDERS:
        _FOLDERS[folder] = False
    else:
        return
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
    for place in [place for place in sys.path_importer_cache if _is_own(place)]:
        del sys.path_importer_cache[place]  # Python's own finder of this folder, which reads compiled files


@cache
def system() -> frozenset[Path]:
    """Return the folders of the standard library, of installed packages and of Gossamer."""
    places = [Path(place) for place in (*sysconfig.get_paths().values(), sys.base_prefix, sys.prefix)]
    places.append(Path(__file__).parents[1])  # it may be in a folder of the user's, too
    return frozenset([*places, *(place.resolve() for place in places)])


class _Source(SourceFileLoader):
    """Compiles the source at each import, and neither reads nor writes ``__pycache__``."""

    def get_code(self, fullname: str) -> CodeType:
        file = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(file), file)
        return code


class _ForTheUser(FileFinder):
    """Finds modules for the user's own code only."""

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        importer = next((frame for frame in _frames() if not _is_machinery(frame)), None)
        file = importer and importer.f_globals.get("__file__")
        return super().find_spec(fullname, target) if file and _is_own(file) else None


def _finder(place: str) -> FileFinder:
    """Return the finder of a folder of the user, or of a package in it: a hook of Python's import system."""
    if not _is_own(place) or not Path(place).is_dir():
        raise ImportError(place)
    kind = _ForTheUser if _FOLDERS.get(Path(place).resolve()) else FileFinder
    loaders = (ExtensionFileLoader, EXTENSION_SUFFIXES), (_Source, SOURCE_SUFFIXES)
    return kind(place, *loaders, (SourcelessFileLoader, BYTECODE_SUFFIXES))


def _is_own(place: str) -> bool:
    """Return whether a file or folder is in the folder of a user file, and not in an environment there."""
    spellings = {Path(place).absolute(), Path(place).resolve()}
    around = [(path, folder) for path in spellings for folder in _FOLDERS if path.is_relative_to(folder)]
    return any(
        not any(root.is_relative_to(folder) and path.is_relative_to(root) for root in system())
        for path, folder in around
    )


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame:
        yield frame
        frame = frame.f_back


def _is_machinery(frame: FrameType) -> bool:
    """Return whether a frame is of Python's import system, or of this module."""
    name = str(frame.f_globals.get("__name__"))
    return name == __name__ or name.partition(".")[0] in {
        "importlib",
        "_frozen_importlib",
        "_frozen_importlib_external",
    }
