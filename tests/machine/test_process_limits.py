"""A process's threads (one, what its environment says, or a core each for large steps), and its log."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from meadow.machine.process_limits import available_cores, keep_accountants_quiet
from meadow.privacy.dp.accounting.accountant import epsilon_of
from meadow.privacy.dp.accounting.events import GaussianEvent, PoissonEvent

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


def test_orders_that_do_not_converge_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """The RDP accountant leaves them out, and its bound holds: nothing is logged."""
    keep_accountants_quiet()
    event = PoissonEvent(event=GaussianEvent(noise_multiplier=1.5), probability=0.2)
    assert 0 < epsilon_of(event, count=40, delta=1e-4, accountant="rdp") < 20
    assert caplog.records == []
