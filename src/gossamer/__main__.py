"""``python -m gossamer`` is ``gossamer``."""

import sys

from gossamer.cli import main

sys.exit(main())
