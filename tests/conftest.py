"""Settings for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Examples are the same in every run, and a busy machine is not a failure.
settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
