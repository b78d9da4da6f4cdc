"""Experiments of other frameworks and their ports: the same rounds, the same model, fewer lines."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

import meadow
from meadow.simulations.run import simulate

pytest.importorskip("sklearn")

ROOT = Path(__file__).parents[2]
PORTS = ROOT / "examples" / "coming_from"
PAGES = ROOT / "docs" / "coming-from"
PEERS = {
    "flower": "flwr",
    "pfl_research": "pfl",
    "fedjax": "fedjax",
    "nvflare": "nvflare",
    "fedml": "fedml",
}
"""The folder of each framework, and what it is called when it is imported."""
ARGUMENTS = {"fedml": ["--cf", "fedml_config.yaml"]}
APART = 1e-6
"""How far single params may be apart: sums in another order."""
TIME_LIMIT_S = 600


class Outcome(NamedTuple):
    """What a program ends with."""

    accuracies: list[float]
    params: dict[str, np.ndarray[Any, Any]]


def run_script(path: Path, monkeypatch: pytest.MonkeyPatch, out: Path) -> dict[str, Any]:
    """Run a program of examples/ in this process, and return its names."""
    monkeypatch.setattr(sys, "argv", [str(path), str(out / "model.npz")])
    monkeypatch.chdir(out)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(path.parent)
        patch.setitem(sys.modules, "digits", ModuleType("digits"))  # the other folders' one goes
        del sys.modules["digits"]
        return runpy.run_path(str(path), run_name="__main__")


def saved(file: Path) -> Outcome:
    """Read what a program kept."""
    told = np.load(file)
    return Outcome(list(told["accuracies"]), {name: told[name] for name in ("weight", "bias")})


def port_of(peer: str, monkeypatch: pytest.MonkeyPatch, out: Path) -> Outcome:
    """Run a port, as an app folder or as a script."""
    folder = PORTS / peer
    if not (folder / "meadow.toml").is_file():
        run_script(folder / "port.py", monkeypatch, out)
        return saved(out / "model.npz")
    summary = simulate(folder, out=out / "run")
    assert summary["status"] == "finished", summary["cause"]
    run = meadow.load_run(out / "run")
    return Outcome(list(run.metrics["server.accuracy"]), dict(run.params()))


class InThisProcess(Grid):
    """Flower's clients without Ray: each message is answered by a call of the ClientApp."""

    def __init__(self, app: ClientApp, clients: int) -> None:
        self.app = app
        self.contexts = {
            node: Context(
                1, node, {"partition-id": node, "num-partitions": clients}, RecordDict(), {}
            )
            for node in range(clients)
        }

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return [self.app(each, self.contexts[each.metadata.dst_node_id]) for each in messages]

    def _unused(self, *arguments: object, **others: object) -> Any:
        raise NotImplementedError

    run = property(_unused)
    set_run = create_message = push_messages = pull_messages = _unused


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What every program is to end with: full-batch steps and weighted means, in plain NumPy."""
    digits = runpy.run_path(str(PORTS / "flower" / "digits.py"))
    weight, bias, accuracies = np.zeros((10, 64)), np.zeros(10), []
    clients = [digits["client"](index) for index in range(digits["CLIENTS"])]
    shares = np.array([len(targets) for _, targets in clients], dtype=float)
    shares /= shares.sum()
    for _ in range(10):
        trained = [steps(weight, bias, *examples) for examples in clients]
        weight = sum(share * each for share, (each, _) in zip(shares, trained, strict=True))
        bias = sum(share * each for share, (_, each) in zip(shares, trained, strict=True))
        inputs, targets = digits["holdout"]()
        accuracies.append(float((np.argmax(inputs @ weight.T + bias, axis=1) == targets).mean()))
    return Outcome(accuracies, {"weight": weight, "bias": bias})


def steps(
    weight: np.ndarray[Any, Any],
    bias: np.ndarray[Any, Any],
    inputs: np.ndarray[Any, Any],
    targets: np.ndarray[Any, Any],
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Make five steps of gradient descent on all examples."""
    for _ in range(5):
        powers = np.exp(inputs @ weight.T + bias)
        error = powers / powers.sum(axis=1, keepdims=True) - np.eye(10)[targets]
        weight = weight - 0.5 * error.T @ inputs / len(targets)
        bias = bias - 0.5 * error.mean(axis=0)
    return weight, bias


def assert_same(found: Outcome, reference: Outcome) -> None:
    """Every round's accuracy and the last params are those of the experiment."""
    assert found.accuracies == pytest.approx(reference.accuracies, abs=1e-6)
    assert found.accuracies[-1] > 0.86
    for name, values in reference.params.items():
        np.testing.assert_allclose(found.params[name], values, rtol=0, atol=APART)


@pytest.mark.parametrize("peer", PEERS)
def test_a_port_makes_the_experiment(
    peer: str, reference: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds and model are those of an implementation without any framework."""
    assert_same(port_of(peer, monkeypatch, tmp_path), reference)


def test_flowers_original_makes_it_too(
    reference: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's own strategy and apps, on clients in this process."""

    def run_simulation(server_app: Any, client_app: ClientApp, num_supernodes: int) -> None:
        context = Context(1, 0, {}, RecordDict({"config": ConfigRecord()}), {})
        server_app(InThisProcess(client_app, num_supernodes), context)

    monkeypatch.setattr("flwr.simulation.run_simulation", run_simulation)
    run_script(PORTS / "flower" / "original.py", monkeypatch, tmp_path)
    assert_same(saved(tmp_path / "model.npz"), reference)


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer != "flower"])
def test_other_originals_do_where_they_are_installed(
    peer: str, reference: Outcome, tmp_path: Path
) -> None:
    """In a process of their own; `make bench NAME=coming_from` makes the environments."""
    if find_spec(PEERS[peer]) is None:
        pytest.skip(f"{PEERS[peer]} is not installed; `make bench NAME=coming_from` installs it")
    folder = tmp_path / peer
    shutil.copytree(PORTS / peer, folder)
    call = [sys.executable, "original.py", "model.npz", *ARGUMENTS.get(peer, ())]
    subprocess.run(call, cwd=folder, check=True, timeout=TIME_LIMIT_S)
    found = saved(folder / "model.npz")
    if peer == "fedml":  # its first round trains the clients one after the other: the page says why
        assert found.accuracies[-1] == pytest.approx(reference.accuracies[-1], abs=0.01)
    else:
        assert_same(found, reference)


def imports_of(file: Path) -> set[str]:
    """Return the top-level packages that a program imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("peer", PEERS)
def test_each_stands_alone(peer: str) -> None:
    """A port knows of no framework but Meadow, an original not of Meadow; the data are the same."""
    for file in (PORTS / peer).glob("*.py"):
        if file.name in {"task.py", "port.py"}:
            assert imports_of(file) == {"digits", "meadow", "torch"}
        else:
            assert "meadow" not in imports_of(file)
    data = (PORTS / "flower" / "digits.py").read_bytes()
    assert (PORTS / peer / "digits.py").read_bytes() == data


def page_of(peer: str) -> str:
    return (PAGES / f"{peer.replace('_', '-')}.md").read_text()


@pytest.mark.parametrize("peer", PEERS)
def test_pages_show_what_runs(peer: str) -> None:
    """Every block of code in a page is a part of the files that it is about."""
    files = [path for path in (PORTS / peer).iterdir() if path.is_file()]
    blocks = re.findall(r"```(?:python|toml|yaml)\n(.*?)```", page_of(peer), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        assert any(block in file.read_text() for file in files), block


def test_the_lines_are_counted() -> None:
    """The table's numbers of lines are those of the files."""
    counted = runpy.run_path(str(PORTS / "lines.py"))["counted"]
    table = (PAGES / "README.md").read_text()
    shown = re.findall(r"^\| \[[^]]+\]\(([a-z-]+)\.md\) \| (\d+) \| (\d+) \|", table, re.MULTILINE)
    assert {page: (int(original), int(port)) for page, original, port in shown} == {
        peer.replace("_", "-"): counted(PORTS / peer) for peer in PEERS
    }


def test_lines_are_code(tmp_path: Path) -> None:
    """Blank lines, comments and docstrings are none."""
    counted = runpy.run_path(str(PORTS / "lines.py"))["counted"]
    (tmp_path / "original.py").write_text(
        '"""A\n\ndocstring."""\n\n# why\nx = 1  # one\ny = """\ntext"""\n'
    )
    (tmp_path / "task.py").write_text('def f():\n    """Say."""\n    return (\n        1\n    )\n')
    (tmp_path / "meadow.toml").write_text("[app]\n# the task\ntask = 'a:b'\n\n")
    (tmp_path / "digits.py").write_text("x = 1\n")
    assert counted(tmp_path) == (3, 6)
