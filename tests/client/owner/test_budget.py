"""The owner's budget: every round costs what its noise says, over all runs, and never less."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import dp_accounting
import dp_accounting.rdp
import pytest

from meadow.client.owner.announcements import (
    announced_steps,
    charged_noise,
    charged_steps,
    noise_terms_of,
)
from meadow.client.owner.budget import Spending, check_budget, epsilon_spent, round_epsilons
from meadow.client.owner.database import AgentDatabase
from meadow.client.owner.example_budget import Release, record_epsilon, steps_of
from meadow.client.owner.ledger import Ledger, content_of
from meadow.config.client_config import PolicyConfig
from meadow.errors import RefusedError
from meadow.transport import fleet_pb2 as pb
from meadow.transport.entries import pack_entries

KILLED = """
import os, signal, sys
from pathlib import Path
from meadow.client.owner.database import AgentDatabase
from meadow.client.owner.ledger import Ledger
from meadow.privacy.dp.noise_terms import NoiseTerms
from meadow.transport import fleet_pb2 as pb
instruction = pb.Instruction.FromString(bytes.fromhex(sys.argv[2]))
Ledger(AgentDatabase(Path(sys.argv[1]))).participate(instruction, now_s=0.0, noise=NoiseTerms(noise_multiplier=2.0))
os.kill(os.getpid(), signal.SIGKILL)
"""


CLIENTS = 9
"""Of a secure sum."""


def make(
    *,
    id: str = "1",
    run: int = 1,
    noise: object = 2.0,
    kind: str = "train",
    private: bool = True,
    source: str | None = None,
) -> pb.Instruction:
    """Return an instruction of a private run."""
    said: dict[str, object] = {"dp-clip-norm": 1.0, "dp-clipping": "fixed", "server-round": 1}
    if noise is not None:
        said["dp-noise-multiplier"] = noise
    if source is not None:
        said["dp-noise"] = source
    sum_ = pb.Record(name="secure")
    if kind == "train.secure":
        sum_.configs.entries.extend(pack_entries({"nodes": bytes(8 * CLIENTS)}))
    record = pb.Record(name="config", configs=pb.Entries(entries=pack_entries(said)))  # type: ignore[arg-type]
    return pb.Instruction(
        id=id,
        run_id=run,
        app=pb.App(name=source or "digits", sha256="a" * 64),
        differential_privacy=private,
        envelope=pb.Envelope(metadata=pb.Metadata(message_type=kind), records=[record, sum_]),
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger."""
    return Ledger(AgentDatabase(tmp_path / "agent.sqlite"))


def spend(ledger: Ledger, instruction: pb.Instruction) -> None:
    """Count an instruction as the agent does."""
    ledger.participate(instruction, now_s=0.0, noise=noise_terms_of(instruction))


def test_costs_add_up_over_runs(ledger: Ledger) -> None:
    """The epsilon of rounds with different noise is that of one Gaussian; each run has its own."""
    for number in range(6):
        spend(ledger, make(id=str(number), run=1 + number // 4, noise=2.0 + number // 4))
    spent = ledger.spent()
    assert [(each.run_id, each.rounds) for each in spent] == [("1", 4), ("2", 2)]
    multiplier = (4 / 4 + 2 / 9) ** -0.5
    theirs = dp_accounting.get_epsilon_gaussian(multiplier, 1e-6)
    assert epsilon_spent(spent, 1e-6) == pytest.approx(theirs, rel=1e-6)


def test_a_round_beyond_the_budget_is_refused_with_the_numbers(ledger: Ledger) -> None:
    """As many rounds run as the budget has room for, and the refusal says what would happen."""
    policy, ran = PolicyConfig(epsilon_max=5.0), 0
    with pytest.raises(RefusedError) as refused:
        for number in range(1000):
            instruction = make(id=str(number), noise=4.0)
            check_budget(instruction, policy, spent=ledger.spent())
            spend(ledger, instruction)
            ran += 1
    spent = epsilon_spent(ledger.spent(), 1e-6)
    assert spent <= 5.0 < dp_accounting.get_epsilon_gaussian(4.0 / (ran + 1) ** 0.5, 1e-6)
    for part in ("epsilon_max is 5", f"{spent:.4g} was spent in {ran} rounds", "multiplier 4"):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("instruction", "says"),
    [
        (make(private=False), "adds no noise"),
        (make(noise=None), "adds no noise"),
        (make(noise=0.0), "adds no noise"),
        (make(noise=math.nan), "adds no noise"),
        (make(noise="much"), "adds no noise"),
        (make(kind="evaluate"), "carries no noise"),
        (make(kind="query"), "carries no noise"),
        (make(noise=0.1), "would make it"),
    ],
)
def test_what_a_budget_refuses(instruction: pb.Instruction, says: str) -> None:
    """Whatever shows data without noise, or too little of it."""
    with pytest.raises(RefusedError, match=says):
        check_budget(instruction, PolicyConfig(epsilon_max=5.0), spent=[])
    check_budget(instruction, PolicyConfig(), spent=[])


def test_correlated_noise_hides_only_who_waits(ledger: Ledger) -> None:
    """A server that asks again too soon is refused; what it repeats, and other runs, are not."""
    policy = PolicyConfig(epsilon_max=50.0)

    def asked(number: int, *, run: int = 1, reach: object = 4) -> None:
        instruction = make(id=f"{run}-{number}", run=run)
        instruction.envelope.metadata.group_id = str(number)
        extra = pack_entries({"dp-noise-reach": reach})  # type: ignore[dict-item]
        instruction.envelope.records[0].configs.entries.extend(extra)
        rounds = ledger.rounds_of_run(instruction)
        check_budget(instruction, policy, spent=ledger.spent(), rounds=rounds)
        spend(ledger, instruction)

    for number in (1, 5, 5, 11):
        asked(number)
    asked(12, run=2)
    with pytest.raises(RefusedError, match=r"round 8, its noise .* over 4 rounds, .* in round 11"):
        asked(8)
    with pytest.raises(RefusedError, match="does not name"):
        asked(30, reach="far")


def test_a_second_delivery_costs_nothing_and_a_second_round_does(ledger: Ledger) -> None:
    """The same instruction is one release; another under the same id is another one."""
    for _ in range(3):
        spend(ledger, make())
    assert [each.rounds for each in ledger.spent()] == [1]
    assert ledger.spent(besides=content_of(make())) == []
    again = make()
    again.envelope.records[0].configs.entries.add(key="server-round-2").value.CopyFrom(
        again.envelope.records[0].configs.entries[0].value
    )
    spend(ledger, again)
    spend(ledger, make(run=2))
    assert [each.rounds for each in ledger.spent()] == [2, 1]


def test_rounds_without_noise_are_unbounded(ledger: Ledger) -> None:
    """After one of them no budget holds any more, and nothing claims otherwise."""
    spend(ledger, make(private=False))
    assert math.isinf(epsilon_spent(ledger.spent(), 1e-6))
    with pytest.raises(RefusedError, match="trained on without noise before"):
        check_budget(make(id="2"), PolicyConfig(epsilon_max=100.0), spent=ledger.spent())


def test_what_was_counted_survives_a_kill(tmp_path: Path) -> None:
    """An agent killed right after the ledger, before it trains, has spent the round."""
    path = tmp_path / "agent.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), make().SerializeToString().hex()],
        check=False,
        env=os.environ,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL
    assert [each.rounds for each in Ledger(AgentDatabase(path)).spent()] == [1]


def test_noise_that_clients_add_costs_by_its_kind(ledger: Ledger) -> None:
    """Skellam's and Laplace's releases by their divergences: more than Gaussian ones cost."""

    def epsilon(source: str, kind: str) -> float:
        made = [make(id=f"{source}{n}", kind=kind, source=source) for n in range(4)]
        for each in made:
            spend(ledger, each)
        return epsilon_spent([each for each in ledger.spent() if each.app == source], 1e-6)

    gaussian = epsilon("local_gaussian", "train")
    skellam = epsilon("distributed", "train.secure")
    laplace = epsilon("local_laplace", "train")
    assert gaussian < skellam < 1.2 * gaussian < laplace
    assert gaussian == epsilon("server", "train")
    together = epsilon_spent(ledger.spent(), 1e-6)
    assert max(skellam, laplace) < together < gaussian + skellam + laplace + gaussian


def test_a_share_of_noise_without_a_sum_is_none(ledger: Ledger) -> None:
    """And a server's noise is none in a secure sum, which it does not reach."""
    assert noise_terms_of(make(source="distributed", kind="train.secure")) is not None
    assert noise_terms_of(make(source="distributed", kind="train")) is None
    assert noise_terms_of(make(source="distributed_gaussian", kind="train.secure")) is not None
    assert noise_terms_of(make(source="distributed_gaussian", kind="train")) is None
    assert noise_terms_of(make(source="server", kind="train.secure")) is None
    assert noise_terms_of(make(source="nobody")) is None


def test_the_messages_of_a_sum_are_of_the_round_that_was_counted() -> None:
    """A budget lets them pass; evaluations in secure sums, which carry no noise, it does not."""
    policy = PolicyConfig(epsilon_max=8.0, delta=1e-6)
    for kind in ("query.secure_identity", "query.secure_vector", "query.secure_unmask"):
        check_budget(make(kind=kind), policy, spent=[])
    for kind in ("evaluate.secure", "evaluate", "query"):
        with pytest.raises(RefusedError, match="carries no noise"):
            check_budget(make(kind=kind), policy, spent=[])


STEPS = {
    "dp-record-clip": 1.0,
    "dp-record-noise-multiplier": 1.0,
    "dp-record-sampling-rate": 0.05,
    "epochs": 2,
}


def stepped(number: int) -> pb.Instruction:
    """Return an instruction of a run with records as the unit."""
    made = make(id=f"r{number}", noise=None)
    record = pb.Record(name="config", configs=pb.Entries(entries=pack_entries(STEPS)))  # type: ignore[arg-type]
    del made.envelope.records[:]
    made.envelope.records.append(record)
    return made


def test_a_records_budget_holds_over_rounds_and_restarts(tmp_path: Path) -> None:
    """Rounds are counted until the next one would exceed it; then they are refused, with numbers."""
    policy, done = PolicyConfig(record_epsilon_max=6.0, delta=1e-5), 0
    for number in range(100):
        ledger = Ledger(AgentDatabase(tmp_path / "agent.sqlite"))  # as after a restart
        try:
            check_budget(stepped(number), policy, spent=ledger.spent())
        except RefusedError as error:
            assert "policy.record_epsilon_max is 6" in str(error)
            assert f"was spent in {done} rounds" in str(error)
            break
        ledger.participate(stepped(number), now_s=0.0, steps=announced_steps(stepped(number)))
        done += 1
    steps = announced_steps(stepped(0))
    assert steps is not None and steps.steps == 40 and 1 < done < 100
    accountant = dp_accounting.rdp.RdpAccountant(orders=list(range(2, 257)))
    noisy = dp_accounting.GaussianDpEvent(1.0)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.05, noisy), 40 * done)
    assert 4.5 < accountant.get_epsilon(1e-5) <= 6.0
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.05, noisy), 40)
    assert accountant.get_epsilon(1e-5) > 6.0


def test_units_have_budgets_of_their_own(ledger: Ledger) -> None:
    """A run that hides records does not hide the client; one that hides the client hides both."""
    client, record = PolicyConfig(epsilon_max=50.0), PolicyConfig(record_epsilon_max=50.0)
    with pytest.raises(RefusedError, match="hides only single examples"):
        check_budget(stepped(1), client, spent=[])
    check_budget(stepped(1), record, spent=[])
    check_budget(make(), record, spent=[])
    for kind in ("train", "evaluate"):
        with pytest.raises(RefusedError, match=r"record_epsilon_max is 50, .* carries no noise"):
            check_budget(make(noise=None, kind=kind), record, spent=[])
    ledger.participate(stepped(1), now_s=0.0, steps=announced_steps(stepped(1)))
    assert math.isinf(epsilon_spent(ledger.spent(), 1e-5))
    (spent,) = ledger.spent()
    assert 0 < record_epsilon(spent.releases, 1e-5) < 10


def test_a_share_of_the_sums_noise_is_what_counts() -> None:
    """A server may be all the other clients, unless the owner knows who or how many they are."""
    summed = make(source="distributed", kind="train.secure", noise=3.0)

    def charged(instruction: pb.Instruction, **policy: object) -> float | None:
        noise = charged_noise(instruction, PolicyConfig(**policy))  # type: ignore[arg-type]
        return None if noise is None else noise.noise_multiplier

    assert charged(summed) == 3.0 / math.sqrt(CLIENTS)
    assert charged(summed, min_colluders=2) == 3.0
    assert charged(summed, known_peers=("ed25519:" + "a" * 64,)) == 3.0
    assert charged(make(source="local_gaussian", noise=3.0)) == 3.0
    for nodes in (None, b"", b"abc"):
        lying = make(source="distributed", kind="train.secure")
        del lying.envelope.records[1].configs.entries[:]
        if nodes is not None:
            lying.envelope.records[1].configs.entries.extend(pack_entries({"nodes": nodes}))
        assert charged(lying) is None
    assert charged(make(source="server", noise=3.0)) == 3.0


EXTREMES = [5e-324, 1e-200, 1e-170, 1e-13, 1e-12, 1e-6, 0.5, 1.0, 1e6, 1e12, 1e13, 1e200, 1.8e308]
EXTREMES += [math.nan, math.inf, -1.0, 0.0]


@pytest.mark.parametrize("key", [*STEPS, "dp-noise-multiplier", "dp-clip-norm"])
@pytest.mark.parametrize("value", [*EXTREMES, 0, 1, True, "1.0", 10**30, b"1"])
def test_no_number_breaks_or_fools_the_budget(ledger: Ledger, key: str, value: object) -> None:
    """A budget refuses, or what is booked is a number that grows with every round."""
    policy = PolicyConfig(record_epsilon_max=1.0, delta=1e-5)
    if isinstance(value, int) and value > 1 << 62:
        return  # the wire's whole numbers end before
    said = {"dp-clip-norm": 1.0, "dp-clipping": "fixed", "dp-noise-multiplier": 50.0}
    said = STEPS | {"dp-record-noise-multiplier": 50.0} if key in STEPS else said
    instruction = make(noise=None)
    instruction.envelope.records[0].configs.CopyFrom(
        pb.Entries(entries=pack_entries({**said, key: value}))  # type: ignore[arg-type, dict-item]
    )
    steps, noise = announced_steps(instruction), noise_terms_of(instruction)
    try:
        check_budget(instruction, policy, spent=[])
    except RefusedError:
        pass
    else:
        assert steps is not None or noise is not None
    spent = [0.0]
    for number in range(3):
        instruction.id = str(number)
        ledger.participate(instruction, now_s=0.0, noise=noise, steps=steps)
        releases = [each for one in ledger.spent() for each in one.releases]
        spent.append(record_epsilon(releases, 1e-5))
    assert not any(math.isnan(each) for each in spent) and spent == sorted(spent)
    tiny = isinstance(value, float) and 0 < value < 1e-3
    if tiny and key.endswith("noise-multiplier"):
        assert spent[1] > 1.0


def test_accounting_is_monotone_in_the_noise() -> None:
    """Down to no noise at all: less of it never costs less, and nothing is "no number"."""
    from meadow.privacy.dp.accounting.gaussian import cost_of
    from meadow.privacy.dp.example_level import sampled_divergences

    scales = [10.0**exponent for exponent in range(-320, 13)]
    costs = [cost_of(each) for each in scales]
    assert costs == sorted(costs, reverse=True) and costs[0] == math.inf
    for rate in (1e-9, 0.01, 1 - 1e-12, 1.0):
        found = [max(sampled_divergences(rate, each)) for each in scales[::8]]
        assert found == sorted(found, reverse=True) and found[0] == math.inf


def both(*, server_noise: float, record_noise: float) -> pb.Instruction:
    """Return an instruction that announces noise by the server, and steps of DP-SGD beside."""
    made = make(noise=server_noise)
    said = {
        "dp-record-clip": 1.0,
        "dp-record-noise-multiplier": record_noise,
        "dp-record-sampling-rate": 1.0,
        "epochs": 1,
    }
    made.envelope.records[0].configs.entries.extend(pack_entries(said))  # type: ignore[arg-type]
    return made


def test_noise_that_the_owner_does_not_believe_in_pays_for_nothing(ledger: Ledger) -> None:
    """An instruction that announces several: what is added elsewhere hides neither client nor record."""
    asked = both(server_noise=1e6, record_noise=1e-3)
    trusting = PolicyConfig(epsilon_max=1.0, record_epsilon_max=1.0)
    check_budget(asked, trusting, spent=[])
    for bound in ({"epsilon_max": 1.0}, {"record_epsilon_max": 1.0}):
        with pytest.raises(RefusedError):
            check_budget(asked, PolicyConfig(noise=("client",), **bound), spent=[])  # type: ignore[arg-type]
    policy = PolicyConfig(noise=("client",))
    assert charged_noise(asked, policy) is None and charged_steps(asked, policy) is not None
    only_sums = PolicyConfig(noise=("distributed",))
    assert charged_steps(asked, only_sums) is None
    ledger.participate(
        asked, now_s=0.0, noise=charged_noise(asked, policy), steps=charged_steps(asked, policy)
    )
    assert math.isinf(epsilon_spent(ledger.spent(), 1e-6))
    good = both(server_noise=1e6, record_noise=50.0)
    check_budget(good, PolicyConfig(noise=("client",), record_epsilon_max=1.0), spent=[])


def test_the_epsilon_of_one_round() -> None:
    """It is that of a ledger with this round alone, for the client and for a record; a round without such noise
    has none."""
    assert round_epsilons(None, None, 1e-6) == (None, None)
    policy = PolicyConfig()
    noise = charged_noise(make(noise=4.0), policy)
    assert noise is not None
    of_client, of_record = round_epsilons(noise, None, 1e-6)
    spent = Spending(app="a", run_id="1", rounds=1, cost=noise.event.cost)
    assert of_client == epsilon_spent([spent], 1e-6) and of_client > 0
    alone = Release(rounds=1, cost=noise.event.cost, steps=None)
    assert of_record == record_epsilon([alone], 1e-6)
    steps = steps_of(1.0, 0.01, 100)
    of_client, of_record = round_epsilons(None, steps, 1e-6)
    assert of_client is None
    assert of_record == record_epsilon([Release(rounds=1, cost=None, steps=steps)], 1e-6) > 0
