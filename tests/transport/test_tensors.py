"""Files of tensors: what is written is read back, here and by the safetensors library."""

from __future__ import annotations

import json
import os
import resource
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meadow.errors import LimitError, MeadowError, ProtocolError, StoreError
from meadow.flower.messages import TensorArray
from meadow.transport import header as header_module
from meadow.transport.header import CODES, build_header, parse_header
from meadow.transport.tensors import FileTensor, TensorFile, checksum, holds, write_tensors

SIZE_MAX = 1 << 30
FOLDER_ONCE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

TORCH_DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
    "int16": torch.int16,
    "uint16": torch.uint16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "uint32": torch.uint32,
    "float32": torch.float32,
    "float64": torch.float64,
    "int64": torch.int64,
    "uint64": torch.uint64,
    "complex64": torch.complex64,
}


def dtype_named(name: str) -> np.dtype[np.generic]:
    """Look a dtype up where NumPy or ml_dtypes keeps it."""
    return np.dtype(getattr(ml_dtypes, name, name))


def array_of(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Make an array of random bytes; booleans are 0 or 1."""
    dtype = dtype_named(name)
    count = int(np.prod(shape, dtype=np.int64))
    raw = np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    if name == "bool":
        raw &= 1
    return raw.view(dtype).reshape(shape)


def bits(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    """Return all that makes an array, NaN payloads included."""
    return array.dtype.name, array.shape, array.tobytes()


def file_of(tree: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """Put a file together from any header at all."""
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(
    dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8), **more: object
) -> dict[str, object]:
    """One tensor's part of a header, right unless told otherwise."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def test_codes_cover_what_the_library_takes_from_torch() -> None:
    """Every whole-byte dtype of torch that the safetensors library writes is known here."""
    known = set()
    for dtype in TORCH_DTYPES.values():
        head = safetensors.torch.save({"x": torch.zeros(2).to(dtype)})
        length = int.from_bytes(head[:8], "little")
        known.add(json.loads(head[8 : 8 + length])["x"]["dtype"])
    assert known == set(CODES.values())
    assert set(TORCH_DTYPES) == set(CODES)


@pytest.mark.parametrize("name", sorted(CODES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7,), (3, 5)])
def test_the_library_reads_our_files(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    """Torch tensors loaded by the safetensors library have our bits (safetensors 0.8)."""
    array = array_of(name, shape)
    write_tensors(tmp_path / "f", {"pad": b"abc", "x": array}, fsync=False)
    loaded = safetensors.torch.load_file(tmp_path / "f")
    assert loaded["x"].dtype == TORCH_DTYPES[name]
    assert tuple(loaded["x"].shape) == shape
    assert loaded["x"].reshape(-1).view(torch.uint8).numpy().tobytes() == array.tobytes()


@pytest.mark.parametrize("name", sorted(CODES))
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5)])
def test_we_read_the_librarys_files(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    """A torch tensor saved by the safetensors library comes back with the same bits."""
    array = array_of(name, shape)
    tensor = torch.zeros(shape, dtype=TORCH_DTYPES[name])
    if array.size:
        raw = torch.from_numpy(array.reshape(-1).view(np.uint8).copy())
        tensor.reshape(-1).view(torch.uint8).copy_(raw)
    safetensors.torch.save_file({"x": tensor}, tmp_path / "f", metadata={"a": "b"})
    file = TensorFile.open(tmp_path / "f", size_max=SIZE_MAX)
    assert bits(file.tensors["x"].numpy()) == bits(array)
    assert file.metadata == {"a": "b"}


layouts = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(
        lambda name: name != "__metadata__"
    ),
    st.tuples(
        st.sampled_from(sorted(CODES)),
        st.lists(st.integers(0, 5), max_size=4).map(tuple),
        st.integers(0, 99),
    ),
    max_size=8,
)


@given(layouts=layouts, metadata=st.dictionaries(st.text('ab\n"é'), st.text("ab\\é{"), max_size=3))
@FOLDER_ONCE
def test_round_trip(tmp_path: Path, layouts: dict, metadata: dict[str, str]) -> None:
    """Names, order, dtypes, shapes, bits and metadata survive, whatever they are."""
    arrays = {name: array_of(*layout) for name, layout in layouts.items()}
    info = write_tensors(tmp_path / "f", arrays, fsync=False, metadata=metadata)
    file = TensorFile.open(tmp_path / "f", size_max=SIZE_MAX)
    assert file.names == tuple(arrays)
    assert file.metadata == metadata
    for name, tensor in file.tensors.items():
        assert bits(tensor.numpy()) == bits(arrays[name])
        assert bits(tensor[:].reshape(tensor.shape)) == bits(arrays[name])
    content = (tmp_path / "f").read_bytes()
    assert (info.size_bytes, info.crc32) == (len(content), zlib.crc32(content))
    assert file.info == info == checksum(tmp_path / "f")
    assert int.from_bytes(content[:8], "little") % 8 == 0
    assert {name for name, _ in safetensors.deserialize(content)} == set(arrays)


def test_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    """Memory, Fortran order, big-endian values and another file all lead to one content."""
    values = np.arange(600, dtype=np.float32).reshape(20, 30)
    write_tensors(tmp_path / "a", {"x": values}, fsync=False)
    from_file = TensorFile.open(tmp_path / "a", size_max=SIZE_MAX).tensors
    others = [
        np.asfortranarray(values),
        values.astype(">f4"),
        np.repeat(values, 2, axis=1)[:, ::2],
        TensorArray(values).tensor,
        from_file["x"],
    ]
    expected = (tmp_path / "a").read_bytes()
    for other in others:
        write_tensors(tmp_path / "b", {"x": other}, fsync=True)
        assert (tmp_path / "b").read_bytes() == expected


def test_blocks_join_seamlessly(tmp_path: Path) -> None:
    """A tensor of several blocks and a last, partial one is written whole."""
    values = np.arange(1_000_003, dtype=np.int64)
    write_tensors(tmp_path / "a", {"x": values}, fsync=False)
    tensor = TensorFile.open(tmp_path / "a", size_max=SIZE_MAX).tensors["x"]
    assert np.array_equal(tensor.numpy(), values)
    assert np.array_equal(tensor[131_071:131_075], values[131_071:131_075])
    assert tensor[5:5].shape == (0,) == tensor[9:3].shape
    assert np.array_equal(tensor[-2:], values[-2:])


def test_values_cannot_be_changed(tmp_path: Path) -> None:
    """Views of a file are read-only; a slice is the caller's own."""
    write_tensors(
        tmp_path / "a", {"odd": b"x", "x": np.ones(4), "b": np.ones(2, bool)}, fsync=False
    )
    file = TensorFile.open(tmp_path / "a", size_max=SIZE_MAX)
    for tensor in file.tensors.values():
        with pytest.raises(ValueError, match="read-only"):
            tensor.numpy()[:1] = 0
    file.tensors["x"][0:2][0] = 5.0
    assert file.tensors["x"][0:1][0] == 1.0


def test_misaligned_tensors_are_copied_into_place(tmp_path: Path) -> None:
    """What other libraries get is always aligned, though the format allows otherwise."""
    write_tensors(tmp_path / "a", {"odd": b"xyz", "x": np.arange(4.0)}, fsync=False)
    values = TensorFile.open(tmp_path / "a", size_max=SIZE_MAX).tensors["x"].numpy()
    assert values.flags.aligned
    assert values.tolist() == [0, 1, 2, 3]


def test_booleans_are_zero_or_one(tmp_path: Path) -> None:
    """Bytes that are no booleans, which a peer may send, are read as true."""
    (tmp_path / "a").write_bytes(file_of({"x": entry("BOOL", [3], [0, 3])}, bytes([0, 1, 77])))
    tensor = TensorFile.open(tmp_path / "a", size_max=SIZE_MAX).tensors["x"]
    assert tensor.numpy().view(np.uint8).tolist() == [0, 1, 1] == tensor[:].view(np.uint8).tolist()


def test_a_record_knows_its_file(tmp_path: Path) -> None:
    """A tensor leads back to its file, which lives as long as the tensor and no longer."""
    write_tensors(tmp_path / "a", {"x": np.ones(2)}, fsync=False)
    before = len(os.listdir("/proc/self/fd"))
    tensor = TensorFile.open(tmp_path / "a", size_max=SIZE_MAX).tensors["x"]
    assert isinstance(tensor, FileTensor)
    assert (tensor.file.path, tensor.file.names) == (tmp_path / "a", ("x",))
    view = tensor.numpy()
    del tensor
    assert view.tolist() == [1, 1]
    del view
    assert len(os.listdir("/proc/self/fd")) == before


def test_slices_do_not_load_the_file(tmp_path: Path) -> None:
    """Reading 256 MiB in slices does not raise the peak memory by more than 16 MiB."""
    step, count = 1 << 18, 1 << 26
    block = np.ones(step, np.float32)

    class Endless:
        """A tensor that is nowhere."""

        dtype = np.dtype(np.float32)
        shape = (count,)

        def __getitem__(self, values: slice) -> np.ndarray:
            return block[: values.stop - values.start]

        def numpy(self) -> np.ndarray:
            raise AssertionError("nobody needs all of it")

    write_tensors(tmp_path / "a", {"x": Endless()}, fsync=False)
    tensor = TensorFile.open(tmp_path / "a", size_max=SIZE_MAX).tensors["x"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = sum(float(tensor[at : at + step].sum()) for at in range(0, count, step))
    assert total == count
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """If a tensor cannot be read half-way, the file is what it was and nothing else is left."""
    write_tensors(tmp_path / "a", {"x": np.ones(2)}, fsync=True)
    old = (tmp_path / "a").read_bytes()
    source = tmp_path / "source"
    write_tensors(source, {"x": np.ones(300_000)}, fsync=False)
    tensors = TensorFile.open(source, size_max=SIZE_MAX).tensors
    os.truncate(source, 2_000_000)
    with pytest.raises(StoreError, match="ends before"):
        write_tensors(tmp_path / "a", tensors, fsync=True)
    assert (tmp_path / "a").read_bytes() == old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "source"]


@pytest.mark.parametrize("value", [np.ones(2, complex), np.array(["a"]), np.array([None])])
def test_other_dtypes_are_refused(tmp_path: Path, value: np.ndarray) -> None:
    """A dtype that the format lacks is a typed error, never a pickle."""
    assert not holds(value.dtype)
    with pytest.raises(ProtocolError, match=r"tensor 'x' has the dtype .*, which no file holds"):
        write_tensors(tmp_path / "a", {"x": value}, fsync=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["__metadata__", "é" * 513, "\ud800"])
def test_names_are_bounded(tmp_path: Path, name: str) -> None:
    """Reserved, too long or broken names are refused."""
    with pytest.raises(ProtocolError):
        write_tensors(tmp_path / "a", {name: b""}, fsync=False)


HOSTILE: dict[str, tuple[bytes, type[MeadowError], str]] = {
    "empty": (b"", ProtocolError, "too short"),
    "short": (b"\x01\x00", ProtocolError, "too short"),
    "header past the end": (file_of({}, length=99), ProtocolError, "claims 99 bytes"),
    "header of 2**64": (b"\xff" * 8 + b"{}", ProtocolError, "claims"),
    "no object": (file_of([1]), ProtocolError, "no JSON object"),
    "no json": (file_of(b"{oops}"), ProtocolError, "no valid JSON"),
    "no utf-8": (file_of(b'{"\xff":1}'), ProtocolError, "no valid JSON"),
    "trailing text": (file_of(b"{} x"), ProtocolError, "no valid JSON"),
    "a name twice": (
        file_of(b'{"x":%b,"x":%b}' % ((json.dumps(entry()).encode(),) * 2), bytes(8)),
        ProtocolError,
        "twice",
    ),
    "deep nesting": (file_of(b'{"x":' + b"[" * 100_000 + b"}"), ProtocolError, "no valid JSON"),
    "many parts": (file_of(b'{"x":[' + b"[]," * 1_600_001), LimitError, "parts"),
    "many numbers": (file_of(b'{"x":[' + b"0," * 3_200_000), LimitError, "parts"),
    "nan": (file_of(b'{"x":NaN}'), ProtocolError, "NaN"),
    "fraction": (file_of({"x": entry(shape=[2.0])}, bytes(8)), ProtocolError, "2.0"),
    "huge number": (file_of({"x": entry(shape=[10**4000])}), ProtocolError, "4001 digits"),
    "negative": (file_of({"x": entry(shape=[-2])}, bytes(8)), ProtocolError, "shape"),
    "boolean length": (file_of({"x": entry(shape=[True, 2])}, bytes(8)), ProtocolError, "shape"),
    "overflow": (file_of({"x": entry(shape=[2**62, 2**62])}), LimitError, "claims"),
    "hidden overflow": (
        file_of({"x": entry(shape=[0, 2**62, 2**62], offsets=[0, 0])}),
        LimitError,
        "claims",
    ),
    "dimensions": (file_of({"x": entry(shape=[1] * 65)}, bytes(4)), LimitError, "dimensions"),
    "shape of text": (file_of({"x": entry(shape="2")}, bytes(8)), ProtocolError, "shape"),
    "dtype unknown": (file_of({"x": entry("O")}, bytes(8)), ProtocolError, "unknown dtype"),
    "dtype is a list": (file_of({"x": entry(["F32"])}, bytes(8)), ProtocolError, "unknown dtype"),
    "extent": (file_of({"x": entry(offsets=[0, 4])}, bytes(8)), ProtocolError, "takes 8 bytes"),
    "extent backwards": (
        file_of({"x": entry(offsets=[8, 0])}, bytes(8)),
        ProtocolError,
        "takes 8 bytes",
    ),
    "one offset": (file_of({"x": entry(offsets=[8])}, bytes(8)), ProtocolError, "takes 8"),
    "gap": (file_of({"x": entry(offsets=[8, 16])}, bytes(16)), ProtocolError, "begins at 8"),
    "overlap": (
        file_of({"x": entry(), "y": entry(offsets=[4, 12])}, bytes(12)),
        ProtocolError,
        "begins at 4",
    ),
    "aliases": (file_of({"x": entry(), "y": entry()}, bytes(8)), ProtocolError, "begins at 0"),
    "data missing": (file_of({"x": entry()}, bytes(7)), ProtocolError, "take 8 bytes"),
    "data left over": (file_of({"x": entry()}, bytes(9)), ProtocolError, "take 8 bytes"),
    "other keys": (file_of({"x": entry(code="os")}, bytes(8)), ProtocolError, "other keys"),
    "no tensor": (file_of({"x": 3}), ProtocolError, "other keys"),
    "metadata": (file_of({"__metadata__": {"a": 1}}), ProtocolError, "metadata"),
    "metadata a list": (file_of({"__metadata__": []}), ProtocolError, "metadata"),
    "long name": (file_of({"x" * 1025: entry()}, bytes(8)), LimitError, "1025 bytes"),
    "broken name": (
        file_of(b'{"\\ud800":' + json.dumps(entry()).encode() + b"}", bytes(8)),
        ProtocolError,
        "Unicode",
    ),
    "a pickle": (b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n.", ProtocolError, ""),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, case: str) -> None:
    """Every way in which a header can lie ends in a typed error that says what is wrong."""
    content, error, text = HOSTILE[case]
    (tmp_path / "evil").write_bytes(content)
    with pytest.raises(error, match=text) as caught:
        TensorFile.open(tmp_path / "evil", size_max=SIZE_MAX)
    assert str(caught.value).startswith("evil: ")
    assert len(str(caught.value)) < 1500


def test_other_formats_are_refused(tmp_path: Path) -> None:
    """Torch's pickles, .npy and .npz files are no files of tensors."""
    torch.save({"x": torch.ones(3)}, tmp_path / "torch")
    np.save(tmp_path / "numpy", np.ones(3))
    np.save(tmp_path / "objects", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "zip", x=np.ones(3))
    for path in tmp_path.iterdir():
        with pytest.raises(ProtocolError):
            TensorFile.open(path, size_max=SIZE_MAX)


def test_sizes_are_bounded_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file or a header above its bound is refused by its length alone."""
    write_tensors(tmp_path / "a", {"x": np.ones(100)}, fsync=False)
    size = (tmp_path / "a").stat().st_size
    TensorFile.open(tmp_path / "a", size_max=size)
    with pytest.raises(LimitError, match=f"{size} bytes exceeds {size - 1}"):
        TensorFile.open(tmp_path / "a", size_max=size - 1)
    monkeypatch.setattr(header_module, "HEADER_BYTES_MAX", 16)
    with pytest.raises(LimitError, match="header"):
        TensorFile.open(tmp_path / "a", size_max=size)


def test_too_many_tensors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of tensors is bounded on both sides."""
    layout = {str(index): (np.dtype(np.uint8), (0,)) for index in range(5)}
    raw = build_header(layout, {})
    monkeypatch.setattr(header_module, "TENSORS_MAX", 4)
    with pytest.raises(LimitError, match="5 tensors are more than 4"):
        parse_header(raw[8:], len(raw))
    with pytest.raises(LimitError, match="5 tensors are more than 4"):
        build_header(layout, {})


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """Missing files, folders and pipes are errors of the store, and nothing blocks."""
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", ".", "pipe"):
        with pytest.raises(StoreError):
            TensorFile.open(tmp_path / name, size_max=SIZE_MAX)
    with pytest.raises(StoreError):
        checksum(tmp_path / "missing")


SAMPLE = safetensors.numpy.save(
    {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3)}
)


@given(data=st.data())
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_files_raise_typed_errors_only(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever bytes are changed, cut or added: a file opens and reads, or is refused by type."""
    content = bytearray(SAMPLE)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content)))
        cut = data.draw(st.integers(0, 3))
        content[at : at + cut] = data.draw(st.binary(max_size=4))
    (tmp_path / "f").write_bytes(content)
    try:
        file = TensorFile.open(tmp_path / "f", size_max=SIZE_MAX)
    except ProtocolError:
        return
    for tensor in file.tensors.values():
        assert tensor.numpy().size == tensor[:].size
    assert sum(tensor.numpy().nbytes for tensor in file.tensors.values()) <= len(content)


@given(st.binary(max_size=300))
def test_any_header_raises_typed_errors_only(raw: bytes) -> None:
    """Any bytes at all in the place of a header are refused by type."""
    with pytest.raises(ProtocolError):
        parse_header(b"{" + raw + b"!", 1000)
