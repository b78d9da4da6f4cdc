"""README and docs/: what they show is run, loaded, or at least known to the commands."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import typer

import meadow
from meadow.cli.main import app
from meadow.config.client_config import load_client_config
from meadow.config.load import load_config
from meadow.config.schema.settings import section_of
from meadow.config.schema.values import hints_of
from meadow.config.sections.model import Config
from meadow.config.server_config import load_server_config

ROOT = Path(__file__).parent.parent
COMING_FROM = ROOT / "docs" / "coming-from"
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(COMING_FROM.glob("*.md")),
]


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)
    return [textwrap.dedent(block) for block in found]


def each(language: str) -> list[Any]:
    return [
        pytest.param(text, id=f"{page.stem}-{number}")
        for page in PAGES
        for number, text in enumerate(blocks(page, language))
    ]


def test_the_readmes_app_runs(tmp_path: Path) -> None:
    """Its task.py and meadow.toml, copied as they are, are an app; and with Flower's names too."""
    task, from_python, with_flower = blocks(ROOT / "README.md", "python")
    config, _ = blocks(ROOT / "README.md", "toml")
    (tmp_path / "task.py").write_text(task)
    (tmp_path / "meadow.toml").write_text(config)
    (tmp_path / "with_flower.py").write_text(with_flower)
    call = [sys.executable, "-m", "meadow", "simulate", ".", "--rounds", "2", "--out", "run"]
    said = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "finished 2 rounds" in said.stdout
    (tmp_path / "from_python.py").write_text(f"import meadow\nfrom task import task\n{from_python}")
    subprocess.run([sys.executable, "from_python.py"], cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "with_flower.py"], cwd=tmp_path, check=True)


@pytest.mark.parametrize("text", each("toml"))
def test_configurations_load(tmp_path: Path, text: str) -> None:
    """Each is a meadow.toml, a client.toml or a server.toml, or a part of one, with keys and values
    that there are."""
    text = re.sub(r'"(sha256|ed25519):\.\.\."', rf'"\1:{"0" * 64}"', text)
    told = tomllib.loads(text)
    if "apps" in told or set(told) & {"policy", "device", "data", "server", "monitoring"}:
        (tmp_path / "client.toml").write_text(text)
        load_client_config(tmp_path)
    elif set(told) <= {name for name, hint in hints_of(Config).items() if section_of(hint)}:
        (tmp_path / "meadow.toml").write_text(text)
        load_config(tmp_path, environ={})
    else:
        (tmp_path / "server.toml").write_text(text)
        load_server_config(tmp_path)


@pytest.mark.parametrize("text", each("python"))
def test_code_is_code(text: str) -> None:
    """It compiles, and every name of `meadow` that it uses is there."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "meadow" or hasattr(meadow, node.attr), ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("meadow"):
            module = importlib.import_module(node.module or "")
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


def shown_commands() -> list[Any]:
    found = {}
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        lines = re.findall(r"^    (?:[A-Z_]+=\S+ )*(meadow [a-z].*)$", text, re.MULTILINE)
        found.update({line.split("   ")[0].split(" #")[0].strip(): page.stem for line in lines})
    return [pytest.param(line, id=f"{page}: {line}"[:90]) for line, page in found.items()]


@pytest.mark.parametrize("line", shown_commands())
def test_commands_are_known(line: str) -> None:
    """Every command that a page shows is there, with the options that it is given."""
    command: Any = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    while isinstance(command, click.Group):
        if command.invoke_without_command and (not words or words[0].startswith("--")):
            break
        name = words.pop(0)
        assert name in command.commands, line
        command = command.commands[name]
    known = {option for param in command.params for option in param.opts}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, f"{word} in: {line}"


def test_the_page_of_flowers_features_is_new() -> None:
    """`make docs` would change nothing in docs/flower.md."""
    made = runpy.run_path(str(ROOT / "docs" / "flower.py"))["page"]()
    assert made == (ROOT / "docs" / "flower.md").read_text()


def test_the_index_has_every_page() -> None:
    """A folder's README.md leads to each page beside it."""
    for folder in (ROOT / "docs", COMING_FROM):
        index = (folder / "README.md").read_text()
        missing = [page.name for page in folder.glob("*.md") if f"]({page.name})" not in index]
        assert missing == ["README.md"]


@pytest.mark.parametrize("page", sorted(COMING_FROM.glob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file, and one of its headings if it names any."""
    for link in re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", page.read_text()):
        target = page.parent / link[0] if link[0] else page
        assert target.exists(), link[0]
        if link[1]:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            anchors = {
                re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")
                for heading in headings
            }
            assert link[1][1:] in anchors, link


PATH = re.compile(r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:py|proto))?)`")


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md", "README.md"])
def test_paths_are_there(page: str) -> None:
    """What a page says is somewhere is there."""
    made = {"runs/"}  # by commands
    named = set(PATH.findall((ROOT / page).read_text())) - made
    rooms = {path.name for path in ROOT.iterdir()}
    missing = {
        name for name in named if name.partition("/")[0] in rooms and not (ROOT / name).exists()
    }
    assert named and not missing
