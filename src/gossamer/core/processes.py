"""Processes that do not outlive the process that started them."""

import ctypes
import signal

DIE_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, even if that is killed."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
