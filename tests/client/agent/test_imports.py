"""What a site runs works without the packages that only a server, a simulation or a page needs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from meadow.client.tools.status import status_of

from ..conftest import Client

ELSEWHERE = (
    # Meadow's own choice for its server and pages; flwr installs them in any case
    *("starlette", "uvicorn", "prometheus_client"),
    # what flwr brings for its SuperLink, its database and its tools
    *("fastapi", "sqlalchemy", "alembic", "uv", "uvloop", "watchfiles", "websockets", "pydantic"),
    # extras for whom trains elsewhere, and what is drawn or tracked
    *("ray", "matplotlib", "pandas", "mlflow", "wandb", "opentelemetry", "psutil"),
)
NOT_HERE = f"""
import sys

class NotHere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ELSEWHERE!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotHere())
"""
COMMANDS = ("doctor", "status", "privacy")


@pytest.fixture
def without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every Python that is started in this test do without them."""
    folder = tmp_path / "not-here"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(NOT_HERE)
    monkeypatch.setenv("PYTHONPATH", str(folder))


async def run(*arguments: str) -> tuple[int | None, str]:
    """Run a Python to its end; return its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=-1, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


@pytest.mark.usefixtures("without")
def test_an_agent_does_not_need_what_a_server_needs(client: Client) -> None:
    """It connects, trains in its training process, and answers; its owner's commands work; and the
    modules for joining are there."""

    async def scenario() -> None:
        code, said = await run("-c", "import uvicorn")
        assert code == 1 and "No module named 'uvicorn'" in said, "they are out of reach"
        await client.fleet.start()
        client.enroll()
        command = ("-m", "meadow", "client", "start", "--dir", str(client.directory))
        with (client.folder / "agent.log").open("wb") as log:
            agent = await asyncio.create_subprocess_exec(
                sys.executable, *command, stdout=log, stderr=log
            )
            try:
                client.fleet.send(client.instruction("a"))
                assert client.count_of(await client.fleet.reply("a")) == 1
            finally:
                os.kill(agent.pid, signal.SIGTERM)
                assert await agent.wait() == 0, (client.folder / "agent.log").read_text()
        for each in COMMANDS:
            code, said = await run("-m", "meadow", "client", each, "--dir", str(client.directory))
            assert "No module named" not in said and (code == 0 or each == "doctor"), said
        code, said = await run(
            "-c", "import meadow.client.tools.enroll, meadow.transport.invitation"
        )
        assert code == 0, said
        await client.fleet.stop()

    asyncio.run(scenario())
    assert status_of(client.directory, now_s=0.0).last_instruction == "a"
