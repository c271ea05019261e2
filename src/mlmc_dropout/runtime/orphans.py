"""Has the system end the fork server, and workers that are still starting, with their driver.

The fork server imports this before anything else. It looks by itself whether its driver is gone, but only when all
imports are done, and torch takes seconds; and so it is with a worker that imports the user's script. Once workers are
up they look for themselves (``processes``). Elsewhere than on Linux there is no such request to the system, and what is
orphaned while it starts ends after its imports.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["DRIVER", "end_with_parent"]

DRIVER = "MLMC_DROPOUT_DRIVER"  # environment variable of the server: the process that starts it
_PR_SET_PDEATHSIG = 1  # as in sys/prctl.h


def end_with_parent(wanted: bool) -> None:
    """Have the system end this process when its parent is gone, or not any more.

    Args:
        wanted: Whether to.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if wanted else 0)


def _in_server() -> None:
    server = os.getpid()
    end_with_parent(True)
    if os.environ.pop(DRIVER, str(os.getppid())) != str(os.getppid()):  # the driver was gone before
        os._exit(1)
    os.register_at_fork(after_in_child=lambda: end_with_parent(True) if os.getppid() == server else None)


if "multiprocessing.forkserver" in sys.orig_argv[-1] and __name__ in sys.orig_argv[-1]:  # a server of ours
    _in_server()
