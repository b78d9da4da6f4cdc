"""How many threads a process has: one, what its environment says, or a core each for large steps."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from meadow.machine.process_limits import available_cores

PROGRAM = """
import os
from meadow.machine.process_limits import begin_with_one_thread, threads_at_most
begin_with_one_thread()
print(os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"], threads_at_most(1))
"""
VARIABLES = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, f"1 1 {available_cores()}"),
        ({"OMP_NUM_THREADS": "1"}, "1 1 1"),
        ({"MKL_NUM_THREADS": "3"}, "1 3 1"),
    ],
)
def test_the_environment_decides(said: dict[str, str], expected: str) -> None:
    """Whoever says how many threads there are gets as many, for large steps too."""
    environment = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, **said},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected
