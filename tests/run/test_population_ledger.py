"""What all runs of a server asked for: added up, durable, and bounded before a run begins."""

from __future__ import annotations

import json
import math
import multiprocessing
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from meadow.cli.main import main
from meadow.errors import ConfigError, StoreError
from meadow.privacy.dp.accounting.accountant import epsilon_of, epsilon_of_draws
from meadow.privacy.dp.accounting.composition import Releases, epsilon_of_releases
from meadow.privacy.dp.accounting.concentrated import epsilon_of_line
from meadow.privacy.dp.accounting.events import (
    ConcentratedEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonEvent,
)
from meadow.privacy.dp.accounting.gaussian import epsilon_of_cost
from meadow.privacy.dp.correlated.correlation import Banded
from meadow.privacy.dp.example_level import ExampleTerms
from meadow.privacy.dp.example_plan import ExamplePlan
from meadow.privacy.dp.plan import PrivacyPlan
from meadow.run.population_ledger import PopulationLedger, RunShare, open_population
from meadow.run.privacy_ledger import RunLedger
from meadow.run.private_run import PrivateRun

DELTA = 1e-6
PLAN = PrivacyPlan(
    noise_multiplier=4.0, delta=1e-5, rounds=5, cohort=10.0, population=100, sampling="fixed"
)
RECORDS = ExamplePlan(
    terms=ExampleTerms(clip_norm=1.0, noise_multiplier=2.0, rate=0.1),
    delta=1e-5,
    rounds=2,
    epochs=1,
)


def books(folder: Path, **bounds: float) -> PopulationLedger:
    """Return the books in a folder."""
    return PopulationLedger(folder / "privacy.sqlite", delta=DELTA, bounds=bounds)  # type: ignore[arg-type]


def begun(
    ledger: PopulationLedger,
    run: int,
    plan: PrivacyPlan | ExamplePlan = PLAN,
    file: Path | None = None,
) -> PrivateRun:
    """Return a run that has begun."""
    return PrivateRun(plan, RunLedger(file), RunShare(ledger, run))


GAUSSIAN = GaussianEvent(noise_multiplier=3.0)
COINS = PoissonEvent(probability=0.1, event=GaussianEvent(noise_multiplier=1.0))
OTHERS = PoissonEvent(probability=0.2, event=GaussianEvent(noise_multiplier=2.0))


def test_what_adds_up_exactly() -> None:
    """Gaussian releases in closed form, draws as dp-accounting has them, others by their line."""
    both: Releases = ((GAUSSIAN, 4), (GaussianEvent(noise_multiplier=6.0), 8), (GAUSSIAN, 1))
    assert epsilon_of_releases(both, DELTA) == epsilon_of_cost(5 / 9 + 8 / 36, DELTA)
    drawn = epsilon_of_draws(((COINS, 30), (OTHERS, 20)), delta=DELTA, accountant="least")
    assert epsilon_of_releases(((COINS, 30), (OTHERS, 20)), DELTA) == drawn
    assert epsilon_of_releases(((COINS, 30),), DELTA) == epsilon_of(
        COINS, count=30, delta=DELTA, accountant="least"
    )
    line = ((ConcentratedEvent(noise_multiplier=2.0), 3), (LaplaceEvent(noise_multiplier=2.0), 1))
    assert epsilon_of_releases(line, DELTA) == epsilon_of_line(3 / 4 + 1 / 2, DELTA)
    assert epsilon_of_releases((), DELTA) == 0.0


def test_kinds_without_a_common_form_are_bounded() -> None:
    """By Renyi divergences: more than any part, and not more than all parts one after another."""
    mixed = ((COINS, 30), (GAUSSIAN, 2), (ConcentratedEvent(noise_multiplier=2.0), 3))
    parts = [epsilon_of_releases((each,), DELTA) for each in mixed]
    assert max(parts) < epsilon_of_releases(mixed, DELTA) < sum(parts)


def test_runs_add_up_and_outlive_the_process(tmp_path: Path) -> None:
    """Two runs of five rounds are ten releases, read back from the disk."""
    ledger = books(tmp_path)
    begun(ledger, 1)
    begun(ledger, 2)
    ledger.close()
    again = books(tmp_path)
    assert again.epsilon("client") == epsilon_of_cost(10 / 16, DELTA) == again.epsilon("record")


def test_a_run_that_would_exceed_the_bound_is_refused(tmp_path: Path) -> None:
    """With the numbers and the remedy; the books stay as they were, and a smaller run goes on."""
    bound = epsilon_of_cost(8 / 16, DELTA)
    ledger = books(tmp_path, client=bound)
    begun(ledger, 1)
    with pytest.raises(
        ConfigError, match=r"epsilon_max .* with run 2, .* more noise or fewer rounds"
    ):
        begun(ledger, 2)
    assert [row.run_id for row in ledger.rows()] == [1]
    begun(ledger, 3, replace(PLAN, rounds=3))
    with pytest.raises(ConfigError):
        begun(ledger, 4, replace(PLAN, rounds=1, noise_multiplier=1000.0, epsilon_max=None))


def test_a_resumed_run_counts_once_and_a_finished_one_as_it_was(tmp_path: Path) -> None:
    """It is in its own room; what it did not use is free again."""
    ledger, file = books(tmp_path, client=epsilon_of_cost(5 / 16, DELTA)), tmp_path / "run.sqlite"
    run = begun(ledger, 1, file=file)
    run.account(1)
    run.account(2)
    again = begun(ledger, 1, file=file)
    assert sum(row.count for row in ledger.rows()) == 5
    again.account(3)
    again.settle()
    assert sum(row.count for row in ledger.rows()) == 3
    begun(ledger, 2, replace(PLAN, rounds=2))
    with pytest.raises(ConfigError):  # the room is taken now
        begun(ledger, 1, file=file)


def test_repeated_rounds_count_before_they_are_released(tmp_path: Path) -> None:
    """A release beyond the plan asks for more, and is refused where there is no more."""
    ledger = books(tmp_path, client=epsilon_of_cost(6 / 16, DELTA))
    run = begun(ledger, 1)
    run.account(1)
    run.account(1)
    assert sum(row.count for row in ledger.rows()) == 6
    with pytest.raises(ConfigError, match="epsilon_max"):
        run.account(1)
    assert run.summary()["releases"] == 2


def test_repeated_draws_are_one_cohort(tmp_path: Path) -> None:
    """As in the run's own books: less noise on one draw, and the others as planned."""
    plan = replace(PLAN, sampling="poisson")
    ledger = books(tmp_path)
    run = begun(ledger, 1, plan)
    for number in (1, 2, 2, 3, 4, 5):
        run.account(number)
    counts = {round(row.noise_multiplier, 4): row.count for row in ledger.rows()}
    assert counts == {4.0: 4, round(4 / 2**0.5, 4): 1}
    run.settle()
    at_run = replace(plan, delta=DELTA)
    assert ledger.epsilon("client") == pytest.approx(at_run.epsilon(6, (2,)))


def test_turns_and_records(tmp_path: Path) -> None:
    """Who takes part by turns is asked for that often; DP-SGD hides records alone."""
    ledger = books(tmp_path)
    turns = replace(PLAN, separation=2, correlation=Banded(rounds=5, bands=2))
    begun(ledger, 1, turns)
    assert ledger.epsilon("client") == epsilon_of_cost(3 / 16, DELTA)
    begun(ledger, 2, RECORDS)
    assert math.isinf(ledger.epsilon("client"))
    assert 0 < ledger.epsilon("record") < math.inf
    steps = RECORDS.event.steps * RECORDS.rounds
    assert [row.count for row in ledger.rows()] == [3, steps]


def test_runs_without_noise_are_refused_under_a_bound(tmp_path: Path) -> None:
    """What they told has no bound, before or after."""
    ledger = books(tmp_path, client=5.0)
    with pytest.raises(ConfigError, match=r"run 1 adds no noise.*meadow\.toml"):
        RunShare(ledger, 1).ask(None, ())
    with pytest.raises(ConfigError, match="run 2 adds no noise that hides a client"):
        begun(ledger, 2, RECORDS)
    assert not ledger.rows()
    RunShare(books(tmp_path), 3).ask(None, ())
    with pytest.raises(ConfigError, match=r"run 3 .* its participants have no bound any more"):
        begun(ledger, 4)


def _ask(folder: Path, run: int, found: multiprocessing.Queue[tuple[int, bool]]) -> None:
    ledger = books(folder, client=epsilon_of_cost(15 / 16, DELTA))
    try:
        begun(ledger, run)
        found.put((run, True))
    except ConfigError:
        found.put((run, False))


def test_runs_that_begin_at_once_see_each_other(tmp_path: Path) -> None:
    """Of five processes, three find room, whoever comes first."""
    books(tmp_path).close()
    context = multiprocessing.get_context("fork")
    found: multiprocessing.Queue[tuple[int, bool]] = context.Queue()
    asking = [context.Process(target=_ask, args=(tmp_path, run, found)) for run in range(1, 6)]
    for process in asking:
        process.start()
    answers = [found.get(timeout=60) for _ in asking]
    for process in asking:
        process.join()
    assert sum(room for _, room in answers) == 3
    assert {row.run_id for row in books(tmp_path).rows()} == {run for run, room in answers if room}


def test_another_run_between_reading_and_writing_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is computed without a lock, and anew if the books have changed."""
    bound = epsilon_of_cost(5 / 16, DELTA)
    ledger, other = books(tmp_path, client=bound), books(tmp_path, client=bound)
    within = PopulationLedger._require_within

    def interrupted(self: PopulationLedger, *given: object) -> None:
        within(self, *given)  # type: ignore[arg-type]
        if self is ledger and not other.rows():
            begun(other, 2)

    monkeypatch.setattr(PopulationLedger, "_require_within", interrupted)
    with pytest.raises(ConfigError, match="with run 1"):
        begun(ledger, 1)
    assert [row.run_id for row in ledger.rows()] == [2]


def test_a_changed_row_is_not_believed(tmp_path: Path) -> None:
    """Nor is a run begun on books that cannot be read."""
    import sqlite3

    ledger = books(tmp_path)
    begun(ledger, 1)
    ledger.close()
    with sqlite3.connect(tmp_path / "privacy.sqlite") as file:
        file.execute("DROP TRIGGER IF EXISTS seal_asked_update")
        for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            file.execute(f"DROP TRIGGER {name}")
        file.execute("UPDATE asked SET noise_multiplier = 400.0")
    with pytest.raises(StoreError, match="not as it was written"):
        books(tmp_path)


@pytest.mark.parametrize("how", ["deleted", "emptied", "replaced", "older"])
def test_a_ledger_that_lacks_runs_is_refused(tmp_path: Path, how: str) -> None:
    """A server whose ledger is gone does not count from nothing, unless it is told to."""
    file = tmp_path / "privacy.sqlite"
    ledger = books(tmp_path)
    begun(ledger, 1)
    ledger.close()
    copy = file.read_bytes()
    ledger = books(tmp_path)
    begun(ledger, 2)
    ledger.close()
    books(tmp_path).close()
    for each in tmp_path.glob("privacy.sqlite*"):
        each.unlink()
    if how == "emptied":
        file.write_bytes(b"")
    elif how == "replaced":
        (tmp_path / "other").mkdir()
        other = books(tmp_path / "other")
        begun(other, 1)
        other.close()
        shutil.copy(tmp_path / "other" / "privacy.sqlite", file)
    elif how == "older":
        file.write_bytes(copy)
    remedy = "restore it from a backup, or delete .*ledger to count from nothing"
    for _ in range(2):
        with pytest.raises(StoreError, match=remedy):
            books(tmp_path)
    (tmp_path / "ledger").unlink()
    books(tmp_path).close()


def test_a_server_without_private_runs_may_lose_its_ledger(tmp_path: Path) -> None:
    """There is nothing in it that a bound needs."""
    ledger = books(tmp_path)
    ledger.ask(1, None, ())
    ledger.close()
    for each in tmp_path.glob("privacy.sqlite*"):
        each.unlink()
    begun(books(tmp_path), 2)


def test_the_command_prints_the_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a server's folder, with the bounds of its server.toml."""
    folder = tmp_path / "server"
    for command in (["init", "--dir", str(folder)], ["privacy", "--dir", str(folder)]):
        assert ended(["server", *command]) == 0
    assert "no run has asked for anything yet" in capsys.readouterr().out
    with (folder / "server.toml").open("a") as file:
        file.write("\nepsilon_max = 4.0\n")
    ledger = open_population(folder)
    begun(ledger, 1)
    with pytest.raises(ConfigError, match=r"epsilon_max in server\.toml is 4"):
        begun(ledger, 2, replace(PLAN, rounds=500))
    assert ended(["server", "privacy", "--dir", str(folder), "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["epsilon"] == ledger.epsilon("client") and said["asked"][0]["count"] == 5
    assert ended(["server", "privacy", "--dir", str(folder)]) == 0
    assert "a client that is in all runs" in capsys.readouterr().out


def ended(command: list[str]) -> int:
    """Return a command's exit code."""
    with pytest.raises(SystemExit) as stop:
        main(command)
    return int(stop.value.code or 0)
