"""The command line: ``run``, ``resume``, ``runs``, ``show``, ``compare``, ``methods``, ``data``, ``widths``,
``plan``, ``stability``, ``export`` and ``deploy``.

Exit status: 0 done, 1 the run could not go on (nothing finished is lost), 2 something asked for is wrong (nothing was
written), 130 stopped from the keyboard. With ``--debug`` an error shows its traceback, down to the user's own part.
"""

import os
import sys
import traceback
from collections.abc import Sequence

from gossamer.cli import user_files as sources
from gossamer.cli.parsers import dispatch
from gossamer.core.errors import ConfigError, GossamerError

__all__ = ["main"]

PACKAGES = {"sklearn": "scikit-learn", "flwr": "'gossamer[flower]'"}
"""What to install, where that has another name than what is imported."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the return value is the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        return dispatch([word for word in words if word != "--debug"])
    except ConfigError as error:
        return _refuse(error.mistakes, 2, error if debug else None)
    except GossamerError as error:
        return _refuse([f"{error}{_where(error.__cause__)}"], 1, error if debug else None)
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        package = PACKAGES.get(missing, missing)
        return _refuse([f"this needs {missing}, which is not installed: pip install {package}"], 1)
    except KeyboardInterrupt:
        return _refuse(["stopped"], 130)
    except BrokenPipeError:  # somebody reads our output through head, and has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refuse([str(error)], 1)
    except Exception as error:
        if not (where := _where(error)):  # it is not in a file of the user's
            raise
        return _refuse([f"{type(error).__name__}: {error}{where}"], 1, error if debug else None)


def _where(error: BaseException | None) -> str:
    """Where in a file of the user's an error arose, or the one behind it, if it did."""
    while error is not None and not (found := sources.place(error)):
        error = error.__cause__
    return f"{found}; --debug shows the traceback" if error is not None else ""


def _refuse(mistakes: Sequence[str], status: int, error: BaseException | None = None) -> int:
    """Say what is wrong; with ``--debug`` where it happened comes first."""
    sys.stdout.flush()
    if error is not None:
        traceback.print_exception(error)
    if len(mistakes) == 1:
        print(f"gossamer: {mistakes[0]}", file=sys.stderr)
    else:
        print(f"gossamer: {len(mistakes)} mistakes:", file=sys.stderr)
        print("\n".join(f"  - {mistake}" for mistake in mistakes), file=sys.stderr)
    return status
