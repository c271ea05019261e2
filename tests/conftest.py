"""Settings for all tests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from testing.outside.vision import declare_operators

# Examples are the same in every run, and a busy machine is not a failure.
settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

# Shells start background jobs with Ctrl-C switched off; the tests of Ctrl-C need it on.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Other people's packages import torchvision, which may be built for another torch than ours.
declare_operators()

SLOW = frozenset((Path(__file__).parent / "slow_tests.txt").read_text(encoding="utf-8").splitlines())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that were measured to be slow (``scripts/list_slow_tests.py``)."""
    for item in items:
        if not SLOW.isdisjoint((item.nodeid, item.nodeid.split("[")[0])):
            item.add_marker(pytest.mark.slow)
