"""Imported by the fork server before anything else: has the system end it with its driver.

The server looks by itself whether its driver is gone, but only when all imports are done, and torch takes seconds. Its
forks, the workers, do not inherit this; they look for themselves (``processes``). Elsewhere than on Linux there is no
such request, and a server that is orphaned while it starts ends after its imports.
"""

from __future__ import annotations

import ctypes
import signal
import sys

__all__: list[str] = []

_PR_SET_PDEATHSIG = 1  # as in sys/prctl.h

if sys.platform == "linux" and "multiprocessing.forkserver" in sys.orig_argv[-1]:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
