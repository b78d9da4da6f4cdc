"""Two machines of two ranks each give the update of one process, whatever happens to one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meadow.client.hosts.membership import Membership

from .conftest import Leading, Machines, wait_for

PATIENCE_S = 20.0
"""The training process of a machine that comes back is loaded within it."""

SETTINGS: list[dict[str, Any]] = [
    {"batch_size": 13, "accumulation_steps": 2, "optimizer": "adam", "learning_rate": 0.01},
    {
        "batch_size": 26,  # the last batch has a single example: three ranks of four have none
        "learning_rate": 0.1,
        "momentum": 0.9,
        "proximal_mu": 0.5,
        "gradient_clip_norm": 0.2,
    },
]


def require_same(found: dict[str, Any], hosts: int = 2) -> None:
    """Check that an update is that of one process, and by how many machines it was made."""
    assert found.get("error") is None, found
    assert found["distance"] < 1e-5 and found["same"], found
    assert f"{2 * hosts} ranks on {hosts} hosts" in found["by"], found


@pytest.fixture(scope="module")
def leading(machines: Machines) -> Iterator[Leading]:
    """A group of two machines, with ddp."""
    shown = machines.invite()
    made = Leading(machines, parallel="ddp", hosts_wait_s=PATIENCE_S)
    machines.join(shown)
    ready = made.answer()
    assert "4 ranks on 2 hosts with ddp" in ready["ready"], ready
    yield made
    made.end()


@pytest.mark.parametrize("settings", SETTINGS)
def test_one_update(leading: Leading, machines: Machines, settings: dict[str, Any]) -> None:
    """Params, buffers, samples and metrics are those of one process; all four ranks computed, two on
    each machine."""
    before = machines.passes("joins", 2), machines.passes("joins", 3)
    require_same(leading.train(**settings))
    after = machines.passes("joins", 2), machines.passes("joins", 3)
    assert after[0] > before[0] and after[1] > before[1]
    assert machines.passes("leads", 2) == 0


def test_ranks_evaluate_together(leading: Leading) -> None:
    """The metrics of all ranks' examples are those of one process."""
    found = leading.train(evaluate=True, batch_size=8)
    assert found.get("error") is None and found["same"], found
    assert found["distance"] < 1e-5, found


def test_a_killed_rank_there(leading: Leading, machines: Machines) -> None:
    """The group is made again with the same machines, and the round is done whole."""
    machines.say("joins", "kill-3", 2)
    require_same(leading.train(**SETTINGS[0]))
    assert not (machines.folder / "joins" / "kill-3").exists()


def test_a_killed_machine(leading: Leading, machines: Machines) -> None:
    """Killed in the middle of a round: those who are there go on, after the stated time, from the
    instruction's params, and the update is that of one process; a machine that comes back trains again."""
    folder = machines.folder / "joins"
    machines.say("joins", "stop-2", 2)  # a rank that stops holds the round in its middle
    leading.begin(**SETTINGS[0])
    wait_for(lambda: not (folder / "stop-2").exists(), "stopped rank")
    machines.end_all(1)
    again = machines.join(machines.folder / "host-b.pass")
    require_same(leading.answer())
    machines.end_all(1)
    again.wait()
    require_same(leading.train(**SETTINGS[1]), hosts=1)
    machines.join(machines.folder / "host-b.pass")
    joined = len(machines.log("leads.err").split("has joined"))
    wait_for(
        lambda: len(machines.log("leads.err").split("has joined")) >= joined, "machine come back"
    )
    wait_for(lambda: "host-b" in str(Membership(machines.folder / "leads").status()), "status")
    require_same(leading.train(**SETTINGS[1]))


def test_another_app_there(leading: Leading, machines: Machines) -> None:
    """A machine whose copy of the app differs does not run it; the round fails with a sentence, and
    goes on once the copy is right."""
    file = machines.folder / "joins" / "app" / "task.py"
    text = file.read_text()
    file.write_text(text + "\n")
    machines.say("joins", "kill-2", 1)  # so that ranks are started again
    found = leading.train(**SETTINGS[1])
    assert "none of the apps here" in found["error"] and "host-b" in found["error"], found
    file.write_text(text)
    require_same(leading.train(**SETTINGS[1]))


@pytest.mark.parametrize("parallel", ["fsdp", "hybrid"])
def test_parts_of_the_params(machines: Machines, leading: Leading, parallel: str) -> None:
    """Ranks on two machines that hold parts of one model, and machines with a copy each, make the update
    of one process."""
    leading.end()
    spread = Leading(machines, parallel=parallel)
    try:
        copies = ", in 2 copies" if parallel == "hybrid" else ""
        assert f"4 ranks on 2 hosts with fsdp{copies}" in spread.answer()["ready"]
        for settings in SETTINGS:
            require_same(spread.train(**settings))
    finally:
        spread.end()
