"""The papers' scripts: the verdict's arithmetic, the data, and a short run of every script."""

from __future__ import annotations

import gzip
import json
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import meadow

FOLDER = Path(__file__).parents[2] / "examples" / "papers"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "study")


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The scripts' common module, without leaving its folder on the path."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.delitem(sys.modules, "study", raising=False)
    import study

    monkeypatch.setitem(sys.modules, "study", study)
    return study


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ([3, 4, 5], [1, 2, 2], "holds"),
        ([1, 2, 2], [3, 4, 5], "does not hold"),
        ([3, 1, 2], [1, 3, 2], "not shown"),
        ([3, 3], [1, 1], "holds"),  # no spread at all
        ([2, 2], [2, 2], "not shown"),
        ([9], [1], "not shown"),  # one seed has no spread to judge by
    ],
)
def test_the_verdict_is_computed(
    study: ModuleType, first: list[float], second: list[float], word: str
) -> None:
    """More than two standard errors decide, in either direction; "less" is "more" turned round."""
    assert study.Verdict.more("a", first, second).word == word
    assert study.Verdict.less("a", second, first).word == word
    assert word.upper() in str(study.Verdict.more("a", first, second))


def test_the_verdict_is_at_two_standard_errors(study: ModuleType) -> None:
    """Differences with a mean of 2 and a standard error of 1 are at the border, which is not over."""
    border = study.Verdict("a", (1.0, 3.0))
    assert (border.mean, border.error, border.word) == (2.0, pytest.approx(1.0), "not shown")
    assert study.Verdict("a", (1.01, 3.0)).word == "holds"


def test_the_measures(study: ModuleType) -> None:
    """The first round at the target, the rounds + 1 if there is none; the mean of the last."""
    assert study.rounds_to(0.5, 3)([0.1, 0.5, 0.4]) == 2
    assert study.rounds_to(0.6, 3)([0.1, 0.5, 0.4]) == 4
    assert study.last(2)([0.1, 0.5, 0.4]) == pytest.approx(0.45)


def test_fashion_mnist_is_read_or_asked_for(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gzipped files become rows from 0 to 1; without them the package is named."""
    study.images.cache_clear()
    monkeypatch.setattr(study, "FASHION", tmp_path)
    with pytest.raises(SystemExit, match="apt install dataset-fashion-mnist"):
        study.images("fashion")
    for part in ("train", "t10k"):
        pixels = bytes(16) + bytes([0, 255] * 784)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(pixels))
        labels = bytes(8) + bytes([7, 3])
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    (inputs, targets), _ = study.images("fashion")
    assert (inputs.shape, targets.tolist()) == ((2, 784), [7, 3])
    assert inputs[0, :3].tolist() == [0, 1, 0]
    study.images.cache_clear()


def test_rates_are_chosen_by_another_seed_than_those_that_are_judged(
    study: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of the choices is taken; between equals, whose mean accuracy is the highest."""
    pytest.importorskip("sklearn")
    asked = study.Study("text", model=study.softmax, argv=["--data", "digits"])
    curves = {"slow": [0.1, 0.2], "fast": [0.2, 0.9], "never": [0.1, 0.1]}
    seeds = set()

    def curve(seed: int, arguments: dict[str, str]) -> list[float]:
        seeds.add(seed)
        if arguments["strategy"] == "diverges":
            raise meadow.MeadowError("the training loss is nan")
        return curves[arguments["strategy"]]

    monkeypatch.setattr(asked, "curve", curve)
    choices = [{"strategy": name} for name in ("diverges", *curves)]
    assert asked.tuned(choices, study.last(1))["strategy"] == "fast"
    unreached = study.rounds_to(0.95, 2)
    assert asked.tuned(choices, unreached, least=True)["strategy"] == "fast"
    assert seeds.isdisjoint(asked.seeds)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(
    name: str,
    study: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The trial prints the paper, numbers of every seed and a verdict for each claim; the
    verdicts follow from the runs alone: with the record of these, changed, they are others."""
    pytest.importorskip("sklearn")
    threads = torch.get_num_threads()
    record = tmp_path / "record.jsonl"
    command = [name, "--quick", "--data", "digits", "--record", str(record)]
    monkeypatch.setattr(sys, "argv", command)
    try:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        shown = capsys.readouterr().out
        assert "arXiv" in shown and "seed 1 | seed 2" in shown and "The rule:" in shown
        words = re.findall(
            r"^\d+\. .+: (HOLDS|DOES NOT HOLD|NOT SHOWN) \(diff", shown, re.MULTILINE
        )
        assert len(words) >= 3
        assert "say nothing about the paper" in shown
        rows = [json.loads(line) for line in record.read_text().splitlines()]
        assert all(len(row["accuracies"]) == study.QUICK_ROUNDS for row in rows)
        same = [json.dumps({**row, "accuracies": [0.99] * 3}) + "\n" for row in rows]
        record.write_text("".join(same))
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        assert len(record.read_text().splitlines()) == len(rows)  # nothing was simulated again
        again = capsys.readouterr().out
        assert again != shown
        assert re.search(r"NOT SHOWN \(difference 0, standard error 0, 2 seeds\)", again)
    finally:
        torch.set_num_threads(threads)
        sys.modules.pop(name, None)  # fedprox.py, whose algorithm is imported by its name


def test_the_readme_names_every_script() -> None:
    """Each has a line with its command."""
    text = (FOLDER / "README.md").read_text()
    assert all(f"examples/papers/{name}.py" in text for name in SCRIPTS)
