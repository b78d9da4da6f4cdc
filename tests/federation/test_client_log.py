"""The owners' logs, against what a proxy before the server has seen leave: message by message."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from free_ports import free_port

from meadow.transport import fleet_pb2 as pb
from meadow.transport.blobs import blobs_of

from .processes import Federation, meadow, wait_until
from .recording_proxy import RecordingProxy, Seen

pytestmark = pytest.mark.fleet

DIGITS = Path(__file__).parents[1] / "shared" / "digits"
CLIENTS = 3
SETTINGS = (f"run.min_clients={CLIENTS}", f"simulation.clients={CLIENTS}", "run.rounds=2")
PRIVATE = (
    "privacy.differential_privacy.enabled=true",
    "privacy.differential_privacy.noise_multiplier=2.0",
    "privacy.differential_privacy.sampling=fixed",
)
Row = tuple[str, str, str, int, str]
"""Instruction, run, message type, bytes with files, digest."""


def seen_files(seen: Seen) -> set[tuple[str, str]]:
    """Return the files that its answers name, by instruction and blob."""
    found = set()
    for reply in seen.replies:
        envelope = reply.envelope
        if reply.HasField("file"):
            found.add((reply.instruction_id, reply.file.id))
            file = seen.files[reply.instruction_id, reply.file.id]
            envelope = pb.Envelope.FromString(bytes(file))
        found |= {(reply.instruction_id, blob.id) for blob in blobs_of(envelope)}
    return found


def seen_rows(seen: Seen) -> list[Row]:
    """Return each answer once, as it has passed the proxy."""
    found = []
    for reply in seen.replies:
        whole, size = reply, reply.ByteSize()
        if reply.HasField("file"):
            file = seen.files[reply.instruction_id, reply.file.id]
            assert len(file) == reply.file.size_bytes
            size += len(file)
            envelope = pb.Envelope.FromString(bytes(file))
            whole = pb.Reply(instruction_id=reply.instruction_id, envelope=envelope)
        size += sum(
            len(seen.files[reply.instruction_id, blob.id]) for blob in blobs_of(whole.envelope)
        )
        metadata = whole.envelope.metadata
        kind = "refused" if whole.refused else metadata.message_type
        kind = "failed" if whole.envelope.HasField("error") else kind
        digest = sha256(whole.SerializeToString(deterministic=True)).hexdigest()
        run = reply.instruction_id.partition("-")[0]  # a refusal has no metadata
        found.append((reply.instruction_id, run, kind, size, digest))
    return list(dict.fromkeys(found))


def logged_rows(folder: Path) -> list[Row]:
    """Return the owner's log likewise, as `meadow client log` exports it."""
    said = meadow("client", "log", "--dir", str(folder), "--last", "100000")["rows"]
    keys = ("instruction_id", "run_id", "kind", "bytes", "digest")
    return [tuple(row[key] for key in keys) for row in said]  # type: ignore[misc]


def test_the_logs_are_what_the_proxy_saw(tmp_path: Path) -> None:
    """Plain, private and secure runs, with refusals, failures, evaluations, key exchanges and an agent that
    was killed: no message more, none fewer, each of the same bytes."""
    made = Federation(tmp_path, DIGITS)
    proxy = None
    try:
        made.start_server()
        port = free_port()
        for index in range(CLIENTS):
            made.enroll(index)
            file = made.client_dir(index) / "client.toml"
            file.write_text(f'{file.read_text()}\n[server]\naddresses = ["localhost:{port}"]\n')
        folders = [made.client_dir(index) for index in range(CLIENTS)]
        proxy = RecordingProxy(made.server_dir, folders, port=port, fleet_port=made.fleet_port)
        proxy.start()
        made.start_clients(CLIENTS)
        ended = {}
        for name, settings in {
            "plain": (), "private": PRIVATE, "secure": ("privacy.secure_aggregation.enabled=true",),
        }.items():  # fmt: skip
            run = made.submit(*SETTINGS, *settings)
            if name == "plain":
                made.wait_for_round(run, 1)
                made.clients[0].kill()
                made.clients[0].start()
            ended[name] = str(run)
            assert made.wait_for_end(run)["status"] == "finished", name
        policy = folders[1] / "client.toml"
        policy.write_text(policy.read_text() + "[policy]\nmin_cohort = 100\n")
        last = made.submit(*SETTINGS, "run.min_clients=2")
        made.wait_for_end(last)
        for index, folder in enumerate(folders):
            seen = proxy.seen[f"client-{index}"]
            wait_until(lambda f=folder, s=seen: len(logged_rows(f)) == len(seen_rows(s)), "the log")
            logged, passed = logged_rows(folder), seen_rows(seen)
            assert sorted(logged) == sorted(passed)
            assert seen.files.keys() == seen_files(seen), "no file left but those of its answers"
            assert seen.kinds <= {"hello", "progress", "reply"} and not seen.other_calls
            kinds = {kind for _, _, kind, _, _ in logged}
            assert kinds >= {"train", "evaluate", "train.secure", "query.secure_identity"}
            assert kinds >= {f"query.secure_{step}" for step in ("vector", "confirm", "unmask")}
            assert ("refused" in kinds) == (index == 1)
    finally:
        made.close()
        if proxy is not None:
            proxy.stop()
