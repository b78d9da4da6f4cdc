"""What those who carry on use: fragments of the changelog, the forge's forms and its workflow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FRAGMENTS = ROOT / PROJECT["tool"]["towncrier"]["directory"]
FORGE = ROOT / ".github"
FORMS = sorted(
    path for path in (FORGE / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"
)
INPUTS = {"textarea", "input", "dropdown", "checkboxes"}


def draft() -> str:
    """Return what the next release would say."""
    command = [sys.executable, "-m", "towncrier", "build", "--draft"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def words(text: str) -> str:
    """Return a text without its line breaks and its spaces."""
    return re.sub(r"\s+", "", text)


def test_every_fragment_is_in_the_next_release() -> None:
    """A file whose name is no fragment's is an error, and what a fragment says is printed."""
    printed = draft()
    version = PROJECT["tool"]["towncrier"]["version"]
    assert printed.lstrip().startswith(f"## {version} (")
    for path in FRAGMENTS.glob("*.md"):
        if path.name != "README.md":
            assert words(path.read_text()) in words(printed), path


def test_the_kinds_of_fragments_are_those_that_are_described() -> None:
    """The table in the folder's README is what towncrier knows."""
    described = re.findall(r"^\| `(\w+)` \|", (FRAGMENTS / "README.md").read_text(), re.MULTILINE)
    assert described == [kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"]]


def test_the_next_release_is_not_there_yet() -> None:
    """The changelog ends with the first release and begins with the package's version."""
    settings = PROJECT["tool"]["towncrier"]
    changelog = (ROOT / settings["filename"]).read_text()
    assert changelog.count(settings["start_string"]) == 1
    released = re.findall(r"^## (\S+) \(\d{4}-\d{2}-\d{2}\)$", changelog, re.MULTILINE)
    assert (released[0], released[-1]) == (PROJECT["project"]["version"], "0.1.0")
    assert settings["version"] not in released


def form(path: Path) -> Any:
    """Return what is in a YAML file."""
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_forms(path: Path) -> None:
    """A form has a name, says what it is for, and asks something, each thing once."""
    asked = form(path)
    assert {"name", "description", "body"} <= asked.keys() <= {*asked, "labels"}
    fields = [field for field in asked["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= INPUTS
    assert all(field["attributes"]["label"] for field in fields)
    ids = [field["id"] for field in fields]
    assert ids and len({*ids}) == len(ids)


def test_there_are_forms() -> None:
    """The forge offers them, and a pull request begins with what it has to tell."""
    assert FORMS
    assert isinstance(form(FORGE / "ISSUE_TEMPLATE" / "config.yml")["blank_issues_enabled"], bool)
    assert "changelog.d/" in (FORGE / "PULL_REQUEST_TEMPLATE.md").read_text()


def test_the_workflow_runs_what_has_to_pass() -> None:
    """The forge runs .ci/run, on the Pythons that are supported, and what that calls exists."""
    workflow = form(FORGE / "workflows" / "ci.yml")
    assert {"push", "pull_request"} <= workflow[True].keys()  # YAML 1.1 reads the key "on" as true
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [".ci/run"]
    program = ROOT / commands[0]
    assert os.access(program, os.X_OK)
    targets = re.findall(r"^make (\S+)$", program.read_text(), re.MULTILINE)
    assert targets == ["check", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    least = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert job["strategy"]["matrix"]["python"][0] == least
