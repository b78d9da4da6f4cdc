"""A private run's books: written before each release, and a repeated one counts twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meadow.errors import ConfigError, RunStoppedError, StoreError
from meadow.privacy.dp.accounting.accountant import epsilon_of
from meadow.privacy.dp.accounting.events import GaussianEvent, PoissonEvent
from meadow.privacy.dp.correlated.correlation import Banded, Tree
from meadow.privacy.dp.plan import PrivacyPlan
from meadow.run.privacy_ledger import RELEASES_LAYOUT, RunLedger
from meadow.run.private_run import PrivateRun
from meadow.transport.database import Database

PLAN = PrivacyPlan(
    noise_multiplier=4.0, delta=1e-5, rounds=5, cohort=10.0, population=100, sampling="fixed"
)
KILLED = """
import os, signal, sys
from pathlib import Path
from meadow.privacy.dp.accounting.events import GaussianEvent
from meadow.run.privacy_ledger import RunLedger
RunLedger(Path(sys.argv[1])).write(1, GaussianEvent(noise_multiplier=4.0))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_between_ledger_and_release_is_counted(tmp_path: Path) -> None:
    """Nothing was released yet, but that is not known afterwards: the round counts twice."""
    path = tmp_path / "privacy.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)], check=False, env=os.environ, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    run = PrivateRun(PLAN, RunLedger(path))
    row = run.account(1)
    assert row["releases"] == 2
    assert row["epsilon"] == PLAN.epsilon(2) == run.summary()["epsilon"]


def test_a_budget_is_not_exceeded_by_repeated_rounds() -> None:
    """With epsilon as the budget, the run stops before the release that would exceed it."""
    plan = replace(PLAN, epsilon_max=PLAN.epsilon())
    run = PrivateRun(plan, RunLedger(None))
    for number in (1, 2, 2, 3, 4):
        run.account(number)
    with pytest.raises(RunStoppedError, match=r"release 6 .* budget is .* counts twice"):
        run.account(5)
    assert run.summary()["releases"] == 5
    assert run.summary()["epsilon"] <= plan.epsilon_max


def test_without_a_budget_epsilon_grows() -> None:
    """A run of given noise says what its repeated rounds cost."""
    run = PrivateRun(PLAN, RunLedger(None))
    spent = [run.account(1)["epsilon"] for _ in range(8)]
    assert spent == sorted(spent) and spent[-1] >= PLAN.epsilon(8)


def test_other_noise_is_not_added_up(tmp_path: Path) -> None:
    """A run that goes on with another mechanism is refused: one plan could not account for both."""
    path = tmp_path / "privacy.sqlite"
    PrivateRun(PLAN, RunLedger(path)).account(1)
    with pytest.raises(ConfigError, match="release of round 1 by another mechanism"):
        PrivateRun(replace(PLAN, noise_multiplier=9.0), RunLedger(path))


def test_another_correlation_is_not_added_up(tmp_path: Path) -> None:
    """Nor are releases whose noise hangs together in another way."""
    path = tmp_path / "privacy.sqlite"
    banded = replace(PLAN, separation=4, correlation=Banded(rounds=5, bands=3))
    PrivateRun(banded, RunLedger(path)).account(1)
    PrivateRun(banded, RunLedger(path)).account(2)
    with pytest.raises(ConfigError, match=r"release of round 1 by another mechanism, .*Banded"):
        PrivateRun(replace(banded, correlation=Tree(restart=4)), RunLedger(path))


def test_repeated_rounds_cost_everybody_a_participation() -> None:
    """Clients that wait for four rounds take part twice in five; the repeated round is a third."""
    run = PrivateRun(replace(PLAN, separation=4), RunLedger(None))
    spent = [run.account(number)["epsilon"] for number in (1, 2, 2, 3, 4, 5)]
    once = [PLAN.epsilon(count) for count in (1, 1, 2, 2, 2, 3)]
    assert spent == once
    assert run.summary()["participations"] == 3


COINS = replace(PLAN, noise_multiplier=1.0, sampling="poisson", rounds=20)


def sampled(times: int) -> PoissonEvent:
    """Return the event of one draw whose sum got noise so often."""
    noise = GaussianEvent(noise_multiplier=COINS.noise_multiplier / times**0.5)
    return PoissonEvent(probability=COINS.probability, event=noise)


def test_noisings_of_one_draw_are_one_event() -> None:
    """Five of them are about the same clients: together they are one release with less noise, which
    costs much more than five cohorts do."""
    run = PrivateRun(COINS, RunLedger(None))
    spent = [run.account(1)["epsilon"] for _ in range(5)]
    assert spent == sorted(spent)
    assert run.summary()["epsilon"] == epsilon_of(sampled(5), count=1, delta=COINS.delta)
    assert spent[-1] >= run.summary()["epsilon"] > 2 * COINS.epsilon(5)
    run.account(2)
    after = run.summary()["epsilon"]
    assert run.summary()["epsilon"] > spent[-1]
    assert after < epsilon_of(sampled(5), count=2, delta=COINS.delta)
    assert "1 rounds were released again" in run.summary()["claim"]


def test_repeats_with_coins_are_held_against_the_budget() -> None:
    """Also while there are fewer releases than the run has rounds."""
    run = PrivateRun(replace(COINS, epsilon_max=COINS.epsilon()), RunLedger(None))
    with pytest.raises(
        RunStoppedError, match=r"round 1 would be release . .*with Poisson sampling"
    ):
        for _ in range(COINS.rounds):
            run.account(1)
    assert run.summary()["epsilon"] <= COINS.epsilon()


def test_coins_are_tossed_once_for_a_round(tmp_path: Path) -> None:
    """A worker that starts anew repeats the round with those who were drawn, and are there."""
    path, present = tmp_path / "privacy.sqlite", range(1, 101)
    cohort = PrivateRun(COINS, RunLedger(path)).draw(1, present)
    again = PrivateRun(COINS, RunLedger(path))
    assert cohort and [again.draw(1, present) for _ in range(3)] == [cohort] * 3
    assert again.draw(1, [*cohort[1:], 500]) == cohort[1:]
    assert PrivateRun(PLAN, RunLedger(None)).draw(1, present) is None


def test_releases_of_an_older_ledger_are_about_one_draw(tmp_path: Path) -> None:
    """A ledger that knew of no draws is brought up to date, and counts no less."""
    path = tmp_path / "privacy.sqlite"
    older = replace(
        RELEASES_LAYOUT,
        versions=RELEASES_LAYOUT.versions[:1],
        sealed={"releases": RELEASES_LAYOUT.sealed["releases"]},
    )
    before = Database(path, older)
    with before.transaction() as rows:
        for _ in range(2):
            rows.execute("INSERT INTO releases (round, event) VALUES (1, ?)", (repr(COINS.event),))
    before.close()
    run = PrivateRun(COINS, RunLedger(path))
    cohort = run.draw(1, range(1, 101))
    run.account(1)
    assert run.summary()["epsilon"] == epsilon_of(sampled(3), count=1, delta=COINS.delta)
    assert PrivateRun(COINS, RunLedger(path)).draw(1, range(1, 101)) == cohort


def test_missing_releases_are_an_error() -> None:
    """A ledger that was lost would begin to count anew, in the middle of a run."""
    with pytest.raises(StoreError, match="has 0 releases at round 2: some are missing"):
        PrivateRun(PLAN, RunLedger(None)).account(2)


def test_a_damaged_ledger_is_an_error(tmp_path: Path) -> None:
    """It is not taken for an empty one."""
    path = tmp_path / "privacy.sqlite"
    path.write_bytes(b"no database at all, but long enough to be looked at" * 50)
    with pytest.raises(StoreError, match=r"privacy\.sqlite"):
        RunLedger(path)
