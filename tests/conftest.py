"""What every test gets: four CPU devices and the Hypothesis profiles."""

import os

# Read by JAX when it is imported, so it has to be set before anything of ours is.
os.environ["JAX_NUM_CPU_DEVICES"] = "4"

from hypothesis import HealthCheck, settings

# Deadlines would turn a compilation, or a busy machine, into a failure. The blob is the line that replays a failure.
settings.register_profile("default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
