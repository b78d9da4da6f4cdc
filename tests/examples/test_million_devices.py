"""The study of a million devices: its arithmetic, its data, its tables, and a short run of all of it."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

FOLDER = Path(__file__).parent.parent.parent / "examples" / "million_devices"
TIME_LIMIT_S = 600
MODULES = ("picture", "study", "task", "tree")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The example's modules, without leaving its folder on the path."""
    for extra in ("matplotlib", "sklearn"):
        pytest.importorskip(extra)
    monkeypatch.syspath_prepend(FOLDER)
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # put back what was there
        del sys.modules[name]
    import study
    import tree

    import task

    return SimpleNamespace(study=study, task=task, tree=tree)


def run_of(study: ModuleType, *accuracies: float) -> Any:
    """Return a run that was evaluated every other round, of 0.1 h and 0.01 GB each."""
    rounds = tuple(range(2, 2 * len(accuracies) + 1, 2))
    return study.Run(
        rounds=rounds,
        accuracies=accuracies,
        hours=tuple(0.1 * n for n in rounds),
        gigabytes=tuple(0.01 * n for n in rounds),
        answered=0.9,
        late_accuracy=0.5,
    )


def shown(study: ModuleType, *runs: Any) -> str:
    """Return the table of one row as text."""
    text = StringIO()
    row = study.Row(name="30", runs=runs)
    Console(width=120, file=text).print(study.table_of("cohort", [row], target=0.9))
    return text.getvalue()


def test_a_target_is_reached_by_three_evaluations(modules: SimpleNamespace) -> None:
    """One that is there by luck does not count; the first of three does, and nothing less at the end."""
    place_of = run_of(modules.study, 0.95, 0.8, 0.9, 0.93, 0.92, 0.7).place_of
    assert place_of(0.9) == 2
    assert place_of(0.92) is None
    assert run_of(modules.study, 0.5, 0.95, 0.95).place_of(0.9) is None


def test_a_row_is_the_median_of_its_runs(modules: SimpleNamespace) -> None:
    """With the least and the most rounds, and how many runs never came there."""
    study = modules.study
    early, late = run_of(study, 0.95, 0.95, 0.95), run_of(study, 0.5, 0.5, 0.91, 0.92, 0.93)
    never = run_of(study, 0.5, 0.6, 0.7)
    assert "4 (2 to 6), 1 of 3 never" in shown(study, early, late, never)
    assert "0.40" in shown(study, early, late) and "0.040" in shown(study, early, late)
    assert "not reached" in shown(study, never)


def test_evaluations_cost_nothing(modules: SimpleNamespace) -> None:
    """A synchronous round that is evaluated counts as those that are not; FedBuff's last one likewise."""
    rows = [
        {"virtual_s": end_s, "bytes_sent": sent, "bytes_received": 1, "server": server}
        for end_s, sent, server in [
            (60, 9, {}),
            (180, 19, {"a": 1}),
            (240, 9, {}),
            (360, 19, {"a": 1}),
        ]
    ]
    assert modules.study.costs_of(rows, asynchronous=False) == ([60.0] * 4, [10.0] * 4)
    assert modules.study.costs_of(rows, asynchronous=True) == ([60, 120, 60, 60], [10, 20, 10, 10])


def test_late_devices_alone_have_the_late_digits(modules: SimpleNamespace) -> None:
    """Every fifth has 30 to 60 images, two thirds of the digits 8 and 9; others 5 to 15 of two digits."""
    for index in range(40):
        data = modules.task.load_device(SimpleNamespace(index=index)).train
        digits = [int(digit) for _, digit in data]
        late = np.isin(digits, modules.task.LATE_DIGITS)
        if index % 5:
            assert 5 <= len(digits) <= 15 and not late.any() and len(set(digits)) <= 2
        else:
            assert 30 <= len(digits) <= 60 and late.mean() == pytest.approx(2 / 3)


def test_a_trees_bytes_are_those_that_were_measured(modules: SimpleNamespace) -> None:
    """benchmarks/relay_tree.py: with 1 MB params, 200 agents move 400 MB at the server a round, and ten
    relays above them 30 MB."""
    federation, params = modules.tree.Federation, {"params_bytes": 1e6, "answered": 1.0}
    (alone,) = federation(cohort=200, **params).levels()
    assert alone.bytes_moved == 400e6
    server, relay = federation(cohort=200, relays=(10,), **params).levels()
    assert (server.nodes, server.bytes_moved, server.stored_bytes) == (1, 30e6, 20e6)
    assert (relay.nodes, relay.bytes_moved) == (10, 43e6)


def test_each_level_shortens_the_deadline(modules: SimpleNamespace) -> None:
    """By a tenth; those that the study simulates are what is left of 15 s."""
    left_s = [
        level.waits_s
        for level in modules.tree.Federation(cohort=900, relays=(3, 3), deadline_s=15).levels()
    ]
    assert left_s == pytest.approx([15, 13.5, 12.15])
    assert {15, 13.5, 12.2} <= set(modules.study.DEADLINES_S)


def test_the_study_runs(tmp_path: Path) -> None:
    """The quick study prints all tables and writes a picture that is not empty."""
    for extra in ("matplotlib", "sklearn"):
        pytest.importorskip(extra)
    picture = tmp_path / "study.png"
    done = subprocess.run(
        [sys.executable, str(FOLDER / "study.py"), "--quick", "--out", str(picture)],
        check=False,
        cwd=tmp_path,
        timeout=TIME_LIMIT_S,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for title in ("cohort", "deadline", "FedBuff's buffer", "a tree, by calculation"):
        assert title in done.stdout
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size > 20_000
