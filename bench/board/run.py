"""Measure published workloads beside a plain PyTorch loop and pfl-research, on one GPU.

    python bench/board/pack_pfl.py build/pfl                        once: pfl-research as a folder
    python bench/board/run.py --pfl build/pfl [--data-dir DIR]      all workloads
    python bench/board/run.py --device cpu --small --rounds 2 --clients-per-round 2     a test

Results go to ``--out``, by default to ``board.json`` in the folder that the variable OUT names, with what the systems
print. ``--docs`` adds them to ``docs/speed.md``; ``python bench/board/page.py FILE ...`` does so later. Without
``--pfl`` it is not measured.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from board.cli import main

if __name__ == "__main__":
    main()
