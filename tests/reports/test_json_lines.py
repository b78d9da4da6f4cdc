"""JSON lines: a file that is being written is read; one that is damaged is refused by line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from meadow.errors import ConfigError
from meadow.reports.json_lines import number_in, read_objects, round_in


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    """Only the last line may be cut; the ones before it count."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"round": 1}\n{"round": 2}\n{"rou')
    assert list(read_objects(path)) == [{"round": 1}, {"round": 2}]


def test_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    """A run that has no such file has nothing to say."""
    assert list(read_objects(tmp_path / "clients.jsonl")) == []


@pytest.mark.parametrize("line", [b"{]", b"[1]", b"\xff\xfe", b"[" * 100_000, b""])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    """The error says which file and line, and what to do."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"round": 1}\n' + line + b"\n")
    with pytest.raises(ConfigError, match=r"metrics.jsonl: line 2 is no JSON object; .*Remove"):
        list(read_objects(path))


def test_a_line_has_a_bound(tmp_path: Path) -> None:
    """A file without line ends is not read into memory."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(ConfigError, match="line 1 is longer than 1000 bytes"):
        list(read_objects(path, line_bytes_max=1000))


def test_what_is_no_number_is_nan() -> None:
    """Texts, truth values, nothing and numbers beyond a float are no numbers."""
    assert number_in(3) == 3.0
    for value in ("3", True, None, [], 10**400):
        assert math.isnan(number_in(value))


@pytest.mark.parametrize("value", [None, True, -1, 10**9 + 1, 1.0, "1"])
def test_a_round_is_a_whole_number(tmp_path: Path, value: object) -> None:
    """A line without a usable round is refused."""
    with pytest.raises(ConfigError, match="round must be a whole number from 0 to 1000000000"):
        round_in({"round": value}, tmp_path)
