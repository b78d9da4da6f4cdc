"""The last rounds of a run on disk: per round, a manifest and the files that it names.

A round is committed when its manifest is renamed to its final name: every file that the manifest
names is durable by then. The CRC-32 of the manifest and its files is checked on resume.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from zlib_ng.zlib_ng import crc32 as crc32_of

from ..errors import DamageError, MeadowError, StoreError
from ..flower.messages import StoredParams, params_in, params_to_arrays, tensors_of
from ..strategies.algorithms.algorithm import Params, State
from ..strategies.rounds.recorder import Checkpoint, Row
from ..transport.durable import make_folder, sweep, sync_folder, write_file
from ..transport.tensor_store import TensorStore
from ..transport.tensors import TensorFile, checksum, whole_file, write_tensors
from .round_lines import as_json

__all__ = ["Checkpoints", "SavedCheckpoint"]

CHECKPOINTS_KEPT = 2
SLOT_SEPARATOR = "/"
STORED_BYTES_MIN = 2 << 20
"""Means that are smaller are made in memory."""
MEAN = ".mean."
"""How the names of means begin that no round has taken yet."""

Emit = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A committed round, read from disk."""

    state: State
    best: Mapping[str, Any] | None
    stale_rounds: int
    row: Row
    params_file: Path


@dataclass(frozen=True, slots=True)
class _ClientStates:
    save: Callable[[], Mapping[str, str]]
    load: Callable[[Mapping[str, str]], None]


class Checkpoints:
    """A folder of the checkpoints of the last two rounds."""

    def __init__(self, folder: Path) -> None:
        """Open the folder and delete the unfinished files of a killed process."""
        make_folder(folder)
        sweep(folder)
        self._folder = folder
        self._client_states: _ClientStates | None = None
        self.first = folder / "first.safetensors"
        """Where the params before the first round may be."""

    def keep_client_states(
        self,
        save: Callable[[], Mapping[str, str]],
        load: Callable[[Mapping[str, str]], None],
    ) -> None:
        """Store simulated clients' states with each checkpoint.

        `save` makes them durable and returns the key for `load`, valid while the checkpoint exists.
        """
        self._client_states = _ClientStates(save, load)

    def store(
        self, forms: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
    ) -> TensorStore | None:
        """Return the place of a large mean, which `save` takes as it is; None for a small one.

        Raises:
            StoreError: the disk has no room for it.
        """
        size = sum(math.prod(shape) * dtype.itemsize for dtype, shape in forms.values())
        if size < STORED_BYTES_MIN or not TensorStore.fits([dtype for dtype, _ in forms.values()]):
            return None
        return TensorStore(self._folder / f"{MEAN}{token_hex(4)}.tmp", forms)

    def clean(self) -> None:
        """Delete the means that no round took, and the params before the first."""
        sweep(self._folder)
        _remove(self.first)

    def save(self, checkpoint: Checkpoint, row: Row) -> tuple[Path, ArrayRecord]:
        """Make a round durable; return the file of its params, and the params.

        Raises:
            StoreError: the disk is full or fails; the round before is intact.
        """
        stem = f"round-{checkpoint.state.round:06d}"
        path = self._folder / f"{stem}.safetensors"
        params = checkpoint.state.params
        files = {"params": self._taken(path, params) or self._write(path, params)}
        for mean in self._folder.glob(f"{MEAN}*"):
            mean.unlink()  # that an optimizer has made other params of
        if checkpoint.state.slots:
            slots = {
                f"{slot}{SLOT_SEPARATOR}{name}": values
                for slot, params in checkpoint.state.slots.items()
                for name, values in params.items()
            }
            files["slots"] = self._write(self._folder / f"{stem}.slots.safetensors", slots)
        manifest = {
            "round": checkpoint.state.round,
            "files": files,
            "slots": list(checkpoint.state.slots),
            "best": checkpoint.best,
            "stale_rounds": checkpoint.stale_rounds,
            "row": row,
            "clients": self._client_states.save() if self._client_states else {},
        }
        write_file(self._folder / f"{stem}.json", as_json(_sealed(manifest)))
        info = files["params"]
        return path, _read(path, size_max=info["size_bytes"], crc32=info["crc32"])

    def newest(self, emit: Emit) -> SavedCheckpoint | None:
        """Return the newest intact round; emit `checkpoint_damaged` for a damaged one and skip it.

        Raises:
            StoreError: all rounds are damaged.
        """
        manifests = self._manifests()
        for path in manifests:
            try:
                return self._load(self._manifest(path))
            except MeadowError as error:
                emit("checkpoint_damaged", {"file": path.name, "reason": str(error)})
        if manifests:
            raise StoreError(
                f"all checkpoints in {self._folder} are damaged; restore them from a backup, "
                "or begin a new run"
            )
        return None

    def problems(self) -> dict[str, str]:
        """Return the faults of manifests and their files, by manifest name; read-only."""
        found = {}
        for path in self._manifests():
            try:
                for file in self._manifest(path)["files"].values():
                    self._verified(file)
            except MeadowError as error:
                found[path.name] = str(error)
        return found

    def rounds(self) -> list[int]:
        """Return the rounds that have a manifest, the newest first; their files are not checked."""
        numbers = (path.stem.removeprefix("round-") for path in self._manifests())
        return [int(number) for number in numbers if number.isdecimal()]

    def drop_old(self) -> None:
        """Delete all but the last two rounds, and the params before the first."""
        _remove(self.first)
        for manifest in self._manifests()[CHECKPOINTS_KEPT:]:
            manifest.unlink()  # first: the files of a round without a manifest are never read
            for path in self._folder.glob(f"{manifest.stem}.*"):
                _remove(path)

    def _manifests(self) -> list[Path]:
        return sorted(self._folder.glob("round-*.json"), reverse=True)

    def _taken(self, path: Path, params: Params) -> dict[str, Any] | None:
        """Give a mean that was stored here its name; None if these are other params."""
        file = whole_file(params.tensors) if isinstance(params, StoredParams) else None
        if file is None or file.path.parent != self._folder or not file.path.name.startswith(MEAN):
            return None
        info = file.info
        try:
            file.path.replace(path)
            sync_folder(self._folder)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        return {"name": path.name, "size_bytes": info.size_bytes, "crc32": info.crc32}

    def _write(self, path: Path, params: Params) -> dict[str, Any]:
        held = params.tensors if isinstance(params, StoredParams) else params
        info = write_tensors(path, held, fsync=True)
        return {"name": path.name, "size_bytes": info.size_bytes, "crc32": info.crc32}

    def _manifest(self, path: Path) -> dict[str, Any]:
        """Read a manifest.

        Raises:
            DamageError: its text is malformed or fails its checksum.
        """
        try:
            text = path.read_bytes()
            found = json.loads(text)
            _check_form(found, f"round-{found['round']:06d}.json" == path.name)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise DamageError(f"{path} cannot be read as a checkpoint: {error}") from None
        del found["crc32"]
        if as_json(_sealed(found)) != text:
            raise DamageError(f"{path} does not have the checksum that it was written with")
        return dict(found)

    def _load(self, manifest: Mapping[str, Any]) -> SavedCheckpoint:
        tensors = {key: self._verified(file) for key, file in manifest["files"].items()}
        params = params_in(tensors["params"])
        slots: dict[str, dict[str, Any]] = {slot: {} for slot in manifest["slots"]}
        if slots:
            for name, tensor in tensors_of(tensors["slots"]).items():
                slot, _, param = name.partition(SLOT_SEPARATOR)
                slots[slot][param] = tensor.numpy()
        if self._client_states is not None:
            self._client_states.load(manifest["clients"])
        return SavedCheckpoint(
            state=State(params=params, round=manifest["round"], slots=slots),
            best=manifest["best"],
            stale_rounds=manifest["stale_rounds"],
            row=manifest["row"],
            params_file=self._path(manifest["files"]["params"]),
        )

    def _path(self, file: Mapping[str, Any]) -> Path:
        return self._folder / Path(file["name"]).name

    def _verified(self, file: Mapping[str, Any]) -> ArrayRecord:
        path = self._path(file)
        found = checksum(path)
        if (found.size_bytes, found.crc32) != (file["size_bytes"], file["crc32"]):
            raise DamageError(f"{path} does not have the checksum that it was written with")
        return _read(path, size_max=found.size_bytes, crc32=found.crc32)


_FORM: Mapping[str, tuple[type, ...]] = {
    "round": (int,),
    "files": (dict,),
    "slots": (list,),
    "best": (dict, type(None)),
    "stale_rounds": (int,),
    "row": (dict,),
    "clients": (dict,),
    "crc32": (int,),
}


def _check_form(manifest: Any, is_named_so: bool) -> None:
    """Check that a manifest has every key, each of its type.

    Raises:
        KeyError, TypeError, ValueError: a key is missing, of another type, or inconsistent.
    """
    for key, types in _FORM.items():
        if not isinstance(manifest[key], types) or isinstance(manifest[key], bool):
            raise TypeError(f"its {key!r} is a {type(manifest[key]).__name__}")
    for file in manifest["files"].values():
        if not (isinstance(file["name"], str) and isinstance(file["size_bytes"], int)):
            raise TypeError("a file's name or size is of another type")
    if "params" not in manifest["files"] or ("slots" in manifest["files"]) != bool(
        manifest["slots"]
    ):
        raise ValueError("its list of files is inconsistent")
    if not is_named_so:
        raise ValueError("it belongs to another round")


def _sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with the CRC-32 of its text added."""
    return {**manifest, "crc32": crc32_of(as_json(manifest))}


def _read(path: Path, *, size_max: int, crc32: int) -> ArrayRecord:
    return params_to_arrays(TensorFile.open(path, size_max=size_max, crc32=crc32).tensors)


def _remove(path: Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            inner.unlink()
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
