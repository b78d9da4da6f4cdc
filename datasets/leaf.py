"""`leaf`: the JSON files of the LEAF benchmark, whose samples belong to users.

Source: Caldas et al. 2018 (arXiv 1812.01097).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch.utils.data import Dataset

from ..errors import DataError
from .leaf_file import LeafFile
from .pair import Pair, make_pair

__all__ = ["Leaf", "leaf"]

USERS_KEPT = 64
Encode = Callable[[Any], ArrayLike]


class Leaf(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The samples of all users, read user by user when they are asked for.

    Attributes:
        users: their names, in the files' order.
        counts: how many samples each has, (users,).
        groups: the number of each sample's user, (samples,), read-only: for
            `Site.share_of(data.groups, groups=data.groups)`.
    """

    def __init__(
        self,
        files: Sequence[LeafFile],
        *,
        encode_input: Encode | None,
        encode_target: Encode | None,
        scale: float | None,
    ) -> None:
        self.users = tuple(user for file in files for user in file.users)
        self.counts = np.array([each for file in files for each in file.counts], dtype=np.int64)
        self.groups = np.repeat(np.arange(len(self.users)), self.counts)
        self.groups.flags.writeable = False
        self._homes = [file for file in files for _ in file.users]
        self._numbers = {user: number for number, user in enumerate(self.users)}
        self._ends = np.cumsum(self.counts)
        self._encode_input, self._encode_target = encode_input, encode_target
        self._scale = scale
        self._kept: OrderedDict[int, Pair] = OrderedDict()

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(*self.take(indices), strict=True))

    @cached_property
    def targets(self) -> torch.Tensor:
        """All targets, (samples,): reads every file once; "natural" divisions do not need it."""
        several = np.flatnonzero(self.counts).tolist()
        return torch.cat([self._read(number).targets for number in several])

    def of(self, user: str | int) -> Pair:
        """Return the samples of one user, by name or number.

        Raises:
            DataError: there is no such user, or the samples are no numbers of one shape.
        """
        number = self._numbers.get(user, -1) if isinstance(user, str) else user
        if not 0 <= number < len(self.users):
            raise DataError(f"there is no user {user!r} among {len(self.users)}; see .users")
        if number not in self._kept:
            self._kept[number] = self._read(number)
            if len(self._kept) > USERS_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(number)
        return self._kept[number]

    def take(self, indices: ArrayLike) -> Pair:
        """Return some samples as a pair of tensors, in this order: a site's share, in memory.

        Raises:
            DataError: as `of`, and for an index outside of the data.
        """
        wanted = np.asarray(indices, dtype=np.int64)
        if not len(wanted):
            raise DataError("no samples were asked for")
        if wanted.min() < 0 or wanted.max() >= len(self):
            raise DataError(f"indices must be in [0, {len(self)})")
        order = np.argsort(wanted, kind="stable")
        rows, owners = wanted[order], self.groups[wanted[order]]
        bounds = np.flatnonzero(np.diff(owners)) + 1
        inputs, targets = [], []
        for part in np.split(rows, bounds):
            user = int(self.groups[part[0]])
            places = torch.from_numpy(part - (self._ends[user] - self.counts[user]))
            pair = self.of(user)
            inputs.append(pair.inputs[places])
            targets.append(pair.targets[places])
        back = torch.from_numpy(np.argsort(order, kind="stable"))
        return Pair(torch.cat(inputs)[back], torch.cat(targets)[back], groups=self.groups[wanted])

    def _read(self, number: int) -> Pair:
        user, file = self.users[number], self._homes[number]
        x, y = file.samples_of(user)
        if self._encode_input is not None:
            x = [self._encode_input(each) for each in x]
        if self._encode_target is not None:
            y = [self._encode_target(each) for each in y]
        return make_pair(x, y, where=f"{file.path}: user {user!r}", scale=self._scale)


def leaf(
    folder: Path | str,
    *,
    encode_input: Encode | None = None,
    encode_target: Encode | None = None,
    scale: float | None = None,
) -> Leaf:
    """Return the users of a folder of LEAF's JSON files, as its `data/train`.

    Only the users' names and counts are read now; their samples are read on access. Text must become
    numbers: `encode_input` and `encode_target` take one x or y. Inputs are divided by `scale`.

    Raises:
        DataError: there are no such files, one is damaged, or two have the same user.
    """
    root = Path(folder)
    paths = sorted(path for path in root.glob("*.json") if not path.name.startswith("."))
    if not paths:
        raise DataError(f"{root}: has no *.json files; give the folder of one split, as data/train")
    files = [LeafFile(path) for path in paths]
    homes: dict[str, Path] = {}
    for file in files:
        for user in file.users:
            if user in homes:
                raise DataError(f"{file.path}: user {user!r} is in {homes[user]} too; keep one")
            homes[user] = file.path
    return Leaf(files, encode_input=encode_input, encode_target=encode_target, scale=scale)
