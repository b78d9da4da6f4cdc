"""Help names the choices, and shells complete them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

import pytest

from meadow.cli.main import main

from .conftest import Meadow

EXECUTORS = ("auto", "sequential", "vectorized", "processes", "ray")


def test_options_with_a_closed_set_list_it(meadow: Meadow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that name a setting have all of its values."""
    monkeypatch.setenv("COLUMNS", "200")
    assert f"[{'|'.join(EXECUTORS)}]" in meadow("simulate", "--help").out
    said = meadow("privacy", "plan", "--help").out
    assert "[poisson|fixed]" in said and "[none|banded|tree]" in said
    assert "[server|distributed|distributed_gaussian|local_gaussian|local_laplace]" in said
    assert "[text|json]" in said


def completed(line: str, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> set[str]:
    """Return what a bash would offer at the end of a line."""
    words = line.split(" ")
    monkeypatch.setenv("_MEADOW_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    capfd.readouterr()
    with pytest.raises(SystemExit):
        main([])
    return set(capfd.readouterr().out.split())


def test_a_shell_completes(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """Commands, options and the values of an option."""
    assert {"simulate", "site", "server", "sweep"} == completed("meadow s", monkeypatch, capfd)
    assert completed("meadow run ", monkeypatch, capfd) >= {"submit", "watch", "pull"}
    assert "--executor" in completed("meadow simulate --e", monkeypatch, capfd)
    assert completed("meadow simulate --executor ", monkeypatch, capfd) == set(EXECUTORS)
    assert completed("meadow site list --format ", monkeypatch, capfd) == {"text", "json"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(meadow: Meadow, shell: str) -> None:
    """Each shell has its own; where it is installed, it takes the script."""
    said = meadow("completion", shell)
    assert said.code == 0 and "_MEADOW_COMPLETE" in said.out and f"complete_{shell}" in said.out
    if shutil.which(shell):
        checked = subprocess.run(
            [shell, "-n"], check=False, input=said.out, text=True, capture_output=True
        )
        assert (checked.returncode, checked.stderr) == (0, "")
    assert meadow("completion", "tcsh").code == 2


def test_importing_the_command_line_imports_no_torch() -> None:
    """Help and completion come at once."""
    code = "import sys, meadow.cli.main; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
