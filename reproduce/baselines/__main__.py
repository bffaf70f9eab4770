"""Run a study of the baselines: ``python -m reproduce.baselines classics|fashion|two-populations ...``."""

import argparse
from collections.abc import Sequence

from reproduce.baselines import classics, fashion, two_populations

STUDIES = {"classics": classics.main, "fashion": fashion.main, "two-populations": two_populations.main}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study that the first argument names, with the other arguments."""
    parser = argparse.ArgumentParser(description="Run a study of the baselines.", add_help=False)
    parser.add_argument("study", choices=STUDIES)
    asked, options = parser.parse_known_args(argv)
    STUDIES[asked.study](options)


if __name__ == "__main__":
    main()
