"""Settings of Hypothesis: the same examples in every run, so that a test that fails once fails everywhere.

HYPOTHESIS_PROFILE=thorough tries many more examples, and different ones in each run. Its `print_blob` prints how to
repeat a failure. `make mutation` uses HYPOTHESIS_PROFILE=small.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

# No deadlines: a loaded machine is not a defect.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}

settings.register_profile(
    "default-ci", derandomize=True, database=None, max_examples=150, stateful_step_count=40, **_COMMON
)
settings.register_profile("thorough", print_blob=True, max_examples=3_000, stateful_step_count=80, **_COMMON)
# For mutation testing, which runs the tests thousands of times and has no use for the smallest failing example.
settings.register_profile(
    "small",
    derandomize=True,
    database=None,
    max_examples=25,
    stateful_step_count=25,
    phases=[Phase.explicit, Phase.generate],
    **_COMMON,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default-ci"))
