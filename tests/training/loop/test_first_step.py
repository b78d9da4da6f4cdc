"""What the first step of a process brings with it."""

from __future__ import annotations

import subprocess
import sys

STEP = """
import sys
import torch
import meadow
task = meadow.Task(
    model=lambda: torch.nn.Linear(4, 2),
    loss=meadow.cross_entropy,
    metrics={},
    client_data=lambda site: meadow.ClientData(
        train=(torch.ones(8, 4), torch.zeros(8, dtype=torch.long))
    ),
)
run = meadow.simulate(task, clients=2, rounds=1, executor="sequential", out=sys.argv[1])
assert run.status == "finished"
print([name for name in ("sympy", "torch._dynamo") if name in sys.modules])
"""


def test_a_training_process_imports_no_compiler(tmp_path: object) -> None:
    """torch imports its compiler and SymPy for some calls: 0.2 to 1.3 s of the first round."""
    done = subprocess.run(
        [sys.executable, "-c", STEP, f"{tmp_path}/run"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
