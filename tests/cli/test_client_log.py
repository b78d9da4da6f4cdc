"""`meadow client log` and `page`, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

from meadow.client.owner.sent_log import Outgoing, SentFor, SentLog
from meadow.transport import fleet_pb2 as pb

from .conftest import Meadow


def test_what_has_left(meadow: Meadow, tmp_path: Path) -> None:
    """Each answer with its norm and epsilon, a dash where it has none; numbers as they are in JSON."""
    said = meadow("client", "log", "--dir", str(tmp_path))
    assert (said.code, said.out) == (0, "nothing has left this site\n")
    log = SentLog(tmp_path, clock=lambda: 1e9)
    update = pb.Reply(instruction_id="a")
    update.envelope.metadata.message_type = "train"
    about = SentFor(
        run_id=7, round="3", app="digits", sha256="sha256:" + "ab" * 32, norm=1.25, epsilon=0.5
    )
    log.write(Outgoing(update, about), size_bytes=4_200_000)
    refusal = pb.Reply(instruction_id="b", refused="no\x1b[2J")
    about = SentFor(run_id=8, round="1", app="digits", sha256="cd" * 32)
    log.write(Outgoing(refusal, about), size_bytes=70)
    log.close()
    out = meadow("client", "log", "--dir", str(tmp_path)).out
    first, second = (line.split() for line in out.splitlines()[1:])
    assert first[1:] == [
        "01:46:40Z", "7", "3", "digits", "abababababab", "train", "4.2", "MB", "1.25", "0.5", "-"
    ]  # fmt: skip
    assert second[2:] == [
        "8", "1", "digits", "cdcdcdcdcdcd", "refused", "70", "B", "-", "-", "-", "no?[2J"
    ]  # fmt: skip
    said = meadow("client", "log", "--dir", str(tmp_path), "--run", "7", "--format", "json")
    [row] = json.loads(said.out)
    assert (row["norm"], row["epsilon"], row["record_epsilon"]) == (1.25, 0.5, None)


def test_a_page_of_what_is_no_client(meadow: Meadow, tmp_path: Path) -> None:
    """It is a sentence, and nothing is served."""
    said = meadow("client", "page", "--dir", str(tmp_path), "--port", "0")
    assert said.code == 2 and "enrol" in said.err and "http" not in said.out
