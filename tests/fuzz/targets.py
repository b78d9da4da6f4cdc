"""Every decoder of what a peer says, each with valid inputs to begin from and a way to change them."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from google.protobuf.message import DecodeError

from meadow.apps.folder import pack, unpack
from meadow.client.owner.announcements import announced_steps, charged_noise
from meadow.client.owner.budget import check_budget
from meadow.client.owner.policy import check
from meadow.client.owner.secure_certificate import certify_key, require_certified
from meadow.compression.packet import Packer
from meadow.compression.terms import DOWNLOADS, UPLOADS, CompressionTerms, forms_in, forms_text
from meadow.config.client_config import PolicyConfig
from meadow.errors import MeadowError
from meadow.flower.messages import identify_process, params_to_arrays, tensor_of
from meadow.privacy.dp.example_level import ExampleTerms
from meadow.privacy.dp.mechanisms.clipping import Clipping
from meadow.privacy.dp.noise_terms import NoiseTerms
from meadow.privacy.secagg.protocol import Binding, ClientKeys, ClientSession, ServerSession
from meadow.privacy.secagg.terms.announcement import Announcement
from meadow.privacy.secagg.terms.member import Member
from meadow.privacy.secagg.terms.terms import ANSWERS, SecureTerms
from meadow.strategies.algorithms.algorithm import Params
from meadow.strategies.algorithms.columns import column_of
from meadow.strategies.algorithms.tree_models import fault_in_model
from meadow.strategies.rounds.checks import forms_of, read_reply
from meadow.training.settings import TrainingSettings
from meadow.transport.authority import Authority
from meadow.transport.blobs import blob_path
from meadow.transport.chunk_wire import Piece, pack_chunk, unpack_chunk, unpack_upload
from meadow.transport.codec import BlobWriter, check_size, decode, encode
from meadow.transport.content import pack_content, unpack_content
from meadow.transport.entries import pack_entries, unpack_entries
from meadow.transport.fields import check_fields
from meadow.transport.fleet_pb2 import (
    AgentMessage,
    App,
    Blob,
    Envelope,
    Instruction,
    Metadata,
    Record,
    Reply,
    ServerMessage,
    UploadMessage,
    UploadOpen,
)
from meadow.transport.identity import read_certificate, verify_issued
from meadow.transport.keys import KeyPair, create_request, requested_key
from meadow.transport.layout import FileLayout
from meadow.transport.packed import pack_tensors, unpack_tensors
from meadow.transport.tensors import TensorFile
from meadow.transport.tokens import create_token, hash_token

from .mutations import mutate_bytes, mutate_fields, mutate_values

__all__ = ["Target", "build_targets"]

identify_process(run_id=1, node_id=0)

PARAMS: Params = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "steps": np.asarray(5, np.int64),
    "mask": np.array([True, False]),
}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A decoder: `run` takes any bytes; `write` makes the valid ones of a seed, `mutate` others."""

    seeds: list[Any]
    write: Callable[[Any], bytes]
    mutate: Callable[[Any, Random], bytes]
    run: Callable[[bytes], object]
    cheap: bool = True
    """Whether thousands of inputs take seconds."""


def of_bytes(run: Callable[[bytes], object], *seeds: bytes, cheap: bool = True) -> Target:
    return Target(seeds=list(seeds), write=bytes, mutate=mutate_bytes, run=run, cheap=cheap)


def of_fields(run: Callable[[bytes], object], *seeds: Any) -> Target:
    return Target(
        seeds=list(seeds),
        write=lambda seed: bytes(seed.SerializeToString()),
        mutate=mutate_fields,
        run=_parsed(run),
    )


def of_values(
    run: Callable[[Any], object], *seeds: Mapping[str, Any], cheap: bool = True
) -> Target:
    """A target of a record's values, which travel as a message's entries do."""

    def write(values: Mapping[str, Any]) -> bytes:
        record = Record(name="r")
        record.configs.entries.extend(pack_entries(values))
        return record.SerializeToString()

    def mutate(seed: Mapping[str, Any], random: Random) -> bytes:
        while True:
            try:
                return write(mutate_values(seed, random))
            except MeadowError:  # what no message can hold
                continue

    def decoded(data: bytes) -> object:
        record = Record.FromString(data)
        check_size(Envelope(records=[record]))
        try:
            values = ConfigRecord(unpack_entries(record.configs.entries))  # type: ignore[arg-type]
        except TypeError:
            return None  # Flower takes no such values, and `codec` says so
        return run(values)

    return Target(seeds=list(seeds), write=write, mutate=mutate, run=_parsed(decoded), cheap=cheap)


def build_targets(folder: Path) -> dict[str, Target]:
    """Return all targets by name; `folder` is for the files that they need."""
    return {
        **_transport(folder),
        **_certificates(folder),
        **_instructions(),
        **_secure_sums(),
        **_replies(),
    }


# ------------------------------------------------------------------------ messages and files


def message() -> Message:
    """Return an instruction with every kind of record, and every kind of value."""
    plain = Array("object", (3,), "pickle", b"abc")
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3, dtype=np.float32))
    npy = Array("float32", (3,), "numpy.ndarray", buffer.getvalue())
    config: dict[str, Any] = {
        "int": 1, "float": 0.5, "bool": True, "text": "a", "data": b"b", "ints": [1, 2],
        "floats": [0.5], "texts": ["a", "b"], "datas": [b"c"], "bools": [True],
    }  # fmt: skip
    content = {
        "arrays": params_to_arrays(PARAMS),
        "others": ArrayRecord({"plain": plain, "npy": npy}),
        "metrics": MetricRecord({"num-examples": 3, "loss": 0.5, "many": [1.0, 2.0]}),
        "config": ConfigRecord(config),
    }
    return Message(RecordDict(content), 7, "train", group_id="3")


def _transport(folder: Path) -> dict[str, Target]:
    blobs = folder / "blobs"
    small = encode(message(), BlobWriter(blobs))
    writer = BlobWriter(blobs)
    writer.packed_bytes_max = 0
    large = encode(message(), writer)
    packed = pack_tensors(FileLayout(PARAMS))
    file = folder / "file.safetensors"

    def decode_envelope(data: bytes) -> None:
        found = unpack_content(data, blobs)
        for record in found.array_records.values():
            for name, array in record.items():
                if array.stype == "numpy.ndarray":
                    tensor_of(name, array).numpy()

    def open_file(data: bytes) -> None:
        file.write_bytes(data)
        for tensor in TensorFile.open(file, size_max=1 << 20).tensors.values():
            tensor.numpy()

    def read_npy(data: bytes) -> None:
        tensor_of("a", Array("float32", (3,), "numpy.ndarray", data)).numpy()

    def unzip(data: bytes) -> None:
        unpack(data, folder / "unpacked")

    app = folder / "app"
    app.mkdir()
    (app / "task.py").write_text("x = 1\n" * 50)
    (app / "meadow.toml").write_text('[app]\ntask = "task:task"\n')
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3, dtype=np.float32))
    chunk = pack_chunk(Piece(5, b"abcdef"))
    opening = UploadMessage(open=UploadOpen(instruction_id="a", blob=Blob(id="b", size_bytes=9)))
    return {
        "envelope, fields": of_fields(decode_envelope, small, large),
        "envelope, bytes": of_bytes(
            decode_envelope, small.SerializeToString(), pack_content(message().content, writer)
        ),
        "packed tensors": of_bytes(lambda data: unpack_tensors(data), packed),
        "file of tensors": of_bytes(open_file, packed),
        "npy": of_bytes(read_npy, buffer.getvalue()),
        "upload": of_bytes(
            lambda data: unpack_upload(data),
            UploadMessage(chunk={"offset": 3, "data": b"abc"}).SerializeToString(),  # type: ignore[arg-type]
            opening.SerializeToString(),
        ),
        "chunk": of_bytes(lambda data: unpack_chunk(data), chunk),
        "archive": of_bytes(unzip, pack(app)),
        "token": of_bytes(
            lambda data: hash_token(data.decode("utf-8", "replace")), create_token()[0].encode()
        ),
    }


# ------------------------------------------------------------------------ certificates


def _certificates(folder: Path) -> dict[str, Target]:
    authority = Authority.create(now=NOW)
    key_path = folder / "key.pem"
    request = create_request("site-1", key_path)
    pem = authority.issue_client(request, name="site-1", now=NOW, days=90)
    pair = KeyPair(certificate_pem=pem, key_pem=key_path.read_bytes())
    own = Ed25519PrivateKey.from_private_bytes(b"k" * 32).public_key().public_bytes_raw()
    said = certify_key(own, node=1, pair=pair)

    def certified(data: bytes) -> None:
        cohort = Announcement(
            session=b"s" * 32, round=1, keys={1: own}, advertised={1: bytes(160)},
            terms=SecureTerms(), setup=bytes(32), certificates={1: data},
        )  # fmt: skip
        require_certified(cohort, ca_pem=authority.certificate_pem, now=NOW + timedelta(days=1))

    def wrapped(run: Callable[[bytes], object], seed: bytes, kind: str) -> Target:
        """A target of PEM whose content is what is changed."""

        def write(der: bytes) -> bytes:
            body = base64.encodebytes(der)
            return f"-----BEGIN {kind}-----\n".encode() + body + f"-----END {kind}-----\n".encode()

        return Target(
            seeds=[seed],
            write=write,
            mutate=lambda der, random: write(mutate_bytes(der, random)),
            run=run,
        )

    der = serialization.Encoding.DER
    cert_der = read_certificate(pem).public_bytes(der)
    csr_der = x509.load_pem_x509_csr(request).public_bytes(der)

    def verify(data: bytes) -> None:
        verify_issued(data, authority.certificate_pem)

    return {
        "certificate": wrapped(verify, cert_der, "CERTIFICATE"),
        "certificate, text": of_bytes(verify, pem),
        "request": wrapped(lambda data: requested_key(data), csr_der, "CERTIFICATE REQUEST"),
        "key statement": of_bytes(certified, said),
    }


# ------------------------------------------------------------------------ instructions

TRAINING = {
    name.replace("_", "-"): value
    for name, value in (
        (name, getattr(TrainingSettings(), name)) for name in TrainingSettings.__dataclass_fields__
    )
}
PRIVATE = {
    **Clipping(clip_norm=1.0).record(),
    **NoiseTerms(noise_multiplier=2.0).record(),
    **ExampleTerms(clip_norm=1.0, noise_multiplier=1.0, rate=0.1).record(),
    "dp-noise-reach": 2,
    "epochs": 2,
}


def instruction() -> Instruction:
    """Return an instruction of a private run."""
    made = Instruction(
        id="a", run_id=7, app=App(name="digits", sha256="a" * 64), cohort_clients=5, sites=5,
        differential_privacy=True,
        envelope=Envelope(
            metadata=Metadata(
                run_id=7, message_id="m", dst_node_id=1, group_id="3", created_at_s=1.0,
                ttl_s=600.0, message_type="train",
            ),
        ),
    )  # fmt: skip
    record = made.envelope.records.add(name="config")
    record.configs.entries.extend(pack_entries(PRIVATE))
    made.run_config.extend(pack_entries({"lr": 0.1, "name": "a"}))
    return made


def _instructions() -> dict[str, Target]:
    policy = PolicyConfig(epsilon_max=50.0, record_epsilon_max=50.0, rounds_per_day=5)

    def allow(data: bytes) -> None:
        told = Instruction.FromString(data)
        check_fields(told)
        check(told, policy, installed="a" * 64, rounds_today=1)
        check_budget(told, policy, spent=[], rounds=[1])
        charged_noise(told, policy)
        announced_steps(told)
        unpack_entries(told.run_config)

    def read_private(record: Any) -> None:
        noise, _ = NoiseTerms.of(record), Clipping.of(record)
        if noise is not None:
            assert noise.event.noise_multiplier > 0
        if (terms := ExampleTerms.of(record)) is not None:
            terms.event(TrainingSettings.of(record).epochs)

    def packets(record: Any) -> None:
        terms = CompressionTerms.read(record)
        forms = forms_in(record) if "forms" in record else forms_of(PARAMS)
        assert terms.download in DOWNLOADS
        assert isinstance(dict(forms), dict)

    compressed = {**CompressionTerms(upload="int8").record(), "forms": forms_text(PARAMS)}
    from_server = ServerMessage(instruction=instruction())
    from_agent = AgentMessage(
        reply=Reply(instruction_id="a", envelope=encode(message(), BlobWriter(Path("unused"))))
    )

    def fields_of(kind: Any) -> Callable[[bytes], object]:
        return lambda data: check_fields(kind.FromString(data))

    return {
        "instruction": of_fields(allow, instruction()),
        "message of a server": of_fields(fields_of(ServerMessage), from_server),
        "message of an agent": of_fields(fields_of(AgentMessage), from_agent),
        "training settings": of_values(_trained, TRAINING),
        "announced noise": of_values(read_private, PRIVATE),
        "terms of compression": of_values(packets, compressed),
        "column": of_bytes(
            lambda data: column_of(data.decode("utf-8", "replace")), b"age=0:120", b"a=-1e9:1e9"
        ),
        **{f"packet, {kind}": _packet(kind) for kind in UPLOADS},
    }


def _parsed(run: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """Leave out what gRPC itself refuses."""

    def parsed(data: bytes) -> None:
        try:
            run(data)
        except DecodeError:
            return

    return parsed


def _trained(record: Any) -> None:
    settings = TrainingSettings.of(record)
    settings.learning_rate_now()
    assert isinstance(settings.stream, int)


def _packet(kind: str) -> Target:
    packer = Packer(forms_of(PARAMS), CompressionTerms(fraction=0.5, rank=2), kind)
    record, _ = packer.pack(packer.row_of(PARAMS), PARAMS, 1)
    name = next(iter(record))
    seed = tensor_of(name, record[name]).numpy().tobytes()

    def run(data: bytes) -> None:
        arrays = {key: tensor_of(key, array).numpy() for key, array in record.items()}
        arrays[name] = np.frombuffer(data, np.uint8)
        row, others = packer.unpack(params_to_arrays(arrays), 1)
        packer.params_of(row, others, PARAMS)

    return of_bytes(run, seed)


# ------------------------------------------------------------------------ secure sums


def _secure_sums() -> dict[str, Target]:
    signing = {n: Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2, 3, 4)}
    entropy = np.random.default_rng(0).bytes
    advertised = {
        n: ClientKeys(np.random.default_rng(n).bytes).advertise(key, name=str(n))
        for n, key in signing.items()
    }
    told = Announcement(
        session=b"s" * 32,
        round=4,
        keys={n: key.public_key().public_bytes_raw() for n, key in signing.items()},
        advertised=advertised,
        terms=SecureTerms(weight_max=100, group_size=3),
        setup=b"u" * 32,
        certificates={1: b"c" * 100},
    )
    noisy = {
        **told.record(), "metrics": "", "clip-norm": 1.0, "noise-multiplier": 1.0,
    }  # fmt: skip
    binding = Binding(session=b"s" * 32, round=4, model=b"m" * 32, configuration=b"c" * 32)
    plan = told.plan(20)

    def client(n: int) -> ClientSession:
        return ClientSession(
            plan=plan, me=str(n), signing_key=signing[n], roster=told.roster, binding=binding,
            keys=ClientKeys(np.random.default_rng(n).bytes), entropy=entropy,
        )  # fmt: skip

    vector = np.ones(20, np.float32)

    def advanced(steps: int) -> tuple[ServerSession, dict[int, ClientSession], dict[int, bytes]]:
        """Return a session after so many steps, and what its clients say or hear next."""
        server, clients = ServerSession(plan=plan, roster=told.roster, binding=binding), {}
        clients = {n: client(n) for n in signing}
        said = {n: each.share() for n, each in clients.items()}
        for step in range(steps):
            for n, words in said.items():
                server.collect(str(n), words)
            heard = {int(name): words for name, words in server.close_round().items()}
            if step == steps - 1:
                return server, clients, heard
            answer = ("mask", "confirm", "unmask")[step]
            said = {
                n: getattr(each, answer)(heard[n], *((vector,) if answer == "mask" else ()))
                for n, each in clients.items()
            }
        return server, clients, said

    def to_server(steps: int) -> tuple[Callable[[bytes], object], bytes]:
        server, clients, heard = advanced(steps) if steps else advanced(0)
        if steps:
            answer = ("mask", "confirm", "unmask")[steps - 1]
            said = getattr(clients[1], answer)(heard[1], *((vector,) if answer == "mask" else ()))
        else:
            said = heard[1]
        return (lambda data: None if data == said else server.collect("1", data)), said

    def to_client(steps: int) -> tuple[Callable[[bytes], object], bytes]:
        _, _, heard = advanced(steps)
        answer = ("mask", "confirm", "unmask")[steps - 1]

        def run(data: bytes) -> None:
            _, clients, _ = advanced(steps)
            getattr(clients[1], answer)(data, *((vector,) if answer == "mask" else ()))

        return run, heard[1]

    def announced(record: Any) -> None:
        found = Announcement.read(record)
        found.plan(20)
        assert found.roster.names

    def introduced(record: Any) -> None:
        member = Member.read(RecordDict({"introduction": record}))
        if member is not None:
            member.public_keys(1, used=set())

    member = Member(key=told.keys[1], advertised=told.advertised[1], setup=bytes(32))
    return {
        "announcement": of_values(announced, told.record(), noisy),
        "introduction": of_values(introduced, member.record()),
        **{
            f"secure, to the server, {step}": of_bytes(*to_server(step))
            for step in range(len(ANSWERS) + 1)
        },
        **{
            f"secure, to a client, {step}": of_bytes(*to_client(step), cheap=False)
            for step in range(1, len(ANSWERS) + 1)
        },
    }


# ------------------------------------------------------------------------ replies


def _replies() -> dict[str, Target]:
    content = {"arrays": params_to_arrays(PARAMS)}
    forms = forms_of(PARAMS)

    def reported(record: Any) -> None:
        metrics = MetricRecord()
        for name, value in record.items():
            try:
                metrics[name] = value
            except TypeError:  # no metric, and `codec` says so
                continue
        said = Message(RecordDict({**content, "metrics": metrics}), 7, "train", group_id="3")
        read_reply(said, forms=forms)

    reply = encode(
        Message(
            RecordDict({**content, "metrics": MetricRecord({"num-examples": 3, "loss": 0.5})}),
            7,
            "train",
            group_id="3",
        ),
        BlobWriter(Path("unused")),
    )

    def answered(data: bytes) -> None:
        said = decode(Envelope.FromString(data), lambda blob: blob_path(Path("/none"), blob.id))
        if said.has_content():
            read_reply(said, forms=forms)

    tree = {
        "learner": {
            "gradient_booster": {
                "model": {
                    "trees": [
                        {"left_children": [1, -1, -1], "right_children": [2, -1, -1],
                         "split_conditions": [0.5, 1.0, 2.0]}
                    ],
                    "tree_info": [0], "iteration_indptr": [0, 1],
                    "gbtree_model_param": {"num_trees": "1"},
                }
            }
        }
    }  # fmt: skip
    return {
        "reply": of_fields(answered, reply),
        "metrics": of_values(reported, {"num-examples": 3, "loss": 0.5, "combined-clients": [7]}),
        "trees": of_bytes(fault_in_model, json.dumps(tree).encode()),
    }
