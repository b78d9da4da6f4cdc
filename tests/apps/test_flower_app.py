"""What `[tool.flwr.app]` of a plain Flower app says, and what may lie over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meadow.apps.flower_app import FlowerApp, read_flower_app
from meadow.errors import ConfigError

HEAD = '[tool.flwr.app.components]\nserverapp = "s:app"\nclientapp = "c:app"\n'
CONFIG = """
[tool.flwr.app.config]
rounds = 3
rate = 0.5
verbose = false
name = "cnn"
optimizer.momentum = 0.9
optimizer.nested.deep = 1
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An app's pyproject.toml."""
    file = tmp_path / "some_app" / "pyproject.toml"
    file.parent.mkdir()
    file.write_text(HEAD + CONFIG)
    return file


def test_an_app_is_read(path: Path) -> None:
    """Tables are flattened by dots; without a project name the folder's is taken."""
    assert read_flower_app(path) == FlowerApp(
        name="some_app",
        server_app="s:app",
        client_app="c:app",
        run_config={
            "rounds": 3,
            "rate": 0.5,
            "verbose": False,
            "name": "cnn",
            "optimizer.momentum": 0.9,
            "optimizer.nested.deep": 1,
        },
    )


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("rounds=5", 5),
        (" rounds = 5 ", 5),
        ("rate=1", 1.0),
        ("verbose=true", True),
        ("name=mlp", "mlp"),
        ('name="two words"', "two words"),
        ("optimizer.momentum=0", 0.0),
    ],
)
def test_an_override_has_the_type_of_its_key(path: Path, override: str, value: Any) -> None:
    """Numbers, truth values and text are told apart by what the app itself has there."""
    config = read_flower_app(path, overrides=[override]).run_config
    key = override.partition("=")[0].strip()
    assert config[key] == value and type(config[key]) is type(value)


def test_the_last_override_counts(path: Path) -> None:
    """As for Meadow's own apps."""
    assert read_flower_app(path, overrides=["rounds=5", "rounds=6"]).run_config["rounds"] == 6


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("rounds", "has no value; write --set key=value"),
        ("rounds=", "has no value"),
        ("round=5", "no key 'round'; did you mean rounds?"),
        ("zzz=5", "no key 'zzz'; known are rounds, rate, verbose"),
        ("rounds=5.5", "rounds must be of type int, got 5.5"),
        ("rounds=true", "rounds must be of type int, got True"),
        ("verbose=1", "verbose must be of type bool, got 1"),
        ("name=5", "name must be of type str, got 5"),
    ],
)
def test_a_wrong_override_is_refused(path: Path, override: str, sentence: str) -> None:
    """The error names the override and what would be right."""
    with pytest.raises(ConfigError) as refused:
        read_flower_app(path, overrides=[override])
    assert str(refused.value).startswith(f"--set {override}: ")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"has no \[tool.flwr.app\]; is it a Flower app"),
        ("tool = 5\n", r"has no \[tool.flwr.app\]"),
        ("[tool]\nflwr = 5\n", r"has no \[tool.flwr.app\]"),
        (
            "[tool.flwr.app]\npublisher = 'x'\n",
            r'components.serverapp must be "module:name", got None',
        ),
        ("[tool.flwr.app]\ncomponents = 5\n", 'serverapp must be "module:name", got None'),
        (HEAD.replace("c:app", "c.app"), r'clientapp must be "module:name", got \'c.app\''),
        (HEAD + "[tool.flwr.app.config]\nlist = [1]\n", r"config.list must be a bool, int, float"),
        ("[[[", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused(path: Path, text: str, sentence: str) -> None:
    """The error names the file, the key and what would be right."""
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence) as refused:
        read_flower_app(path)
    assert str(refused.value).startswith(str(path))


def test_the_name_is_the_projects(path: Path) -> None:
    """What pip would call it is what a run of it is called."""
    path.write_text('[project]\nname = "flower-app"\n' + HEAD)
    assert read_flower_app(path).name == "flower-app"
    assert read_flower_app(path).run_config == {}
