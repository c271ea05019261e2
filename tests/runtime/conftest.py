"""What the tests of interrupted runs share."""

from __future__ import annotations

import os
import signal

import pytest

from mlmc_dropout.runtime.run import Run


@pytest.fixture
def interrupt_after(monkeypatch):
    """A real SIGINT to this process when so many pieces have been merged."""
    accept = Run.accept

    def arm(pieces: int) -> None:
        left = [pieces]

        def accepting(self, start, states):
            accept(self, start, states)
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(Run, "accept", accepting)

    return arm
