"""The command line. ``commands`` lists the commands.

Exit status: 0 success, 1 the command failed and finished rounds are kept, 2 wrong arguments and nothing was written,
130 interrupted from the keyboard. With ``--debug`` an error shows its traceback, including frames in user files.
"""

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from gossamer.cli import user_files
from gossamer.cli.commands import dispatch
from gossamer.core.errors import ConfigError, GossamerError
from gossamer.core.extras import missing

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(partial(dispatch, [word for word in words if word != "--debug"]), "--debug" in words)


def guarded(work: Callable[[], int], debug: bool = False) -> int:
    """Do work that returns an exit status; print an error as commands do, and return its status."""
    try:
        with _short_warnings():
            return work()
    except ConfigError as error:
        return _refuse(error.mistakes, 2, error if debug else None)
    except ModuleNotFoundError as error:
        return _refuse([str(missing(error))], 1, error if debug else None)
    except GossamerError as error:
        return _refuse([f"{error}{_where(error.__cause__)}"], 1, error if debug else None)
    except KeyboardInterrupt:
        return _refuse(["stopped"], 130)
    except BrokenPipeError:  # the reader of our output, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refuse([str(error)], 1)
    except Exception as error:
        if not (where := _where(error)):  # not raised in a user file: a bug of Gossamer
            raise
        return _refuse([f"{type(error).__name__}: {error}{where}"], 1, error if debug else None)


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Print warnings of Gossamer as one line, without a place in its source; others as Python does."""
    usual = warnings.formatwarning

    def short(message: Warning | str, category: type[Warning], *place: Any, **line: Any) -> str:
        if category.__module__.startswith("gossamer."):
            return f"gossamer: warning: {message}\n"
        return usual(message, category, *place, **line)

    warnings.formatwarning = short
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _where(error: BaseException | None) -> str:
    """Return the line of a user file that raised the error or its cause; empty if there is none."""
    while error is not None and not (found := user_files.place(error)):
        error = error.__cause__
    return f"{found}; --debug shows the traceback" if error is not None else ""


def _refuse(mistakes: Sequence[str], status: int, error: BaseException | None = None) -> int:
    """Print what is wrong, after the traceback if there is an error to show, and return the status."""
    sys.stdout.flush()
    if error is not None:
        traceback.print_exception(error)
    if len(mistakes) == 1:
        print(f"gossamer: {mistakes[0]}", file=sys.stderr)
    else:
        print(f"gossamer: {len(mistakes)} mistakes:", file=sys.stderr)
        print("\n".join(f"  - {mistake}" for mistake in mistakes), file=sys.stderr)
    return status
