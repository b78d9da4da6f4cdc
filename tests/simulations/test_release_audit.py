"""The audit of a release: it passes what is right, and catches too little noise and too large a part."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meadow.cli.main import main
from meadow.privacy.dp.correlated.correlation import correlated
from meadow.privacy.dp.example_level import ExampleTerms
from meadow.privacy.dp.example_plan import ExamplePlan
from meadow.privacy.dp.mechanisms import clipping as clipping_module
from meadow.privacy.dp.mechanisms import local as local_module
from meadow.privacy.dp.mechanisms import mechanism as mechanism_module
from meadow.privacy.dp.mechanisms.adaptive import AdaptiveClip
from meadow.privacy.dp.mechanisms.clipping import Clipping
from meadow.privacy.dp.plan import PrivacyPlan
from meadow.privacy.secagg.protocol import noisy_encoding
from meadow.simulations.executors.vectorized import stacked_dp_sgd
from meadow.simulations.privacy_audit import AuditResult, audit
from meadow.training.loop import dp_sgd

TRIALS = 1600
COMMON: dict[str, Any] = {
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "rounds": 4,
    "cohort": 10,
    "population": 10,
    "sampling": "fixed",
}
ADAPTIVE = AdaptiveClip(quantile=0.5, rate=0.2, count_noise_stddev=5.0)


def _seeded() -> Callable[[int], bytes]:
    """Return entropy that is the same in every run of the tests."""
    numbers = itertools.count()

    def entropy(size: int) -> bytes:
        return hashlib.shake_256(next(numbers).to_bytes(8, "big")).digest(size)

    return entropy


def _turns(kind: str) -> PrivacyPlan:
    correlation = correlated(kind, rounds=4, separation=4, bands=3 if kind == "banded" else None)
    return PrivacyPlan(**COMMON, separation=4, correlation=correlation)


PLANS: dict[str, Callable[[], PrivacyPlan | ExamplePlan]] = {
    "central": lambda: PrivacyPlan(**COMMON),
    "per layer": lambda: PrivacyPlan(**COMMON, clipping=Clipping(kind="per_layer", clip_norm=0.3)),
    "adaptive": lambda: PrivacyPlan(
        **COMMON, clipping=Clipping(kind="adaptive", clip_norm=1.0), adaptive=ADAPTIVE
    ),
    "banded": lambda: _turns("banded"),
    "tree": lambda: _turns("tree"),
    "local_gaussian": lambda: PrivacyPlan(**COMMON, noise="local_gaussian"),
    "local_laplace": lambda: PrivacyPlan(
        **{**COMMON, "noise_multiplier": 2**0.5}, noise="local_laplace"
    ),
    "distributed": lambda: PrivacyPlan(**COMMON, noise="distributed"),
    "distributed_gaussian": lambda: PrivacyPlan(**COMMON, noise="distributed_gaussian"),
    "records": lambda: ExamplePlan(
        terms=ExampleTerms(clip_norm=0.5, noise_multiplier=1.0, rate=0.1),
        delta=1e-3,
        rounds=1,
        epochs=1,
    ),
}


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Let all entropy be seeded."""
    monkeypatch.setattr("secrets.token_bytes", _seeded())
    yield monkeypatch


ROWS = {"adaptive": 2, "records": 2}
"""How many mechanisms an audit looks at, where it is not one."""
CASES = [(name, row) for name in PLANS for row in range(ROWS.get(name, 1))]


def found(name: str, row: int) -> AuditResult:
    """Return what an audit of a plan finds of one of its mechanisms."""
    plan = PLANS[name]()
    if isinstance(plan, PrivacyPlan):
        plan = replace(plan, entropy=_seeded())
    findings = audit(plan, trials=TRIALS)
    assert len(findings) == ROWS.get(name, 1)
    return findings[row]


@pytest.mark.parametrize(("name", "row"), CASES)
def test_what_is_right_passes(name: str, row: int, patched: pytest.MonkeyPatch) -> None:
    """The bound is below the claim, not far below, and far below what could have been seen."""
    finding = found(name, row)
    assert finding.holds
    assert 0.5 * finding.claimed < finding.measured <= finding.claimed
    assert finding.measurable > 1.5 * finding.claimed


def less_noise(patched: pytest.MonkeyPatch, name: str, row: int = 0) -> None:
    """Let the mechanism add two thirds of its noise, and say nothing of it."""
    if (name, row) == ("adaptive", 1):
        count = mechanism_module.generator_from
        patched.setattr(mechanism_module, "generator_from", lambda *given: _Quieter(count(*given)))
    elif name.startswith("distributed"):
        drawn = noisy_encoding.IntegerSum.noise
        patched.setattr(
            noisy_encoding.IntegerSum,
            "noise",
            lambda self, *given: (drawn(self, *given) / 1.5).round().astype("int64"),
        )
    elif name == "records":
        module = (dp_sgd, stacked_dp_sgd)[row]
        noise = module.step_noise
        patched.setattr(module, "step_noise", lambda *given: noise(*given) / 1.5)
    elif name.startswith("local"):
        rounded = local_module.rounded_noise
        patched.setattr(
            local_module,
            "rounded_noise",
            lambda *given: (rounded(*given) / 1.5).astype("int64"),
        )
    else:
        blocks = mechanism_module.NoisyBlocks
        patched.setattr(
            mechanism_module,
            "NoisyBlocks",
            lambda *given, noise_stddev, **more: blocks(
                *given, noise_stddev=noise_stddev / 1.5, **more
            ),
        )


class _Quieter:
    """A generator of two thirds of what it should draw."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def normal(self, loc: float, scale: float, size: int | None = None) -> Any:
        return self._generator.normal(loc, scale / 1.5, size)


def twice_the_part(patched: pytest.MonkeyPatch, name: str, row: int = 0) -> None:
    """Let clipping leave twice what it should, or a client count twice."""
    if (name, row) == ("adaptive", 1):
        finish = mechanism_module.PrivateMean.finish

        def twice(self: Any, accumulator: Any) -> Any:
            accumulator.within = 2 * accumulator.within - accumulator.clients / 2
            return finish(self, accumulator)

        patched.setattr(mechanism_module.PrivateMean, "finish", twice)
    elif (name, row) == ("records", 0):
        add = dp_sgd._add_clipped
        patched.setattr(
            dp_sgd,
            "_add_clipped",
            lambda *given: add(*given[:4], 2 * given[4], *given[5:]),
        )
    elif name.startswith("distributed"):
        rounded = noisy_encoding.NoisyEncoding._rounded
        patched.setattr(
            noisy_encoding.NoisyEncoding, "_rounded", lambda *given: 2 * rounded(*given)
        )
    elif name == "records":
        torch = stacked_dp_sgd.torch
        patched.setattr(
            stacked_dp_sgd._StackedDpSgd, "_add", _doubled(stacked_dp_sgd._StackedDpSgd._add, torch)
        )
    elif name == "local_laplace":
        bounded = local_module._bounded
        patched.setattr(
            local_module,
            "_bounded",
            lambda *given, **more: {k: 2 * v for k, v in bounded(*given, **more).items()},
        )
    else:
        factor = clipping_module._factor
        patched.setattr(clipping_module, "_factor", lambda square, bound: factor(square, 2 * bound))


def _doubled(add: Any, torch: Any) -> Any:
    def doubled(self: Any, sums: list[Any], *given: Any) -> None:
        add(self, sums, *given)
        for each in sums:
            each *= 2

    return doubled


@pytest.mark.parametrize("mutant", [less_noise, twice_the_part])
@pytest.mark.parametrize(("name", "row"), CASES)
def test_what_is_wrong_is_caught(
    name: str, row: int, mutant: Any, patched: pytest.MonkeyPatch
) -> None:
    """With two thirds of the noise, and with twice the sensitivity, of this mechanism alone."""
    mutant(patched, name, row)
    finding = found(name, row)
    assert not finding.holds, finding


APP = """
[privacy.differential_privacy]
enabled = true
sampling = "fixed"
noise_multiplier = 1.0
delta = 1e-3
[simulation]
clients = 10
"""


def test_the_command_audits_an_app(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], patched: pytest.MonkeyPatch
) -> None:
    """A table of one row, and an exit code that says whether the claim holds."""
    (tmp_path / "task.py").write_text("task = None\n")
    (tmp_path / "meadow.toml").write_text(f'[app]\ntask = "task:task"\n{APP}')
    command = ["privacy", "audit", str(tmp_path), "--trials", "1500", "--format", "json"]
    assert ended(command) == 0
    (row,) = json.loads(capsys.readouterr().out)["audit"]
    assert 0 < row["measured"] <= row["claimed"] < row["measurable"] and row["holds"]
    less_noise(patched, "central")
    assert ended([*command[:3], "--trials", "1600"]) == 1
    assert "CLAIMED EPSILON" in capsys.readouterr().out


def ended(command: list[str]) -> int:
    """Return a command's exit code."""
    with pytest.raises(SystemExit) as stop:
        main(command)
    return int(stop.value.code or 0)
