"""Case 12: what executes code when it is loaded is not loaded."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from meadow.transport import fleet_pb2 as pb

from .arena import Arena
from .raw_client import RawClient, arrays_of, metrics_of
from .test_malformed_replies import failed_in

ONE = {"num-examples": 1}
Bytes = Callable[[Path], bytes]


class Payload:
    """Writes the canary's file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.canary), "w")


def pickled(canary: Path) -> bytes:
    """Return a pickle."""
    return pickle.dumps(Payload(canary))


def object_npy(canary: Path) -> bytes:
    """Return a .npy file that holds a pickle."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([Payload(canary)], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def torch_file(canary: Path) -> bytes:
    """Return what torch.save writes: an archive around a pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(canary))
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


def evaluated_npy(canary: Path) -> bytes:
    """Return a .npy file whose header is an expression."""
    text = f"__import__('pathlib').Path({str(canary)!r}).touch()".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def test_canary(tmp_path: Path) -> None:
    """The payload does what it is for, where pickles are loaded."""
    canary = tmp_path / "canary"
    pickle.loads(pickled(canary)).close()
    assert canary.exists()
    canary.unlink()
    np.load(io.BytesIO(object_npy(canary)), allow_pickle=True)[0].close()
    assert canary.exists()


@pytest.mark.parametrize("make", [pickled, object_npy, torch_file, evaluated_npy])
def test_as_a_file(arena: Arena, mallory: RawClient, tmp_path: Path, make: Bytes) -> None:
    """A blob that is a pickle, or holds one, is no file of tensors."""
    canary = tmp_path / "canary"

    def act(client: RawClient, instruction: pb.Instruction) -> None:
        blob = client.upload(instruction.id, make(canary))
        client.reply(instruction.id, arrays_of(blob, **arena.params), metrics_of(ONE))

    failed_in(arena.play((mallory, act)), mallory)
    assert not canary.exists()


@pytest.mark.parametrize("stype", ["numpy.ndarray", "torch.Tensor", "pickle", "builtins.eval", ""])
@pytest.mark.parametrize("dtype", ["float32", "object", "O", "|O8", "V8", "complex128", ""])
@pytest.mark.parametrize("make", [pickled, object_npy, torch_file, evaluated_npy])
def test_as_an_array(
    arena: Arena, mallory: RawClient, tmp_path: Path, make: Bytes, dtype: str, stype: str
) -> None:
    """Bytes that call themselves an array of any type are not executed to become one."""
    canary = tmp_path / "canary"

    def act(client: RawClient, instruction: pb.Instruction) -> None:
        params = arena.one_hot(2)
        hidden = {**params, "slots": np.frombuffer(make(canary), np.uint8)}
        blob = client.upload(instruction.id, client.tensors(**hidden))
        infos = [
            pb.ArrayInfo(name="slots", dtype=dtype, shape=[8], stype=stype),
            pb.ArrayInfo(name="counts", dtype="float32", shape=[2, 3], stype="numpy.ndarray"),
        ]
        client.reply(instruction.id, arrays_of(blob, infos), metrics_of(ONE))

    failed_in(arena.play((mallory, act)), mallory)
    assert not canary.exists()
