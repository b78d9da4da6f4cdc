"""Tables: the same pair from CSV and Parquet, and errors that name column and row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meadow import datasets
from meadow.datasets import extras
from meadow.errors import DataError

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

FRAME = {
    "age": [30, 41, 52],
    "weight": [70.5, 80.0, 61.25],
    "sick": ["yes", "no", "yes"],
    "ward": ["A", "B", "A"],
}


@pytest.fixture(params=[".csv", ".tsv", ".parquet"])
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def written(folder: Path, suffix: str, **columns: list[Any]) -> Path:
    frame = pandas.DataFrame({**FRAME, **columns})
    path = folder / f"site{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    return path


def test_a_table_is_a_pair(tmp_path: Path, suffix: str) -> None:
    """Columns in order, classes by their place in the list, groups as they are."""
    path = written(tmp_path, suffix)
    pair = datasets.table(path, target="sick", groups="ward", classes=["no", "yes"])
    assert pair.inputs.tolist() == [[30.0, 70.5], [41.0, 80.0], [52.0, 61.25]]
    assert pair.targets.tolist() == [1, 0, 1] and pair.classes == ("no", "yes")
    assert pair.groups is not None and pair.groups.tolist() == ["A", "B", "A"]
    chosen = datasets.table(path, target="age", columns=["weight"])
    assert chosen.inputs.tolist() == [[70.5], [80.0], [61.25]]
    assert chosen.targets.tolist() == [30, 41, 52]
    turned = datasets.table(path, target="weight", columns=["age"]).targets
    assert turned.tolist() == [70.5, 80.0, 61.25]


BROKEN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "hole": ({"age": [30, None, 52]}, {}, "column 'age' has no value in row 2, and in 1 of 3"),
    "text": ({"age": [30, 41, "old"]}, {}, "column 'age' has 'old' in row 3"),
    "infinite": ({"weight": [1.0, float("inf"), 2.0]}, {}, "not finite in row 2"),
    "no target": ({"sick": ["yes", None, "no"]}, {}, "column 'sick' has no value in row 2"),
    "strange class": ({}, {"classes": ["no", "maybe"]}, "has 'yes' in row 1, which is not among"),
    "no classes": ({}, {"classes": None}, r"holds names \('no', 'yes'\); give classes=\[...\]"),
    "no column": ({}, {"columns": ["height"]}, "no column 'height'; it has age, weight, sick"),
    "no inputs": ({}, {"columns": []}, "there are no columns for inputs beside 'sick'"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_tables_are_refused(kind: str, tmp_path: Path, suffix: str) -> None:
    """Every error names the file, the column and, where there is one, the row."""
    columns, options, sentence = BROKEN[kind]
    if kind == "text":
        columns = {"age": ["30", "41", "old"]}
        sentence = "column 'age' has '30' in row 1"
    path = written(tmp_path, suffix, **columns)
    given = {"groups": "ward", "classes": ["no", "yes"], **options}
    with pytest.raises(DataError, match=sentence) as said:
        datasets.table(path, target="sick", **given)
    assert str(path) in str(said.value)


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    """Missing, empty, of another kind, or damaged."""
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "bytes.csv").write_bytes(b"a,y\n\xff\xfe,1\n")
    (tmp_path / "ragged.csv").write_text("a,y\n1,2\n1,2,3,4\n")
    (tmp_path / "long.csv").write_text("a,y\n1,2,3\n1,2,3\n")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 nothing PAR1")
    for name, sentence in [
        ("missing.csv", "missing.csv: cannot be read: No such file"),
        ("missing.parquet", "missing.parquet: cannot be read"),
        ("site.xlsx", "must end in one of .csv, .tsv, .parquet"),
        ("empty.csv", "is no table that can be read"),
        ("bytes.csv", "is no table that can be read"),
        ("ragged.csv", "is no table that can be read"),
        ("long.csv", "its rows have more fields than its heading"),
        ("damaged.parquet", "damaged.parquet: "),
    ]:
        with pytest.raises(DataError, match=sentence):
            datasets.table(tmp_path / name, target="y")


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pandas the error says what to install."""

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(extras, "import_module", missing)
    with pytest.raises(DataError, match=r"needs pandas, .* pip install 'meadow-fl\[data\]'"):
        datasets.table(written(tmp_path, ".csv"), target="age")


def test_a_data_frame_is_a_table() -> None:
    """What is in memory already is checked and turned into tensors as a file's rows are."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1, 2, 3], 7: [0.5, 0.25, 0.0], "ill": ["no", "yes", "no"]})
    pair = datasets.table(frame, target="ill", classes=["no", "yes"])
    assert pair[0].tolist() == [[1.0, 0.5], [2.0, 0.25], [3.0, 0.0]]
    assert pair[1].tolist() == [0, 1, 0]
    with pytest.raises(DataError, match=r"the DataFrame: has no column 'sick'; it has age, 7, ill"):
        datasets.table(frame, target="sick")
