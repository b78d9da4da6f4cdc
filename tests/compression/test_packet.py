"""Params as bytes and back, and bytes that are none of ours."""

from __future__ import annotations

import numpy as np
import pytest

from meadow.compression import packet
from meadow.compression.packet import PACKED, Packer, is_packed
from meadow.compression.terms import FORMS, UPLOADS, CompressionTerms, forms_in, forms_text
from meadow.errors import ProtocolError
from meadow.flower.messages import params_to_arrays, record_of
from meadow.strategies.rounds.checks import forms_of


@pytest.mark.parametrize("zstd", [False, True])
@pytest.mark.parametrize("kind", UPLOADS)
def test_every_dtype_comes_back(params, kind, zstd):
    """The other side makes of the bytes what the packer said it would; counters are exact."""
    terms = CompressionTerms(zstd=zstd, fraction=0.5)
    packer = Packer(forms_of(params), terms, kind)
    row = packer.row_of(params)
    record, taken_for = packer.pack(row, params, seed=3)
    assert is_packed(record) and not is_packed(params_to_arrays(params))
    found, others = Packer(forms_of(params), terms, kind).unpack(record, seed=3)
    assert np.array_equal(found, taken_for())
    made = packer.params_of(found, others, None)
    assert forms_of(made) == forms_of(params)
    assert made["seen"] == 12
    if kind == "none":
        np.testing.assert_allclose(made["wide"], params["wide"], rtol=1e-6)
        assert np.array_equal(made["turn"], params["turn"])
        moved = packer.params_of(found, others, params)
        assert np.array_equal(moved["matrix"], 2 * params["matrix"])


def damaged(params, how, zstd):
    """Return a packed record that somebody has been at."""
    terms = CompressionTerms(zstd=zstd)
    packer = Packer(forms_of(params), terms, "int8")
    record, _ = packer.pack(packer.row_of(params), params, 0)
    data = record[PACKED].numpy()
    arrays = dict(record)
    if how == "longer":
        data = np.concatenate([data, data[:1]])
    elif how == "shorter":
        data = data[:-3]
    elif how == "no bytes":
        data = data.astype(np.float32)
    elif how == "garbage":
        data = data[::-1].copy()
    arrays |= params_to_arrays({PACKED: data})
    if how == "without a counter":
        arrays = {PACKED: arrays[PACKED]}
    if how == "another's counter":
        arrays |= params_to_arrays({"compression.as-is.seen": np.float32(1)})
    return packer, record_of(arrays)


@pytest.mark.parametrize(
    ("how", "zstd"),
    [
        ("longer", False),
        ("shorter", False),
        ("shorter", True),
        ("garbage", True),
        ("no bytes", False),
        ("without a counter", False),
        ("another's counter", False),
    ],
)
def test_damaged_records_are_refused(params, how, zstd):
    """What is not exactly a packed model raises a typed error, and nothing else."""
    packer, record = damaged(params, how, zstd)
    with pytest.raises(ProtocolError, match="compressed record"):
        packer.unpack(record, 0)


def test_a_bomb_is_not_unpacked(params):
    """Few bytes of zstd that claim, or are, many are refused by their size."""
    zstandard = pytest.importorskip("zstandard")
    packer, record = damaged(params, "", True)
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    arrays = dict(record) | dict(params_to_arrays({PACKED: np.frombuffer(bomb, np.uint8)}))
    with pytest.raises(ProtocolError, match="must unpack to"):
        packer.unpack(record_of(arrays), 0)


def test_terms_and_forms_come_back(params):
    """What is said with an instruction is read again; anything else is refused."""
    terms = CompressionTerms(upload="top_k", download="int8", fraction=0.25, zstd=True, seed=9)
    record = terms.record()
    record[FORMS] = forms_text(params)
    assert CompressionTerms.read(record) == terms
    assert forms_in(record) == forms_of(params)
    for key, value in [("upload", "pickle"), ("fraction", 0.0), ("rank", 0), ("zstd", 1)]:
        record = terms.record()
        record[key] = value
        with pytest.raises(ProtocolError, match="terms of compression"):
            CompressionTerms.read(record)


@pytest.mark.parametrize(
    "text", ["", "[", '[["w"]]', '[["w", "object", [2]]]', '[["w", "float32", [-2]]]', "[[1,2,3]]"]
)
def test_impossible_forms_are_refused(text):
    """Forms that no model has raise a typed error."""
    with pytest.raises(ProtocolError):
        forms_in({FORMS: text})
    with pytest.raises(ProtocolError, match="more than"):
        forms_in({FORMS: '[["w", "float32", [1000000, 1000000]]]'})


@pytest.mark.parametrize("zstd", [False, True])
def test_too_many_bytes_are_not_read(params, monkeypatch, zstd):
    """A record with more bytes than any that is packed is refused before it is copied."""
    packer, record = damaged(params, "", zstd)

    class Huge:
        dtype, shape = np.dtype(np.uint8), (1 << 40,)

    tensors = packet.tensors_of(record) | {PACKED: Huge()}
    monkeypatch.setattr(packet, "tensors_of", lambda record: tensors)
    with pytest.raises(ProtocolError, match="1099511627776 bytes, more than"):
        packer.unpack(record, 0)
