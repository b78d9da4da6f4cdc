"""The tutorials' notebooks: the first one runs and shows what it says; `make site` runs all of them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import meadow

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


FIRST = next(path for path in NOTEBOOKS if path.stem == "first_simulation")


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The first notebook's cells after a run in a kernel of its own."""
    notebook = nbformat.read(FIRST, as_version=4)
    folder = str(tmp_path_factory.mktemp("notebook"))
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    return client.execute()


def test_progress_curves_and_tables_are_shown(executed: Any) -> None:
    """Every kind of output is there, and no cell wrote to stderr."""
    outputs = [each for cell in executed.cells for each in cell.get("outputs", ())]
    pages = [each["data"].get("text/html", "") for each in outputs if "data" in each]
    assert any("<progress" in page and "30 of 30 rounds" in page for page in pages)
    assert any("<svg" in page for page in pages) and any("dataframe" in page for page in pages)
    assert [each for each in outputs if each.get("name") == "stderr"] == []


def test_notebooks_are_kept_without_outputs() -> None:
    """What is in the repository is the text: outputs are made by whoever runs it."""
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            assert cell.get("outputs", []) == [] and cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_code(path: Path) -> None:
    """They compile, and every public name of `meadow` that they use is there."""
    cells = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    tree = ast.parse("\n\n".join(cells))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "meadow"
    }
    assert used <= set(meadow.__all__)
