"""Every decoder against inputs that nobody sends: typed errors, 2 s and 200 MiB, whatever they are."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .bounds import BrokenError, outcome_of, within_memory
from .targets import Target, build_targets

INPUTS = 2000
INPUTS_OF_SLOW_ONES = 200
BATCH = 50
"""Inputs that one example of hypothesis stands for: it alone takes longer than most decoders."""


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return build_targets(tmp_path_factory.mktemp("fuzz"))


def names() -> list[str]:
    """Return the targets' names, before a test has a folder for them."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return list(build_targets(Path(folder)))


@pytest.mark.parametrize("name", names())
def test_decoder(name: str, targets: dict[str, Target]) -> None:
    """Its valid inputs pass, and no other does more than raise one of our errors."""
    target = targets[name]
    for seed in target.seeds:
        assert outcome_of(lambda seed=seed: target.run(target.write(seed))) == ("passed",)  # type: ignore[misc]
    examples = (INPUTS if target.cheap else INPUTS_OF_SLOW_ONES) // BATCH

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize="MEADOW_FUZZ_ANEW" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def run(random: Random) -> None:
        chosen = Random(random.getrandbits(64))
        with within_memory():
            for _ in range(BATCH):
                data = target.mutate(chosen.choice(target.seeds), chosen)
                try:
                    outcome_of(lambda data=data: target.run(data))  # type: ignore[misc]
                except BrokenError as error:
                    raise AssertionError(f"{error}; input {data[:400].hex()}") from error

    run()
