"""The tutorials' notebooks run from the first cell to the last, and show what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A notebook's cells after a run in a kernel of its own."""
    notebook = nbformat.read(request.param, as_version=4)
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
