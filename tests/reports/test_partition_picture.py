"""Pictures of divisions: the right kind for few, many and numbers, the same bytes again."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from meadow.errors import ConfigError
from meadow.reports.partition_picture import check_picture, draw
from meadow.reports.partition_survey import Labels, Survey

pytest.importorskip("matplotlib")


def found(clients: int, classes: int) -> Survey:
    rng = np.random.default_rng(clients)
    counts = rng.poisson(3, (clients, max(classes, 1))) + 1
    labels = Labels(classes=np.arange(classes), counts=counts) if classes else None
    sizes = counts.sum(axis=1)
    means = rng.normal(size=clients)
    return Survey(train=sizes, test=0 * sizes, means=means, deviations=means**2, labels=labels)


@pytest.mark.parametrize(
    ("clients", "classes", "says"),
    [
        (1, 1, ["client", "samples to train on", "class"]),
        (8, 10, ["client", "samples to train on", "class"]),
        (8, 62, ["clients, sorted by their most frequent class"]),
        (300, 10, ["clients, sorted by their most frequent class", "share of the client"]),
        (3000, 10, ["1,000 of 3,000 clients, sorted"]),
        (10, 0, ["clients", "target: mean ± deviation"]),
        (100, 0, ["clients, sorted by their mean"]),
    ],
)
def test_pictures_say_what_they_show(
    clients: int, classes: int, says: list[str], tmp_path: Path
) -> None:
    """Every kind of picture is drawn, with its title and the names of its axes."""
    draw(found(clients, classes), tmp_path / "a.svg", title="my title")
    text = (tmp_path / "a.svg").read_text()
    for words in ["my title", *says]:
        assert f"<!-- {words}" in text
    draw(found(clients, classes), tmp_path / "b.svg", title="my title")
    assert (tmp_path / "b.svg").read_text() == text


def test_kinds_of_files(tmp_path: Path) -> None:
    """The name says the kind; another kind is refused before anything is counted."""
    draw(found(3, 2), tmp_path / "a.png", title="")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"--plot a\.gif: .* must end in \.png, \.svg, \.pdf"):
        check_picture(Path("a.gif"))


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'meadow-fl\[plots\]'"):
        check_picture(Path("a.png"))
