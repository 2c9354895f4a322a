"""What holds for all tests: examples are made without a look at the clock, and the same ones each time where it counts."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", settings.get_profile("house"), derandomize=True, database=None)
settings.load_profile("gate" if "CI" in os.environ else "house")
