"""What the owner of the data decides, on a running agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

from meadow.apps.folder import content_hash
from meadow.client.owner.owner import Owner
from meadow.client.tools.status import status_of

from ..conftest import Client


def test_refusal(client: Client) -> None:
    """What the owner does not allow is refused in words, not counted, and written down."""
    client.configure("[policy]\nmin_cohort = 3")

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a", cohort_clients=2))
            refused = (await client.fleet.reply("a")).refused
            assert refused == "policy.min_cohort is 3, this round has 2 clients"
            client.configure("[policy]\nmin_cohort = 2")
            client.fleet.send(client.instruction("b", cohort_clients=2))
            assert client.count_of(await client.fleet.reply("b")) == 1

    asyncio.run(scenario())
    now = status_of(client.directory, now_s=0.0)
    assert [refusal.reason for refusal in now.refusals] == [
        "policy.min_cohort is 3, this round has 2 clients"
    ]


def test_changed_app_is_refused(client: Client) -> None:
    """An app that changed after the run was submitted does not run."""

    async def scenario() -> None:
        async with client.connected():
            instruction = client.instruction("a")
            with (client.app / "counting.py").open("a") as file:
                file.write("# changed\n")
            client.fleet.send(instruction)
            assert "install the same files" in (await client.fleet.reply("a")).refused

    asyncio.run(scenario())
    assert not client.fleet.downloads


def test_wrong_client_toml_is_refused(client: Client) -> None:
    """While the owner's file is wrong nothing runs, and only the owner is told what is in it."""

    async def scenario() -> None:
        async with client.connected():
            client.configure("[policy]\nmin_cohort = -3")
            client.fleet.send(client.instruction("a"))
            refused = (await client.fleet.reply("a")).refused
            assert "has an error" in refused
            assert "-3" not in refused

    asyncio.run(scenario())
    assert "min_cohort" in client.texts("warning")[-1]


def test_an_app_that_is_a_file(tmp_path: Path) -> None:
    """It has the content of no files, which no run is of: the agent starts, and refuses."""
    (tmp_path / "task.py").touch()
    (tmp_path / "client.toml").write_text('[apps]\nmine = "task.py"\n')
    assert Owner(tmp_path, content_hash).apps() == {"mine": content_hash(tmp_path / "nothing")}
