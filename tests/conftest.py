"""What every test shares: how Hypothesis draws. Warnings are errors by pyproject.toml.

The gate draws the same examples each time, so that one commit has one verdict; the soak draws new ones, more of them,
and prints how to repeat a failure. Neither has a deadline: a busy machine is no defect.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "gate",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", parent=settings.get_profile("gate"), derandomize=False, max_examples=2_000)
settings.load_profile("soak" if os.environ.get("ONEFOLD_SOAK") == "1" else "gate")
