"""The command line as a whole: exit codes, and errors in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import meadow as package
from meadow.reports.sentences import moment

from .conftest import Meadow

WRONG = {
    "no app": (["simulate"], "give either an app, or --resume"),
    "app and resume": (["simulate", "my_app", "--resume", "x"], "give either an app, or --resume"),
    "resume and more": (["simulate", "--resume", "x", "--rounds", "2"], "give no more"),
    "no such folder": (["simulate", "nothing"], "nothing is not a folder"),
    "no app there": (["simulate", "."], "is no app: it has neither meadow.toml nor"),
    "unknown option": (["simulate", "my_app", "--bogus"], "No such option '--bogus'"),
    "bad option": (["simulate", "my_app", "--clients", "0"], "0 is not in the range x>=1"),
    "no subcommand": (["site", "shew"], "No such command 'shew'"),
    "missing argument": (["new"], "Missing argument"),
    "bad format": (["new", "x", "--format", "xml"], "'xml' is not one of 'text', 'json'"),
    "unknown key": (
        ["simulate", "my_app", "--set", "training.learning_rat=1"],
        (
            "--set training.learning_rat=1: training.learning_rat is not a known key; did you mean "
            "training.learning_rate?"
        ),
    ),
    "bad value": (
        ["simulate", "my_app", "--set", "training.learning_rate=-1"],
        "training.learning_rate must be a number > 0, got -1.0",
    ),
    "no value": (["simulate", "my_app", "--set", "rounds"], "has no value; write --set key=value"),
    "bad executor": (["simulate", "my_app", "--executor", "fast"], 'must be "auto" or'),
    "impossible": (["simulate", "my_app", "--clients", "1"], "run.min_clients = 2 is more than"),
    "not resumable": (["simulate", "--resume", "my_app"], "not the folder of a simulation"),
    "out is a file": (["simulate", "my_app", "--out", "my_app/task.py"], "cannot be the run's"),
    "out is used": (["simulate", "my_app", "--out", "my_app"], "is not empty; continue that run"),
    "exists": (["new", "my_app"], "my_app exists already; nothing was changed"),
    "not a demo's": (["demo", "--out", "my_app"], "is not empty and no demo's folder"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_one_line_and_exit_code_2(meadow: Meadow, app: Path, case: str) -> None:
    """Whatever is wrong with a call or a configuration, stderr has one line that says so."""
    arguments, sentence = WRONG[case]
    said = meadow(*arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("meadow: ") and said.err.count("\n") == 1
    assert sentence in said.err


@pytest.mark.parametrize("case", WRONG)
def test_programs_get_errors_as_json(meadow: Meadow, app: Path, case: str) -> None:
    """With --format json the error is an object on stdout, too."""
    arguments, sentence = WRONG[case]
    said = meadow(*arguments, "--format=json") if case != "bad format" else meadow(*arguments)
    if case != "bad format":
        (error,) = said.objects
        assert sentence in error["error"]
        assert error["kind"] in {"ConfigError", "AppError"}
    assert said.code == 2


def test_what_the_disk_refuses_is_one_line_and_exit_code_1(meadow: Meadow, app: Path) -> None:
    """An error of the system names the file, without a traceback."""
    said = meadow("new", "my_app/task.py/deeper")
    assert said.code == 1
    assert said.err == "meadow: my_app/task.py/deeper: Not a directory\n"


def test_an_interrupted_command_says_so(
    meadow: Meadow, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C outside of a round ends a command in one line, by the shell's own code."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("meadow.simulations.run.simulate", interrupt)
    said = meadow("simulate", "my_app")
    assert (said.code, said.err) == (130, "meadow: interrupted\n")


def test_help_and_version(meadow: Meadow) -> None:
    """Without arguments there is help; --version is what the package says."""
    version = meadow("--version")
    assert (version.code, version.out) == (0, f"meadow {package.__version__}\n")
    for arguments in (["--help"], ["simulate", "--help"], ["run", "--help"]):
        said = meadow(*arguments)
        assert said.code == 0 and "Usage: meadow" in said.out
    for arguments in ([], ["server"]):
        said = meadow(*arguments)
        assert said.code == 2 and "Usage: meadow" in said.out + said.err


def test_moments_are_utc() -> None:
    """A time is the same wherever it is read; 0 is no time."""
    assert moment(1_700_000_000.0) == "2023-11-14 22:13:20Z"
    assert moment(0) == "-"


def test_a_command_waits_for_no_library_that_it_does_not_use() -> None:
    """`meadow run list` and the like start in a fraction of the time that these take to import."""
    code = "import sys, meadow.cli.main; print(*{'flwr', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
