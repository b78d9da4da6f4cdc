"""The files in deploy/docker: what they start exists, and is closed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from meadow.cli.main import app

FOLDER = Path(__file__).parents[2] / "deploy" / "docker"
SERVICES: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
STEPS = [
    line.lstrip("# |") for line in (FOLDER / "compose.yaml").read_text().splitlines() if "docker compose" in line
]  # fmt: skip


def parse(arguments: list[str]) -> None:
    """Parse a command line of Meadow's, without running it."""
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(command.name, arguments)


@pytest.mark.parametrize("name", SERVICES)
def test_service(name: str) -> None:
    """Its command and its health check are commands; it has no privilege, and writes its volume alone."""
    service = SERVICES[name]
    parse([*service["command"]])
    assert service["healthcheck"]["test"][:2] == ["CMD", "meadow"]
    parse([*service["healthcheck"]["test"][2:]])
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["volumes"] == [f"{name}:/var/lib/meadow"]
    folder = service["command"][service["command"].index("--dir") + 1]
    assert folder.startswith("/var/lib/meadow/")


def test_first_steps() -> None:
    """What the head of the compose file says to type are commands, and no secret is in them."""
    typed = [step for step in STEPS if re.search(r"(run|exec) ", step)]
    assert len(typed) == 3
    for step in typed:
        words = step.replace("\\", "").replace("$site", "1").split()
        of_service = next(place for place, word in enumerate(words[3:], 3) if word in SERVICES)
        words = words[of_service + 1 :]
        parse(words[1:] if words[0] == "meadow" else words)


def test_image() -> None:
    """It runs as a user of its own, and installs nothing but the wheels."""
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    assert "USER meadow" in lines and lines.index("USER meadow") > max(
        place for place, line in enumerate(lines) if line.startswith("RUN")
    )
    assert sum("pip install" in line for line in lines) == 1
    assert any("--no-index --find-links /wheelhouse" in line for line in lines)
    assert (FOLDER.parents[1] / ".dockerignore").read_text().split()[-1] == "!build/wheelhouse"
