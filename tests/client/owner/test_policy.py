"""The owner's policy: every rule refuses, and names itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from meadow.client.owner.database import AgentDatabase
from meadow.client.owner.ledger import Ledger, content_of
from meadow.client.owner.policy import check, is_training
from meadow.config.client_config import PolicyConfig
from meadow.errors import RefusedError
from meadow.transport import fleet_pb2 as pb
from meadow.transport.entries import pack_entries

SHA = "a" * 64
OTHER = "b" * 64


def make(**changes: object) -> pb.Instruction:
    """Return an instruction that a default policy allows."""
    metadata = pb.Metadata(message_type=str(changes.pop("message_type", "train")), group_id="1")
    instruction = pb.Instruction(
        id="a",
        run_id=1,
        app=pb.App(name="digits", sha256=SHA),
        cohort_clients=2,
        envelope=pb.Envelope(metadata=metadata),
    )
    for name, value in changes.items():
        setattr(instruction, name, value)
    return instruction


def announced(source: str | None, **more: object) -> pb.Record:
    """Return a record that announces noise, from a source; None: DP-SGD's."""
    said: dict[str, object] = {"dp-clip-norm": 1.0, "dp-clipping": "fixed", "dp-noise": source}
    said |= {"dp-noise-multiplier": 1.0}
    if source is None:
        said = {f"dp-record-{key}": 0.5 for key in ("clip", "noise-multiplier", "sampling-rate")}
    return pb.Record(name="config", configs=pb.Entries(entries=pack_entries(said | more)))  # type: ignore[arg-type]


def private(source: str | None, message_type: str = "train", **more: object) -> pb.Instruction:
    """Return an instruction of a private run."""
    made = make(message_type=message_type, differential_privacy=True)
    made.envelope.records.append(announced(source, **more))
    return made


SOURCES = {
    "server": "server",
    "local_gaussian": "client",
    "local_laplace": "client",
    None: "client",
}


def test_more_tensors_than_the_owner_allows() -> None:
    """All files of an instruction count together, each once, before any of them is fetched."""
    instruction = make()
    for number, blob_id in enumerate("abb"):
        blob = pb.Blob(id=blob_id, size_bytes=50)
        instruction.envelope.records.add(name=f"r{number}").arrays.blob.CopyFrom(blob)
    check(instruction, PolicyConfig(received_bytes_max=100), installed=SHA, rounds_today=0)
    with pytest.raises(RefusedError, match=r"policy.received_bytes_max is 99, .* 100 bytes"):
        check(instruction, PolicyConfig(received_bytes_max=99), installed=SHA, rounds_today=0)
    instruction.envelope.records.add(name="large").arrays.blob.CopyFrom(
        pb.Blob(id="c", size_bytes=5 << 30)
    )
    with pytest.raises(RefusedError, match=r"policy.received_bytes_max"):
        check(instruction, PolicyConfig(), installed=SHA, rounds_today=0)


@pytest.mark.parametrize("demanded", [("client",), ("client", "distributed"), ("server",)])
def test_owners_demand_where_noise_is_added(demanded: tuple[str, ...]) -> None:
    """A server that announces its own noise, however much, does not get an update without any."""
    policy = PolicyConfig(noise=demanded)
    for source, place in SOURCES.items():
        asked = private(source)
        if place in demanded:
            check(asked, policy, installed=SHA, rounds_today=0)
            continue
        with pytest.raises(RefusedError, match=r"policy.noise is .* is added by: "):
            check(asked, policy, installed=SHA, rounds_today=0)
    summed = private("distributed", "train.secure")
    if "distributed" in demanded:
        check(summed, policy, installed=SHA, rounds_today=0)
    else:
        with pytest.raises(RefusedError, match="added by: distributed"):
            check(summed, policy, installed=SHA, rounds_today=0)


@pytest.mark.parametrize(
    "policy", [PolicyConfig(require_differential_privacy=True), PolicyConfig(noise=("client",))]
)
def test_a_flag_is_no_noise(policy: PolicyConfig) -> None:
    """A server that says "differential privacy" and announces none gets nothing."""
    bare = make(differential_privacy=True)
    broken = private("local_gaussian", **{"dp-noise-multiplier": 1e-200})
    unclipped = private("local_gaussian", **{"dp-clip-norm": 1e300})
    asked = [bare, broken, unclipped, private("distributed"), private("server", "train.secure")]
    asked += [private("local_gaussian", kind) for kind in ("evaluate", "query", "query.secure_all")]
    for instruction in asked:
        with pytest.raises(RefusedError, match="carries no noise"):
            check(instruction, policy, installed=SHA, rounds_today=0)
    check(private("local_gaussian"), policy, installed=SHA, rounds_today=0)
    talk = make(message_type="query.secure_confirm", differential_privacy=True)
    check(talk, policy, installed=SHA, rounds_today=0)


def test_allows_by_default() -> None:
    """An installed app runs if the owner forbids nothing."""
    check(make(), PolicyConfig(), installed=SHA, rounds_today=1000)


@pytest.mark.parametrize(
    ("policy", "installed", "rounds", "says"),
    [
        ({}, None, 0, "'digits' is not installed"),
        ({}, OTHER, 0, "install the same files on both sides"),
        ({"allowed_apps": (f"sha256:{OTHER}",)}, SHA, 0, "not among policy.allowed_apps"),
        ({"min_cohort": 3}, SHA, 0, "policy.min_cohort is 3, this round has 2 clients"),
        ({"rounds_per_day": 5}, SHA, 5, "policy.rounds_per_day is 5"),
        ({"require_secure_aggregation": True}, SHA, 0, "require_secure_aggregation is set"),
        ({"require_differential_privacy": True}, SHA, 0, "require_differential_privacy is set"),
    ],
)
def test_refuses(policy: dict[str, object], installed: str | None, rounds: int, says: str) -> None:
    """Each rule refuses in a sentence that names it."""
    with pytest.raises(RefusedError, match=says):
        check(make(), PolicyConfig(**policy), installed=installed, rounds_today=rounds)  # type: ignore[arg-type]


def test_allows_at_the_bounds() -> None:
    """What a rule asks for exactly is allowed."""
    policy = PolicyConfig(
        allowed_apps=(f"sha256:{SHA}",),
        min_cohort=2,
        rounds_per_day=5,
        require_secure_aggregation=True,
        require_differential_privacy=True,
    )
    instruction = make(
        message_type="train.secure", secure_aggregation=True, differential_privacy=True
    )
    instruction.envelope.records.append(announced("distributed"))
    check(instruction, policy, installed=SHA, rounds_today=4)


@pytest.mark.parametrize(
    "message_type", ["train", "evaluate", "query", "train.secret", "query.secure_all", ""]
)
def test_nothing_plain_where_sums_are_required(message_type: str) -> None:
    """Whatever the run says of itself: the message decides."""
    policy = PolicyConfig(require_secure_aggregation=True)
    instruction = make(message_type=message_type, secure_aggregation=True)
    with pytest.raises(RefusedError, match="would reveal this client's own result"):
        check(instruction, policy, installed=SHA, rounds_today=0)


def test_dropouts_do_not_end_a_session_that_has_begun() -> None:
    """The cohort is checked when it begins; other messages go to fewer, before it and after."""
    policy = PolicyConfig(min_cohort=3, require_secure_aggregation=True)
    for message_type in ("query.secure_identity", "query.secure_confirm"):
        answer = make(message_type=message_type, secure_aggregation=True)
        check(answer, policy, installed=SHA, rounds_today=0)
    begun = make(message_type="train.secure", secure_aggregation=True)
    with pytest.raises(RefusedError, match="min_cohort is 3"):
        check(begun, policy, installed=SHA, rounds_today=0)


@pytest.mark.parametrize(
    ("message_type", "trains"),
    [
        ("train", True),
        ("train.again", True),
        ("evaluate", False),
        ("query.size", False),
        ("train.secure", True),
        ("query.secure_vector", False),
        ("", True),
    ],
)
def test_only_training_is_counted(message_type: str, trains: bool) -> None:
    """Evaluations and queries are no rounds of training; what is unknown counts as one."""
    assert is_training(make(message_type=message_type)) is trains


def test_ledger_counts_an_instruction_once(tmp_path: Path) -> None:
    """However often an instruction is delivered it is one round, also after a restart."""
    noon_s = 1_700_000_000.0
    for _ in range(2):
        database = AgentDatabase(tmp_path / "agent.sqlite")
        ledger = Ledger(database)
        ledger.participate(make(), now_s=noon_s)
        database.close()
    ledger = Ledger(AgentDatabase(tmp_path / "agent.sqlite"))
    assert ledger.rounds_today(now_s=noon_s) == 1
    assert ledger.rounds_today(now_s=noon_s, besides=content_of(make())) == 0
    assert ledger.rounds_today(now_s=noon_s + 86_400) == 0


def test_ledger_keeps_refusals(tmp_path: Path) -> None:
    """The owner can see what was refused, the newest first."""
    ledger = Ledger(AgentDatabase(tmp_path / "agent.sqlite"))
    ledger.refuse(make(), "first", now_s=1.0)
    ledger.refuse(make(), "second", now_s=2.0)
    assert ledger.refusals() == [(2.0, "digits", "second"), (1.0, "digits", "first")]
