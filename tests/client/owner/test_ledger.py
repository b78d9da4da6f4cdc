"""The owner's ledger: a copy of an earlier day is noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from meadow.client.owner.database import AgentDatabase
from meadow.client.owner.ledger import Ledger
from meadow.errors import StoreError
from meadow.transport import fleet_pb2 as pb


def test_a_ledger_of_an_earlier_day_is_refused(tmp_path: Path) -> None:
    """What was spent since is not in it; the whole one is taken up again."""
    file, identity = tmp_path / "agent.sqlite", tmp_path / "identity"
    identity.mkdir()
    for number in range(3):
        database = AgentDatabase(file)
        ledger = Ledger(database)
        ledger.claim(identity)
        ledger.participate(pb.Instruction(id=f"m-{number}", run_id=7), now_s=0.0)
        database.close()
        shutil.copy(file, tmp_path / f"copy-{number}")
    shutil.copy(tmp_path / "copy-1", file)
    database = AgentDatabase(file)
    with pytest.raises(StoreError, match=r"has 2 of the 3 rounds .* restore it from a backup"):
        Ledger(database).claim(identity)
    database.close()
    shutil.copy(tmp_path / "copy-2", file)
    database = AgentDatabase(file)
    Ledger(database).claim(identity)
    database.close()


def test_a_ledger_from_before_its_rounds_were_named_is_taken_up(tmp_path: Path) -> None:
    """The identity's file had its id alone."""
    identity, database = tmp_path / "identity", AgentDatabase(tmp_path / "agent.sqlite")
    identity.mkdir()
    ledger = Ledger(database)
    ledger.claim(identity)
    (identity / "ledger").write_text((identity / "ledger").read_text().split()[0])
    ledger.participate(pb.Instruction(id="m-1", run_id=7), now_s=0.0)
    ledger.claim(identity)
    assert (identity / "ledger").read_text().split()[1] == "1"
    database.close()
