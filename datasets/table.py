"""`table`: CSV and Parquet files, a sample a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .extras import needed
from .labels import numbered
from .pair import Pair, make_pair

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]

__all__ = ["table"]

SEPARATORS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")


def table(
    path: Path | str | DataFrame,
    *,
    target: str,
    columns: Sequence[str] | None = None,
    groups: str | None = None,
    classes: Sequence[str] | None = None,
) -> Pair:
    """Return the rows of a table, a file or a pandas DataFrame, as a pair of checked tensors.

    Inputs are the `columns`, by default all others, in the file's order, as float32. `groups`
    names a column that says which rows belong together; `classes` names the target's classes, if
    they are text. Rows are counted from 1, without the heading.

    Shapes: inputs (rows, columns); targets (rows,).
    Raises:
        DataError: the file or a column cannot be read, or a value is missing or no number.
    """
    whole = None if isinstance(path, Path | str) else path.rename(columns=str)
    where = str(path) if whole is None else "the DataFrame"
    there = _columns_in(Path(where)) if whole is None else list(whole.columns)
    if columns is None:
        columns = [name for name in there if name not in (target, groups)]
    wanted = [*columns, target, *([groups] if groups else [])]
    for name in wanted:
        if name not in there:
            raise DataError(f"{where}: has no column {name!r}; it has {', '.join(there)}")
    if not columns:
        raise DataError(f"{where}: there are no columns for inputs beside {target!r}")
    frame = _read(Path(where), wanted) if whole is None else whole[wanted]
    inputs = np.empty((len(frame), len(columns)), dtype=np.float32)
    for place, name in enumerate(columns):
        inputs[:, place] = _numbers(frame[name], name, where)
    _check_there(frame[target].isna().to_numpy(), target, where)
    targets = numbered(_plain(frame[target]), classes, where=where, what=f"column {target!r}")
    return make_pair(
        inputs,
        targets,
        where=where,
        groups=frame[groups].astype(str).to_numpy(dtype=str) if groups else None,
        classes=classes or (),
    )


def _columns_in(file: Path) -> list[str]:
    with _explained(file):
        if file.suffix in PARQUET:
            return list(needed("pyarrow.parquet", what=str(file)).read_schema(file).names)
        return [str(name) for name in _csv(file, nrows=0).columns]


def _read(file: Path, columns: list[str]) -> Any:
    with _explained(file):
        if file.suffix in PARQUET:
            parquet = needed("pyarrow.parquet", what=str(file))
            needed("pandas", what=str(file))
            return parquet.read_table(file, columns=columns).to_pandas()
        # All of them: with a selection pandas does not notice rows of too many fields.
        frame = _csv(file)
        if not isinstance(frame.index, needed("pandas", what=str(file)).RangeIndex):
            raise DataError(f"{file}: its rows have more fields than its heading; repair the file")
        return frame[columns]


def _csv(file: Path, **options: Any) -> Any:
    if file.suffix not in SEPARATORS:
        known = ", ".join([*SEPARATORS, *PARQUET])
        raise DataError(f"{file}: a table's name must end in one of {known}")
    pandas = needed("pandas", what=str(file))
    return pandas.read_csv(file, sep=SEPARATORS[file.suffix], compression=None, **options)


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Raise errors of pandas and pyarrow, which are kinds of these two, as a `DataError`."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        why = " ".join(str(error).split())
        raise DataError(f"{file}: is no table that can be read: {why}") from None


def _numbers(column: Any, name: str, where: str) -> NDArray[np.float32]:
    _check_there(column.isna().to_numpy(), name, where)
    if column.dtype.kind not in "biuf":
        for row, value in enumerate(column.tolist(), start=1):
            if not isinstance(value, int | float):
                raise DataError(
                    f"{where}: column {name!r} has {value!r} in row {row}, and inputs must be "
                    "numbers; encode it first, or leave it out with columns=[...]"
                )
    numbers: NDArray[np.float32] = column.to_numpy(dtype=np.float32)
    _check_there(~np.isfinite(numbers), name, where, what="a number that is not finite")
    return numbers


def _check_there(
    wrong: NDArray[np.bool_], name: str, where: str, *, what: str = "no value"
) -> None:
    if wrong.any():
        raise DataError(
            f"{where}: column {name!r} has {what} in row {int(wrong.argmax()) + 1}, and in "
            f"{int(wrong.sum())} of {len(wrong)} rows in all; fill it in, or remove these rows"
        )


def _plain(column: Any) -> NDArray[np.generic]:
    """Return a column as a NumPy array: text and categories as objects."""
    kind = None if column.dtype.kind in "biuf" else object
    array: NDArray[np.generic] = column.to_numpy(dtype=kind)
    return array
