"""Being told to end: what was computed is saved, and workers are ended, before the process does as it is told."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["ending_by_exception"]

_SIGNALS = ("SIGTERM", "SIGHUP")  # a time limit or a shutdown; a closed terminal


@contextlib.contextmanager
def ending_by_exception() -> Iterator[None]:
    """Within this context the signals that end a process raise ``SystemExit``, so that ``finally`` is honoured.

    The exit code is that of the signal, 128 + its number. Signals which the program handles or ignores stay as they
    are, and so does everything outside of the main thread.
    """
    present = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in present if main and signal.getsignal(number) is signal.SIG_DFL]
    owner = os.getpid()

    def end(number: int, frame: Any) -> None:
        if os.getpid() != owner:  # a fork: nothing here is its own
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise SystemExit(128 + number)

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
