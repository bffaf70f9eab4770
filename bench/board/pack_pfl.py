"""Pack pfl-research as a folder of pure Python, for a machine on which nothing can be installed.

    python bench/board/pack_pfl.py build/pfl

The folder has pfl 0.6.0, and empty modules for its libraries for the accounting of privacy, SciPy and multiprocess. pfl
imports them, but federated averaging without a privacy mechanism never calls them. An installed library comes first.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "0.6.0"
EMPTY = (
    "dp_accounting/__init__",
    "dp_accounting/dp_event",
    "dp_accounting/pld/__init__",
    "dp_accounting/pld/privacy_loss_distribution",
    "dp_accounting/rdp/__init__",
    "dp_accounting/rdp/rdp_privacy_accountant",
    "scipy/__init__",
    "scipy/special",
    "scipy/stats",
    "multiprocess",
)
NAMES = {
    "prv_accountant": "LaplaceMechanism = PoissonSubsampledGaussianMechanism = PRVAccountant = None\n",
    "packaging/version": (
        "class Version:\n    def __init__(self, text):\n        self.major = int(text.partition('.')[0])\n"
    ),
    "packaging/__init__": "",
}


def modules() -> dict[str, str]:
    """Return the texts of the modules that stand in for libraries, by file."""
    return {f"{name}.py": text for name, text in {**dict.fromkeys(EMPTY, ""), **NAMES}.items()}


def stand_ins(folder: Path) -> None:
    """Write the modules that stand in for libraries."""
    for name, text in modules().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def download(folder: Path) -> None:
    """Unpack the wheel of pfl-research."""
    with tempfile.TemporaryDirectory() as made:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"pfl=={VERSION}", "--dest", made]
        subprocess.run(pip, check=True)
        for wheel in Path(made).glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(folder)


def main() -> None:
    folder = Path(sys.argv[1])
    download(folder)
    stand_ins(folder)
    print(f"{folder}: {sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
