"""`meadow privacy plan` and `meadow client privacy`: numbers for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meadow.cli.main import main
from meadow.client.database import Database
from meadow.client.ledger import Ledger
from meadow.privacy.dp.gaussian import epsilon_of_cost
from meadow.transport import fleet_pb2 as pb

PLAN = ["privacy", "plan", "--delta", "1e-6", "--clients", "10000", "--cohort", "500"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command; returns its exit code and what it printed."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0), capsys.readouterr().out


def test_noise_and_epsilon_follow_from_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """The noise that is printed for a budget costs that budget; the curve ends there."""
    _, text = run(capsys, *PLAN, "--rounds", "100", "--epsilon", "2", "--format", "json")
    planned = json.loads(text)
    assert 1.99 < planned["epsilon"] <= 2.0
    noise = str(planned["noise_multiplier"])
    _, text = run(capsys, *PLAN, "--rounds", "100", "--noise-multiplier", noise, "--format", "json")
    assert json.loads(text)["epsilon"] == pytest.approx(planned["epsilon"])
    curve = [point["epsilon"] for point in planned["curve"]]
    assert curve == sorted(curve) and curve[-1] == planned["epsilon"]
    assert planned["noise_stddev"] == pytest.approx(planned["noise_multiplier"] / 500)


def test_it_speaks_to_people(capsys: pytest.CaptureFixture[str]) -> None:
    """The size of the noise is given beside what one client may change."""
    options = ("--rounds", "10", "--noise-multiplier", "4", "--sampling", "fixed")
    code, text = run(capsys, *PLAN, *options, "--params", "250000")
    assert code == 0
    assert "norm of the noise on all params: 4, 4 times the largest change" in text


@pytest.mark.parametrize(
    "wrong",
    [
        ["--rounds", "10"],
        ["--rounds", "10", "--epsilon", "2", "--noise-multiplier", "1"],
        ["--rounds", "10", "--epsilon", "2", "--sampling", "shuffle"],
        ["--rounds", "10", "--epsilon", "2", "--delta", "0.01"],
    ],
)
def test_wrong_calls(capsys: pytest.CaptureFixture[str], wrong: list[str]) -> None:
    """They end with 2, as every wrong call does."""
    assert run(capsys, *PLAN, *wrong)[0] == 2


def test_an_owner_sees_what_was_spent(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Run by run and together, beside the budget; rounds without noise are unbounded."""
    (tmp_path / "client.toml").write_text("[policy]\nepsilon_max = 3.0\ndelta = 1e-5\n")
    database = Database(tmp_path / "agent.sqlite")
    for number in range(3):
        instruction = pb.Instruction(id=str(number), run_id=7, app=pb.App(name="digits"))
        Ledger(database).participate(instruction, now_s=0.0, noise_multiplier=5.0)
    _, text = run(capsys, "client", "privacy", "--dir", str(tmp_path), "--format", "json")
    found = json.loads(text)
    assert found["epsilon"] == pytest.approx(epsilon_of_cost(3 / 25, 1e-5))
    assert found["runs"] == [
        {"app": "digits", "run_id": "7", "rounds": 3, "epsilon": found["epsilon"]}
    ]
    bare = pb.Instruction(id="bare", run_id=8, app=pb.App(name="digits"))
    Ledger(database).participate(bare, now_s=0.0)
    database.close()
    _, text = run(capsys, "client", "privacy", "--dir", str(tmp_path))
    assert "unbounded of 3, at delta = 1e-05" in text
