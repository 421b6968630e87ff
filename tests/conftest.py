"""Hypothesis: the same examples each time, however slow the machine; `HYPOTHESIS_PROFILE=nightly` looks further."""

import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "nightly", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Started in the background, a shell lets a suite ignore SIGINT; so would all that it starts, and stops with it.
signal.signal(signal.SIGINT, signal.default_int_handler)
