"""What every test shares: one thread a process, no telemetry, reproducible examples."""

from __future__ import annotations

import os

for _variable in (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
):
    os.environ[_variable] = "1"  # read when torch or numpy is imported, and inherited by children
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["no_proxy"] = ",".join(
    filter(
        None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "localhost,127.0.0.1,::1")
    )
)  # servers of tests are on this machine
for _variable in [name for name in os.environ if name.startswith("MEADOW_")]:
    del os.environ[_variable]  # a setting of whoever runs the tests is none of theirs

from hypothesis import HealthCheck, settings

settings.register_profile(
    "meadow",
    deadline=None,
    print_blob=True,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("meadow")
