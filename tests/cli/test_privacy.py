"""`meadow privacy plan` and `meadow client privacy`: numbers for people and for programs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from meadow.cli.main import main
from meadow.client.owner.database import AgentDatabase
from meadow.client.owner.ledger import Ledger
from meadow.privacy.dp.accounting.gaussian import epsilon_of_cost
from meadow.privacy.dp.noise_terms import NoiseTerms
from meadow.privacy.secagg.protocol.noisy_encoding import NoisyEncoding
from meadow.privacy.secagg.terms.terms import SecureTerms
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
    assert "norm of the noise on all params: 4, 4 times the largest delta" in text


def test_correlated_noise_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """At one budget: turns need less noise, and correlation leaves less of it in the model."""
    options = ["--rounds", "200", "--epsilon", "2", "--sampling", "fixed", "--format", "json"]
    options += ["--params", "100000"]
    found = []
    for more in (
        [],
        ["--min-separation", "20"],
        ["--correlation", "tree"],
        ["--correlation", "banded"],
    ):
        more = more if "20" in more or not more else [*more, "--min-separation", "20"]
        found.append(json.loads(run(capsys, *PLAN, *options, *more)[1]))
    after = [plan["noise_stddev_after"] for plan in found]
    assert after == sorted(after, reverse=True) and after[1] > 2 * after[3]
    cosines = [plan["cosine_after"] for plan in found]
    assert cosines == sorted(cosines)
    assert [plan["participations"] for plan in found] == [200, 10, 10, 10]
    assert all(1.99 < plan["epsilon"] <= 2.0 for plan in found)
    text = run(capsys, *PLAN, *options[:-4], "--params", "100000")[1]
    assert f"has a cosine of {cosines[0]:.3f} with the one without noise" in text


@pytest.mark.parametrize(
    "wrong",
    [
        ["--rounds", "10"],
        ["--rounds", "10", "--epsilon", "2", "--noise-multiplier", "1"],
        ["--rounds", "10", "--epsilon", "2", "--sampling", "shuffle"],
        ["--rounds", "10", "--epsilon", "2", "--delta", "0.01"],
        ["--rounds", "10", "--epsilon", "2", "--correlation", "banded"],
        ["--rounds", "10", "--epsilon", "2", "--sampling", "fixed", "--correlation", "shuffle"],
    ],
)
def test_wrong_calls(capsys: pytest.CaptureFixture[str], wrong: list[str]) -> None:
    """They end with 2, as every wrong call does."""
    assert run(capsys, *PLAN, *wrong)[0] == 2


def test_an_owner_sees_what_was_spent(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Run by run and together, beside the budget; rounds without noise are unbounded."""
    (tmp_path / "client.toml").write_text("[policy]\nepsilon_max = 3.0\ndelta = 1e-5\n")
    database = AgentDatabase(tmp_path / "agent.sqlite")
    for number in range(3):
        instruction = pb.Instruction(id=str(number), run_id=7, app=pb.App(name="digits"))
        Ledger(database).participate(instruction, now_s=0.0, noise=NoiseTerms(noise_multiplier=5.0))
    _, text = run(capsys, "client", "privacy", "--dir", str(tmp_path), "--format", "json")
    found = json.loads(text)
    assert found["epsilon"] == pytest.approx(epsilon_of_cost(3 / 25, 1e-5))
    assert found["epsilon"] < found["record_epsilon"] < 1.2 * found["epsilon"]
    assert found["runs"] == [
        {
            "app": "digits",
            "run_id": "7",
            "rounds": 3,
            "epsilon": found["epsilon"],
            "record_epsilon": found["record_epsilon"],
        }
    ]
    bare = pb.Instruction(id="bare", run_id=8, app=pb.App(name="digits"))
    Ledger(database).participate(bare, now_s=0.0)
    database.close()
    _, text = run(capsys, "client", "privacy", "--dir", str(tmp_path))
    assert "unbounded of 3, at delta = 1e-05" in text


def test_noise_that_clients_add_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """Within secure sums hardly more than the server's, on every client's own delta far more."""
    options = ["--rounds", "20", "--epsilon", "2", "--sampling", "fixed", "--format", "json"]
    planned = {}
    options += ["--corrupt-fraction", "0", "--dropout-fraction", "0"]
    for noise in ("server", "distributed", "distributed_gaussian", "local_gaussian"):
        _, text = run(capsys, *PLAN, *options, "--noise", noise)
        planned[noise] = json.loads(text)["noise_stddev"]
    assert planned["server"] < planned["distributed"] < 1.12 * planned["server"]
    assert planned["local_gaussian"] == pytest.approx(500**0.5 * planned["server"])


@pytest.mark.parametrize("noise", ["distributed", "distributed_gaussian"])
def test_the_noise_of_all_shares_is_printed(noise: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As a secure sum of everybody draws it, not as that of the fewest honest survivors."""
    options = ["--clients", "10", "--cohort", "10", "--rounds", "5", "--delta", "1e-5"]
    options += ["--noise-multiplier", "2", "--sampling", "fixed", "--noise", noise]
    options += ["--corrupt-fraction", "0.1", "--dropout-fraction", "0.2", "--clip", "0.5"]
    _, text = run(capsys, "privacy", "plan", *options, "--params", "64", "--format", "json")
    terms = SecureTerms(
        corrupt=0.1,
        dropout=0.2,
        metrics=(),
        clip_norm=0.5,
        noise_multiplier=2.0,
        noise_law=NoiseTerms(source=noise, noise_multiplier=2.0).law,  # type: ignore[arg-type]
    )
    encoding = terms.plan(clients=10, length=64).encoding
    assert isinstance(encoding, NoisyEncoding)
    drawn = []
    for _ in range(40):
        shares = [encoding.encode(np.zeros(64), 1, entropy=os.urandom) for _ in range(10)]
        total = np.add.reduce(np.array(shares, np.uint32), dtype=np.uint32)
        drawn.append(encoding.decode(total)[0] / 10)
    found = json.loads(text)["noise_stddev"]
    assert found == pytest.approx(float(np.std(drawn)), rel=0.1)
    assert found > 1.15 * 2.0 * 0.5 / 10
    assert "times the accounted noise" in run(capsys, "privacy", "plan", *options)[1]


@pytest.mark.parametrize("noise", ["local_gaussian", "local_laplace"])
def test_local_noise_has_both_neighbours(noise: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An update that is left out, and any two updates, which need twice the sensitivity."""
    options = ["--rounds", "3", "--sampling", "fixed", "--noise", noise]
    epsilons = []
    for multiplier in ("8", "4"):
        given = (*options, "--noise-multiplier", multiplier)
        epsilons.append(json.loads(run(capsys, *PLAN, *given, "--format", "json")[1]))
    assert epsilons[0]["epsilon_any_two"] == epsilons[1]["epsilon"] > epsilons[0]["epsilon"]
    text = run(capsys, *PLAN, *options, "--noise-multiplier", "8")[1]
    assert "up to twice the clip, it is" in text
