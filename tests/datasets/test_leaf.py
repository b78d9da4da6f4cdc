"""LEAF's files: users without their samples first, then one user's samples at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset

import meadow
from meadow import datasets
from meadow.datasets import leaf_file
from meadow.datasets.leaf_file import LeafFile
from meadow.errors import DataError
from meadow.partitioning.partition import Partition
from meadow.training.batches import batches_of

USERS = {"ann": 3, "zoë": 1, 'the "user_data" of {x}': 2, "user_data": 2, "": 1}


def content(users: dict[str, int], start: int = 0) -> dict[str, Any]:
    data = {
        user: {"x": [[start + 10 * n + k, 0.5] for k in range(count)], "y": [n % 3] * count}
        for n, (user, count) in enumerate(users.items())
    }
    return {"users": list(users), "num_samples": list(users.values()), "user_data": data}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files: one as LEAF writes it, one with everything in another order and indented."""
    (tmp_path / "a.json").write_text(json.dumps(content(USERS)))
    turned = dict(reversed(content({"bob": 2, "eve": 4}, 100).items()))
    (tmp_path / "b.json").write_text(json.dumps(turned, indent=2, ensure_ascii=False))
    return tmp_path


def test_users_have_their_samples(folder: Path) -> None:
    """By name or number; groups say whose each sample is."""
    data = datasets.leaf(folder)
    assert data.users == (*USERS, "bob", "eve") and data.counts.tolist() == [3, 1, 2, 2, 1, 2, 4]
    assert len(data) == 15 and data.groups.tolist() == np.repeat(np.arange(7), data.counts).tolist()
    for number, user in enumerate(USERS):
        assert data.of(user).inputs[:, 0].tolist() == [10 * number + k for k in range(USERS[user])]
    assert data.of("eve").targets.tolist() == data.of(6).targets.tolist() == [1] * 4
    inputs, target = data[3]
    assert inputs.tolist() == [10.0, 0.5] and int(target) == 1


def test_samples_are_read_only_when_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening reads no sample of LEAF's own order; a file is scanned once, a user read alone."""
    scanned: list[str] = []
    scan = LeafFile._scan

    def counted(self: LeafFile) -> Any:
        scanned.append(self.path.name)
        return scan(self)

    monkeypatch.setattr(LeafFile, "_scan", counted)
    monkeypatch.setattr(leaf_file, "HEAD_BYTES", 16)
    data = datasets.leaf(folder)
    assert scanned == []
    data.of("ann"), data.of("zoë"), data.of("user_data")
    assert scanned == ["a.json"]
    monkeypatch.setattr(LeafFile, "samples_of", None)
    assert len(data.of("ann").targets) == 3


def test_sites_share_whole_users(folder: Path) -> None:
    """The natural division: each site has all samples of its users, as tensors or lazily."""
    data = datasets.leaf(folder)
    rule, seen = Partition(kind="natural"), []
    for index in range(3):
        site = meadow.Site(index=index, count=3, partition=rule)
        mine = site.share_of(data.groups, groups=data.groups)
        pair = data.take(mine)
        lazily = torch.cat([inputs for inputs, _ in batches_of(Subset(data, mine.tolist()), 4)])
        assert torch.equal(pair.inputs, lazily)
        assert pair.groups is not None
        seen += sorted(set(pair.groups.tolist()))
    assert sorted(seen) == list(range(7))


def test_samples_are_taken_in_any_order(folder: Path) -> None:
    """Indices come back in the order of the question; all targets are there for other rules."""
    data = datasets.leaf(folder)
    order = [14, 0, 7, 0, 3]
    assert data.take(order).inputs.tolist() == [data[index][0].tolist() for index in order]
    assert data.targets.tolist() == data.take(range(15)).targets.tolist()
    for wrong in ([15], [-1], []):
        with pytest.raises(DataError):
            data.take(wrong)


def test_text_is_encoded(tmp_path: Path) -> None:
    """Shakespeare's lines need an encoding; without one the error says so."""
    users = {"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": ["ab", "ba"], "y": "ba"}}}
    users["user_data"]["a"]["y"] = ["b", "a"]  # type: ignore[call-overload]
    (tmp_path / "a.json").write_text(json.dumps(users))
    with pytest.raises(DataError, match=r"a\.json: user 'a': inputs must be numbers, got <U2"):
        datasets.leaf(tmp_path).of("a")
    data = datasets.leaf(
        tmp_path, encode_input=lambda text: [ord(mark) - 97 for mark in text], encode_target=ord
    )
    assert data.of("a").inputs.tolist() == [[0, 1], [1, 0]]
    assert data.of("a").targets.tolist() == [98, 97]


DAMAGED = {
    "no json": ('{"users": ["a"], "num_samples"', "is no file of LEAF: it is not JSON"),
    "a list": ("[]", "has no lists users and num_samples"),
    "no users": ('{"user_data": {}}', "has no lists users and num_samples"),
    "uneven": ('{"users": ["a"], "num_samples": [], "user_data": {}}', "each once, and their"),
    "twice": ('{"users": ["a", "a"], "num_samples": [1, 1], "user_data": {}}', "each once"),
    "negative": ('{"users": ["a"], "num_samples": [-1], "user_data": {}}', "and their numbers"),
    "no data": ('{"users": ["a"], "num_samples": [1]}', "it has no user_data"),
    "no such user": ('{"users": ["a"], "num_samples": [1], "user_data": {}}', "has no user 'a'"),
    "cut off": ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [1', "not JSON"),
    "other count": (
        '{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [1], "y": [1]}}}',
        "user 'a' has not the 2 samples of num_samples",
    ),
    "no y": ('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [1]}}}', "no object"),
    "nan": (
        '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [NaN], "y": [1]}}}',
        r"user 'a': inputs\[0\] is nan",
    ),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_files_are_named(kind: str, tmp_path: Path) -> None:
    """Whatever is wrong, the file and the user are named, at the first or second look."""
    text, sentence = DAMAGED[kind]
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=sentence) as said:
        datasets.leaf(tmp_path).of(0)
    assert "a.json" in str(said.value)


def test_folders_are_checked(folder: Path) -> None:
    """An empty folder, a user in two files, a user who is not there."""
    with pytest.raises(DataError, match="there is no user 'mallory' among 7"):
        datasets.leaf(folder).of("mallory")
    (folder / "c.json").write_text(json.dumps(content({"eve": 1})))
    with pytest.raises(DataError, match=r"c\.json: user 'eve' is in .*b\.json too"):
        datasets.leaf(folder)
    with pytest.raises(DataError, match=r"has no \*\.json files"):
        datasets.leaf(folder / "nowhere")


@given(cut=st.integers(0, 400))
def test_a_file_that_is_cut_off_is_never_misread(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever byte a copy ends at, users have the samples they had, or there is an error."""
    folder = tmp_path_factory.mktemp("cut")
    text = json.dumps(content(USERS))
    (folder / "a.json").write_text(text[:cut])
    try:
        data = datasets.leaf(folder)
        samples = [data.of(user).inputs[:, 0].tolist() for user in USERS]
    except DataError:
        return
    assert cut >= len(text) and samples[0] == [0.0, 1.0, 2.0]
