"""Messages survive the wire; what a peer made up does not get in."""

from __future__ import annotations

import gc
import io
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meadow.errors import LimitError, MeadowError, ProtocolError
from meadow.flower.messages import (
    TensorArray,
    params_to_arrays,
    rebuild_message,
    record_of,
    tensors_of,
)
from meadow.transport import codec
from meadow.transport.blobs import blob_path
from meadow.transport.codec import BlobWriter, decode, encode
from meadow.transport.content import unpack_content
from meadow.transport.entries import pack_entries, unpack_entries
from meadow.transport.fields import ERROR_CHARS_MAX
from meadow.transport.fleet_pb2 import AppError, Blob, Entry, Envelope, Value
from meadow.transport.fleet_pb2 import Metadata as PackedMetadata
from meadow.transport.packed import PACKED_BYTES_MAX
from meadow.transport.tensors import FileTensor, TensorFile, checksum, write_tensors

FOLDER_ONCE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)


def message_of(content: RecordDict | Error, **changes: object) -> Message:
    """Make a message as Flower would."""
    said: dict[str, object] = {
        "run_id": 2**64 - 1,
        "message_id": "m-1",
        "src_node_id": 1,
        "dst_node_id": 2**63,
        "reply_to_message_id": "m-0",
        "group_id": "7",
        "created_at": 1.5e9,
        "ttl": 3600.25,
        "message_type": "train",
    }
    return rebuild_message(Metadata(**{**said, **changes}), content)  # type: ignore[arg-type]


def writer(folder: Path, *, packed: bool = False) -> BlobWriter:
    """Write every record as a blob, or small ones into their messages."""
    blobs = BlobWriter(folder, fsync=False)
    blobs.packed_bytes_max = PACKED_BYTES_MAX if packed else 0
    return blobs


def through(message: Message, folder: Path, *, packed: bool = False) -> Message:
    """Send a message over bytes and files."""
    wire = encode(message, writer(folder, packed=packed)).SerializeToString()
    return decode(Envelope.FromString(wire), opener(folder))


def opener(folder: Path) -> Callable[[Blob], Path]:
    """Find blobs in one folder."""
    return lambda blob: blob_path(folder, blob.id)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
scalars = [
    st.booleans(),
    integers,
    floats,
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
]
config_values = st.one_of(*scalars, *(st.lists(kind, max_size=4) for kind in scalars))
metric_values = st.one_of(integers, floats, st.lists(integers, max_size=4), st.lists(floats))
arrays = st.builds(
    lambda dtype, shape: TensorArray(np.ones(shape, dtype)),
    st.sampled_from(["bool", "int8", "uint64", "float16", "float32", ml_dtypes.bfloat16]),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
)
records = st.one_of(
    st.dictionaries(names, config_values, max_size=4).map(ConfigRecord),
    st.dictionaries(names, metric_values, max_size=4).map(MetricRecord),
    st.dictionaries(names.filter("__metadata__".__ne__), arrays, max_size=3).map(record_of),
)


@given(content=st.dictionaries(names, records, max_size=4).map(RecordDict), packed=st.booleans())
@FOLDER_ONCE
def test_content_round_trips(tmp_path: Path, content: RecordDict, packed: bool) -> None:
    """Records, their order, names, values and the types of their values are kept."""
    got = through(message_of(content), tmp_path, packed=packed).content
    assert list(got) == list(content)
    for name, record in content.items():
        assert type(got[name]) is type(record)
        assert list(got[name]) == list(record)
        for key, value in record.items():
            other = got[name][key]
            if isinstance(value, Array):
                assert (other.dtype, other.shape) == (value.dtype, value.shape)
                assert other.numpy().tobytes() == value.numpy().tobytes()
            else:
                assert repr(other) == repr(value)


def test_metadata_round_trips(tmp_path: Path) -> None:
    """Everything that a message says about itself is kept, and its file-backed arrays work."""
    sent = message_of(RecordDict(), message_type="query.hello")
    got = through(sent, tmp_path)
    assert vars(got.metadata) == vars(sent.metadata)
    reply = Message(RecordDict(), reply_to=got)
    assert reply.metadata.dst_node_id == sent.metadata.src_node_id


@pytest.mark.parametrize("reason", ["out of memory", None, "x" * 100_000])
def test_errors_round_trip(tmp_path: Path, reason: str | None) -> None:
    """An error keeps its code and its reason, of which an endless one is cut."""
    got = through(message_of(Error(-3, reason)), tmp_path)
    assert got.has_error()
    assert got.error.code == -3
    assert got.error.reason == (reason and reason[:ERROR_CHARS_MAX])


def test_what_is_no_text_is_a_typed_error(tmp_path: Path) -> None:
    """Broken Unicode in an error's reason is replaced; in a name or a type it is refused."""
    got = through(message_of(Error(1, "no file \ud800")), tmp_path)
    assert got.error.reason == "no file ?"
    for record in (
        record_of({"\ud800": TensorArray(np.ones(1))}),
        record_of({"x": Array("\ud800", (1,), "my.library", b"")}),
        record_of({"x": Array("uint8", (1,), "\ud800", b"")}),
        ConfigRecord({"\ud800": 1}),
    ):
        with pytest.raises(ProtocolError, match="Unicode"):
            encode(message_of(RecordDict({"a": record})), BlobWriter(tmp_path))


def test_special_floats_round_trip() -> None:
    """NaN, infinities and negative zero are values like others."""
    values = {"a": math.nan, "b": [math.inf, -0.0], "c": []}
    assert repr(unpack_entries(pack_entries(values))) == repr(values)


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, [2**64], None, {"a": 1}, "\ud800", [[1]], np.int64(3)]
)
def test_values_that_cannot_travel_are_refused(value: object) -> None:
    """What the wire cannot carry is an error at the sender, which names the value."""
    with pytest.raises(ProtocolError, match="'key'"):
        pack_entries({"key": value})  # type: ignore[dict-item]


@pytest.mark.parametrize("packed", [False, True])
def test_plain_flower_arrays_become_tensors(tmp_path: Path, packed: bool) -> None:
    """What Flower serialised itself travels as tensors, whatever its byte and memory order."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    record = record_of(
        {
            "plain": Array(values),
            "fortran": Array(np.asfortranarray(values)),
            "big": Array(values.astype(">f4")),
            "bfloat16": Array(values.astype(ml_dtypes.bfloat16)),
            "scalar": Array(np.array(2.0, np.float32)),
        }
    )
    got = through(message_of(RecordDict({"a": record})), tmp_path, packed=packed).content["a"]
    if not packed:
        assert [type(array.tensor) for array in got.values()] == [FileTensor] * 5
    for name in ("plain", "fortran", "big", "bfloat16"):
        assert np.array_equal(got[name].numpy().astype(np.float32), values)
    assert got["bfloat16"].dtype == "bfloat16"
    assert got["scalar"].shape == () and got["scalar"].numpy() == 2
    assert np.array_equal(np.load(io.BytesIO(got["plain"].data)), values)


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_no_tensor_travels_as_bytes(tmp_path: Path, packed: bool) -> None:
    """Other libraries' bytes and dtypes that files lack come back as the same Flower Array."""
    record = record_of(
        {
            "other": Array("posit16", (2, 3), "my.library", b"\x00\x01anything"),
            "empty": Array("float32", (), "my.library", b""),
            "complex": Array(np.array([1 + 2j])),
            "text": Array(np.array(["a", "bc"])),
            "tensor": TensorArray(np.ones(2)),
        }
    )
    got = through(message_of(RecordDict({"a": record})), tmp_path, packed=packed).content["a"]
    for name in ("other", "empty", "complex", "text"):
        assert type(got[name]) is Array
        assert (
            vars(got[name]).items()
            >= {key: vars(record[name])[key] for key in ("dtype", "shape", "stype", "data")}.items()
        )
    assert got["complex"].numpy().tolist() == [1 + 2j]
    held = TensorArray(np.array([3j]))
    got = through(message_of(RecordDict({"a": record_of({"x": held})})), tmp_path).content["a"]
    assert got["x"].numpy().tolist() == [3j]


@pytest.mark.parametrize("allow", [True, False])
def test_pickles_in_arrays_are_refused(tmp_path: Path, allow: bool) -> None:
    """Bytes that only a pickle could read are refused by the sender and by the receiver."""
    if allow:
        np.save(tmp_path / "x.npy", np.array([print], dtype=object), allow_pickle=True)
        data = (tmp_path / "x.npy").read_bytes()
    else:
        data = pickle.dumps(print)
    evil = Array("complex128", (1,), "numpy.ndarray", data)
    with pytest.raises(ProtocolError, match="'x'"):
        encode(message_of(RecordDict({"a": record_of({"x": evil})})), BlobWriter(tmp_path))
    wolf = Array("complex128", (1,), "a.sheep", data)
    envelope = encode(message_of(RecordDict({"a": record_of({"x": wolf})})), BlobWriter(tmp_path))
    envelope.records[0].arrays.infos[0].stype = "numpy.ndarray"
    with pytest.raises(ProtocolError, match="'x'"):
        decode(envelope, opener(tmp_path))


@pytest.mark.parametrize("field", ["dtype", "shape", "dimensions"])
def test_what_is_said_about_npy_bytes_is_so(tmp_path: Path, field: str) -> None:
    """Of an array that travels as .npy bytes, the envelope cannot say another dtype or shape."""
    record = record_of({"x": Array(np.array([1j, 2j]))})
    envelope = encode(message_of(RecordDict({"a": record})), BlobWriter(tmp_path))
    info = envelope.records[0].arrays.infos[0]
    if field == "dtype":
        info.dtype = "complex256"
    else:
        info.shape[:] = [2, 1] if field == "shape" else [1] * 65
    with pytest.raises(ProtocolError, match="'x'"):
        decode(envelope, opener(tmp_path))


def blobs_in(folder: Path) -> int:
    """Count the files."""
    return len(list(folder.glob("*.safetensors")))


def test_a_rounds_messages_share_one_blob(tmp_path: Path) -> None:
    """The same arrays are written once, in the same record or in another one with them."""
    record = params_to_arrays({"w": np.ones(5), "b": np.zeros(2)})
    blobs = writer(tmp_path)
    envelopes = [encode(message_of(RecordDict({"a": record, "b": record})), blobs)]
    envelopes += [encode(message_of(RecordDict({"a": record.copy()})), blobs) for _ in range(3)]
    assert {rec.arrays.blob.id for env in envelopes for rec in env.records} == {
        envelopes[0].records[0].arrays.blob.id
    }
    assert blobs_in(tmp_path) == 1
    encode(message_of(RecordDict({"a": record_of({"b": record["b"], "w": record["w"]})})), blobs)
    assert blobs_in(tmp_path) == 2, "another order is another record"
    record["w"] = TensorArray(np.zeros(5))
    encode(message_of(RecordDict({"a": record})), blobs)
    assert blobs_in(tmp_path) == 3, "a record that was changed is written again"
    blobs.forget()
    encode(message_of(RecordDict({"a": record})), blobs)
    assert blobs_in(tmp_path) == 4


def test_the_writer_keeps_nothing_alive(tmp_path: Path) -> None:
    """Records that are gone leave no memory behind, and their successors are written."""
    blobs = writer(tmp_path)
    for index in range(100):
        values = np.full(3, index)
        arrays = blobs.put(params_to_arrays({"x": values}))
        file = TensorFile.open(blob_path(tmp_path, arrays.blob.id), size_max=1000)
        assert file.tensors["x"].numpy().tolist() == [index] * 3
    gc.collect()
    assert len(blobs._written) <= 64


def test_a_whole_file_is_linked(tmp_path: Path) -> None:
    """A record that is a file of tensors is not copied, and still there when that file is gone."""
    source = tmp_path / "checkpoint.safetensors"
    info = write_tensors(source, {"x": np.arange(4.0), "y": np.ones(3)}, fsync=False)
    tensors = TensorFile.open(source, size_max=1000, crc32=info.crc32).tensors
    folder = tmp_path / "blobs"
    folder.mkdir()
    arrays = writer(folder).put(params_to_arrays(tensors))
    blob = blob_path(folder, arrays.blob.id)
    assert blob.samefile(source)
    assert (arrays.blob.size_bytes, arrays.blob.crc32) == (info.size_bytes, info.crc32)
    source.unlink()
    again = writer(folder).put(params_to_arrays(tensors))
    copy = blob_path(folder, again.blob.id)
    assert not copy.samefile(blob)
    assert copy.read_bytes() == blob.read_bytes()
    write_tensors(source, {"x": np.zeros(4), "y": np.ones(3)}, fsync=False)
    other = writer(folder).put(params_to_arrays(tensors))
    assert blob_path(folder, other.blob.id).read_bytes() == blob.read_bytes()


@pytest.mark.parametrize("pick", [["x"], ["y", "x"], ["x", "y", "z"]])
def test_parts_of_a_file_are_written(tmp_path: Path, pick: list[str]) -> None:
    """A part of a file, another order, or more than it holds becomes a file of its own."""
    source = tmp_path / "source"
    write_tensors(source, {"x": np.arange(4.0), "y": np.ones(3)}, fsync=False)
    tensors = {**TensorFile.open(source, size_max=1000).tensors, "z": np.zeros(1)}
    arrays = writer(tmp_path).put(params_to_arrays({name: tensors[name] for name in pick}))
    path = blob_path(tmp_path, arrays.blob.id)
    assert TensorFile.open(path, size_max=1000).names == tuple(pick)
    assert checksum(path).crc32 == arrays.blob.crc32


def test_renamed_tensors_are_written(tmp_path: Path) -> None:
    """Two tensors of a file that swapped their names are not taken for the file."""
    source = tmp_path / "source"
    write_tensors(source, {"x": np.zeros(2), "y": np.ones(2)}, fsync=False)
    tensors = TensorFile.open(source, size_max=1000).tensors
    arrays = writer(tmp_path).put(params_to_arrays({"x": tensors["y"], "y": tensors["x"]}))
    file = TensorFile.open(blob_path(tmp_path, arrays.blob.id), size_max=1000)
    assert file.tensors["x"].numpy().tolist() == [1, 1]


def sample(folder: Path, *, packed: bool = False) -> Envelope:
    """Make an envelope with some of everything."""
    content = RecordDict(
        {
            "arrays": params_to_arrays({"w": np.ones((2, 3), np.float32), "n": np.array(3)}),
            "metrics": MetricRecord({"loss": 0.5, "counts": [1, 2]}),
            "config": ConfigRecord({"flag": True, "name": "x", "raw": b"yz", "all": ["a", "b"]}),
        }
    )
    return encode(message_of(content), writer(folder, packed=packed))


def spoil(change: str, envelope: Envelope, folder: Path) -> None:
    """Do to an envelope what an adversary might."""
    arrays = envelope.records[0].arrays
    path = blob_path(folder, arrays.blob.id or "none")
    match change:
        case "a record twice":
            envelope.records[1].name = "arrays"
        case "a value twice":
            envelope.records[1].metrics.entries[1].key = "loss"
        case "an empty record":
            envelope.records.add(name="x")
        case "an empty value":
            envelope.records[1].metrics.entries.add(key="x")
        case "a text metric":
            envelope.records[1].metrics.entries[0].value.text = "x"
        case "a boolean metric":
            envelope.records[1].metrics.entries[0].value.boolean = True
        case "records and an error":
            envelope.error.code = 1
        case "a long name":
            envelope.records[1].name = "x" * 1025
        case "a long key":
            envelope.records[1].metrics.entries[0].key = "x" * 1025
        case "a long group":
            envelope.metadata.group_id = "7" * 1025
        case "a long type":
            arrays.infos[0].stype = "x" * 1025
        case "an endless life":
            envelope.metadata.ttl_s = math.inf
        case "an unknown message type":
            envelope.metadata.message_type = "os.system"
        case "another name":
            arrays.infos[0].name = "v"
        case "another order":
            infos = list(arrays.infos)[::-1]
            del arrays.infos[:]
            arrays.infos.extend(infos)
        case "another dtype":
            arrays.infos[0].dtype = "int32"
        case "another shape":
            arrays.infos[0].shape[:] = [3, 2]
        case "one array less":
            del arrays.infos[1:]
        case "a tensor as bytes":
            arrays.infos[0].stype = "my.library"
        case "another size":
            arrays.blob.size_bytes += 1
        case "a smaller size":
            arrays.blob.size_bytes -= 1
        case "a traversal":
            arrays.blob.id = f"../{folder.name}/{arrays.blob.id}"
        case "no blob":
            arrays.ClearField("blob")
        case "a damaged blob":
            path.write_bytes(b"\xff" * arrays.blob.size_bytes)
        case "a missing blob":
            path.unlink()
        case "packed bytes that are damaged":
            arrays.packed = arrays.packed[:9] + b"\xff" + arrays.packed[10:]
        case "packed bytes that are cut short":
            arrays.packed = arrays.packed[:-1]
        case "packed bytes that are too long":
            arrays.packed += b"\0"
        case "no packed bytes":
            arrays.packed = b""
        case "many packed bytes":
            arrays.packed = bytes(PACKED_BYTES_MAX + 1)
        case "many records":
            for index in range(codec.RECORDS_MAX):
                envelope.records.add(name=str(index)).metrics.SetInParent()
        case "many bytes":
            envelope.records[2].configs.entries[0].value.data = bytes(codec.ENTRIES_BYTES_MAX)
        case "many arrays":
            for _ in range(codec.TENSORS_MAX):
                arrays.infos.add()


OF_ARRAYS = [
    "another name",
    "another order",
    "another dtype",
    "another shape",
    "one array less",
    "a tensor as bytes",
    "many arrays",
]
OF_PACKED = [
    "packed bytes that are damaged",
    "packed bytes that are cut short",
    "packed bytes that are too long",
    "no packed bytes",
    "many packed bytes",
]
OF_FILES = [
    "a record twice",
    "a value twice",
    "an empty record",
    "an empty value",
    "a text metric",
    "a boolean metric",
    "records and an error",
    "a long name",
    "a long key",
    "a long group",
    "a long type",
    "an endless life",
    "an unknown message type",
    "another size",
    "a smaller size",
    "a traversal",
    "no blob",
    "a damaged blob",
    "a missing blob",
    "many records",
    "many bytes",
]


@pytest.mark.parametrize(
    ("change", "packed"),
    [(change, False) for change in OF_FILES + OF_ARRAYS]
    + [(change, True) for change in OF_ARRAYS + OF_PACKED],
)
def test_spoilt_envelopes_are_refused(tmp_path: Path, change: str, packed: bool) -> None:
    """Each thing that an envelope must not say is refused with a typed, short error."""
    envelope = sample(tmp_path, packed=packed)
    decode(envelope, opener(tmp_path))
    before = envelope.SerializeToString()
    spoil(change, envelope, tmp_path)
    assert "blob" in change or envelope.SerializeToString() != before
    with pytest.raises(MeadowError) as caught:
        decode(envelope, opener(tmp_path))
    assert 5 < len(str(caught.value)) < 1500
    if change.startswith("many"):
        assert isinstance(caught.value, LimitError)


def test_ids_are_checked_before_anybody_opens_them(tmp_path: Path) -> None:
    """The function that finds blobs never sees an id that is none."""
    envelope = sample(tmp_path)
    envelope.records[0].arrays.blob.id = "../../etc/passwd"

    def never(blob: Blob) -> Path:
        raise AssertionError("it was asked to open a path")

    with pytest.raises(ProtocolError, match="no blob id"):
        decode(envelope, never)


def test_senders_keep_the_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no receiver would take is refused where it is made."""
    blobs = writer(tmp_path)
    for content in (
        RecordDict({"c": ConfigRecord({"x": bytes(codec.ENTRIES_BYTES_MAX)})}),
        RecordDict({str(index): MetricRecord() for index in range(codec.RECORDS_MAX + 1)}),
        RecordDict({"x" * 1025: MetricRecord()}),
    ):
        with pytest.raises(LimitError):
            encode(message_of(content), blobs)
    monkeypatch.setattr(codec, "TENSORS_MAX", 2)
    many = params_to_arrays({str(index): np.ones(1) for index in range(3)})
    with pytest.raises(LimitError, match="3 arrays"):
        encode(message_of(RecordDict({"a": many})), blobs)
    with pytest.raises(ProtocolError, match="cannot be sent"):
        encode(message_of(RecordDict(), dst_node_id=-1), blobs)
    assert not list(tmp_path.iterdir())


@given(data=st.data())
@settings(parent=FOLDER_ONCE, max_examples=400)
def test_mutated_envelopes_raise_typed_errors_only(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever bytes are changed: a message comes out, or a typed error."""
    packed = data.draw(st.booleans())
    wire = bytearray(sample(tmp_path, packed=packed).SerializeToString())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(wire)))
        cut = data.draw(st.integers(0, 3))
        wire[at : at + cut] = data.draw(st.binary(max_size=4))
    try:
        envelope = Envelope.FromString(bytes(wire))
    except DecodeError:
        return
    try:
        message = decode(envelope, opener(tmp_path))
        for record in message.content.values() if message.has_content() else ():
            if isinstance(record, ArrayRecord):
                tensors_of(record)
    except MeadowError:
        return


@given(st.lists(st.tuples(names, st.binary(max_size=30)), max_size=4))
def test_any_values_raise_typed_errors_only(pairs: list[tuple[str, bytes]]) -> None:
    """Bytes in the place of values are unpacked, or refused by type."""
    entries = []
    for key, raw in pairs:
        try:
            entries.append(Entry(key=key, value=Value.FromString(raw)))
        except DecodeError:
            continue
    try:
        values = unpack_entries(entries)
    except ProtocolError:
        return
    assert list(values) == [entry.key for entry in entries]


def test_an_error_where_records_were_expected(tmp_path: Path) -> None:
    """An envelope with an error in it, or nothing, is no content, and says so."""
    metadata = PackedMetadata(message_type="query")
    for envelope in (
        Envelope(metadata=metadata, error=AppError(code=1, reason="no")),
        Envelope(metadata=metadata, error=AppError()),
    ):
        with pytest.raises(ProtocolError, match="there is an error"):
            unpack_content(envelope.SerializeToString(), tmp_path)
