"""Imported by the fork server before anything else: ends it when its driver is gone.

The server itself looks for that only when all imports are done, and torch takes seconds. Its forks, the workers, do not
inherit the timer; they look for themselves (``processes``).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

__all__: list[str] = []

EVERY = 0.5  # seconds

_DRIVER = os.getppid()


def _end_with_driver(number: int, frame: Any) -> None:
    if os.getppid() != _DRIVER:
        os._exit(1)


if "multiprocessing.forkserver" in sys.orig_argv[-1]:
    signal.signal(signal.SIGALRM, _end_with_driver)
    signal.setitimer(signal.ITIMER_REAL, EVERY, EVERY)
