"""Whoever is in a sum was told the same: every field of an instruction is changed in turn.

The fields come from the messages themselves, so one that is added later is changed here too. What a
client's app can see is written down; the clients of one sum must all have seen the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from google.protobuf.message import Message as Proto

from meadow.client.worker import installed_app
from meadow.client.worker.installed_app import InstalledApp
from meadow.errors import ConfigError, MeadowError
from meadow.flower.messages import arrays_to_params, params_to_arrays
from meadow.privacy.secagg.client.identity import simulated_identity
from meadow.privacy.secagg.server.grid import SecureAggregationGrid
from meadow.privacy.secagg.terms.announcement import Announcement, bind
from meadow.privacy.secagg.terms.terms import SecureTerms
from meadow.transport.codec import BlobWriter, decode, encode
from meadow.transport.entries import pack_entries
from meadow.transport.fleet_pb2 import Instruction, TrainingStart, TrainingWork

from .arena import model

NODES = (1, 2, 3, 4)
VICTIM = 2
TERMS = SecureTerms(value_bound=2.0, corrupt=0.2, dropout=0.2)
SECURE = ("envelope", "records", 2)
"""Where the announcement is, of which the app sees nothing: its fields have a test of their own."""
RUN_CONFIG = {"learning-rate": 0.5, "epochs": 2, "augment": True, "name": "a"}
Lie = Callable[[Instruction], None]


class Fleet:
    """Apps as agents run them, each told in its own instruction, and what each of them saw."""

    def __init__(self, folder: Path) -> None:
        self.seen: dict[int, str] = {}
        self.lies: dict[int, Lie] = {}
        self.told: dict[int, Instruction] = {}
        self.states: dict[int, bytes] = {}
        self.folder = folder
        self.blobs = BlobWriter(folder / "blobs")
        self.apps = {node: self._installed(node) for node in NODES}

    def get_node_ids(self) -> tuple[int, ...]:
        return NODES

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        for message in messages:
            node = message.metadata.dst_node_id
            instruction = Instruction(
                id=f"{node} {message.metadata.message_type}",
                run_id=message.metadata.run_id,
                envelope=encode(message, self.blobs),
                cohort_clients=len(NODES),
                sites=len(NODES),
                run_config=pack_entries(RUN_CONFIG),
                secure_aggregation=True,
            )
            instruction.app.name, instruction.app.sha256 = "app", "sha256:0"
            if message.metadata.message_type == "train.secure":
                self.told[node] = instruction
                if lie := self.lies.get(node):
                    lie(instruction)
            try:
                answer = self._execute(node, instruction)
                yield (
                    Message(answer.content, reply_to=message)
                    if answer.has_content()
                    else (Message(answer.error, reply_to=message))
                )
            except (MeadowError, ValueError, KeyError, TypeError) as error:
                yield Message(Error(2, repr(error)), reply_to=message)

    def round(self) -> list[int]:
        """Run a round; return whose updates are in the sum."""
        config = ConfigRecord({"server-round": 1, "learning-rate": 0.1, "epochs": 2})
        content = RecordDict({"arrays": params_to_arrays(model()), "config": config})
        batch = [Message(content, node, "train", group_id="1") for node in NODES]
        replies = list(SecureAggregationGrid(self, TERMS).send_and_receive(batch))  # type: ignore[arg-type]
        sums = [reply for reply in replies if reply.has_content()]
        return [
            int(node) for reply in sums for node in reply.content["metrics"]["combined-clients"]
        ]

    def _execute(self, node: int, instruction: Instruction) -> Message:
        work = TrainingWork(
            instruction=instruction,
            state=self.states.get(node, b""),
            **{f"{kind}_dir": str(self._dir(node, kind)) for kind in ("blob", "reply", "state")},
        )
        done = self.apps[node].execute(work)
        self.states[node] = done.state
        return decode(
            done.envelope, lambda blob: self._dir(node, "reply") / f"{blob.id}.safetensors"
        )

    def _dir(self, node: int, kind: str) -> Path:
        folder = self.folder / str(node) / kind
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _installed(self, node: int) -> InstalledApp:
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            self.seen[node] = visible(message, context)
            arrays = params_to_arrays(
                arrays_to_params(next(iter(message.content.array_records.values())))
            )
            metrics = MetricRecord({"num-examples": 5, "loss": 1.0})
            return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

        start = TrainingStart(node_id=node, client_dir=str(self._dir(node, "client")))
        return InstalledApp(SimpleNamespace(flower=None), app, start, "cpu")  # type: ignore[arg-type]


def visible(message: Message, context: Context) -> str:
    """Return all that an app can see of what it is told, but for who it is and when."""
    records = [
        (
            type(record).__name__,
            name,
            [(key, arrays_to_params(record)[key].tobytes()) for key in record]
            if isinstance(record, ArrayRecord)
            else list(record.items()),
        )
        for name, record in message.content.items()
    ]
    head = dict(message.metadata.__dict__)
    for own in ("_dst_node_id", "_created_at"):
        del head[own]
    return repr((records, head, context.run_id, context.run_config, context.node_config))


def leaves(message: Proto, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every field of a message, whether it is set or not, and of what it holds."""
    for field in message.DESCRIPTOR.fields:
        here, value = (*path, field.name), getattr(message, field.name)
        if field.message_type is None:
            if field.containing_oneof is None or message.HasField(field.name):
                yield here
        elif isinstance(value, Proto):
            if message.HasField(field.name):
                yield from leaves(value, here)
        else:
            yield here
            for place, item in enumerate(value):
                yield from leaves(item, (*here, place))


def changed(message: Proto, path: tuple[Any, ...]) -> bool:
    """Change what is at a path; False if there is nothing that could be changed."""
    for step in path[:-1]:
        message = message[step] if isinstance(step, int) else getattr(message, step)  # type: ignore[index]
    name = path[-1]
    value = getattr(message, name)
    if isinstance(value, bool):
        setattr(message, name, not value)
    elif isinstance(value, int):
        setattr(message, name, value + 1)
    elif isinstance(value, float):
        setattr(message, name, math.nextafter(value, 1e9))
    elif isinstance(value, str):
        setattr(message, name, value + "x")
    elif isinstance(value, bytes):
        setattr(message, name, value[:-1] + bytes([value[-1] ^ 1]) if value else b"x")
    else:  # repeated: in another order, or one less
        items = list(value)
        if not items:
            return False
        del value[:]
        value.extend(reversed(items) if len(items) > 1 else [])
    return True


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """The fields of an instruction that an honest round has sent, the victim's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(installed_app, "owned_identity", lambda folder, node: simulated_identity(7))
        fleet = Fleet(tmp_path_factory.mktemp("honest"))
        assert fleet.round() == list(NODES) and len(set(fleet.seen.values())) == 1
    told = fleet.told[VICTIM]
    assert told.envelope.records[SECURE[2]].name == "secure"
    found = [
        path
        for path in leaves(told)
        if changed(Instruction.FromString(told.SerializeToString()), path)
    ]
    assert not {field.name for field in Instruction.DESCRIPTOR.fields} - {
        path[0] for path in leaves(told)
    }
    assert len(found) > 60
    return found


def require_told_alike(folder: Path, lies: dict[int, Lie]) -> bool:
    """Run a round with lies; return whether a client that was lied to is in the sum with others."""
    fleet = Fleet(folder)
    fleet.lies = lies
    included = fleet.round()
    views = {fleet.seen[node] for node in included}
    assert len(views) <= 1, f"{included} are in one sum, and were told different things"
    return bool({*lies} & {*included}) and bool({*included} - {*lies})


def test_every_field_of_an_instruction(
    paths: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever one client is told otherwise is either nothing that its app sees or keeps it out of
    the sum."""
    monkeypatch.setattr(installed_app, "owned_identity", lambda folder, node: simulated_identity(7))
    harmless = set()
    for number, path in enumerate(paths):

        def lie(instruction: Instruction, path: tuple[Any, ...] = path) -> None:
            changed(instruction, path)

        try:
            included = require_told_alike(tmp_path / f"{number}", {VICTIM: lie})
        except AssertionError as error:
            raise AssertionError(f"{'.'.join(map(str, path))}: {error}") from error
        if included and path[:3] != SECURE:
            harmless.add(".".join(str(step) for step in path if isinstance(step, str)))
    assert harmless == {
        "id",
        "cohort_clients",
        *(
            f"envelope.metadata.{name}"
            for name in (
                "run_id", "message_id", "src_node_id", "dst_node_id", "reply_to_message_id",
                "created_at_s", "ttl_s",
            )
        ),
    }  # fmt: skip


@pytest.mark.parametrize("to", ["victim", "others"])
def test_the_learning_rate_of_all_but_one(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that tells each client its own run config, and each that all have that one, has no
    sum of both."""
    monkeypatch.setattr(installed_app, "owned_identity", lambda folder, node: simulated_identity(7))

    def lie(instruction: Instruction) -> None:
        del instruction.run_config[:]
        instruction.run_config.extend(pack_entries({**RUN_CONFIG, "learning-rate": 0.0}))
        said = instruction.envelope.records[-1].configs.entries
        (setup,) = [entry for entry in said if entry.key == "setup"]
        setup.value.data = installed_app.setup_of(instruction)

    lied_to = [VICTIM] if to == "victim" else sorted({*NODES} - {VICTIM})
    assert not require_told_alike(tmp_path, dict.fromkeys(lied_to, lie))


def test_a_field_of_a_later_version() -> None:
    """Fields that this version does not know are bound, too."""
    known = Instruction(id="a", run_id=1)
    later = Instruction.FromString(known.SerializeToString() + b"\xa2\x06\x01x")  # field 100
    assert installed_app.setup_of(later) != installed_app.setup_of(known)


ANNOUNCED = Announcement(
    session=b"s" * 32,
    round=4,
    keys={1: b"a" * 32, 2: b"b" * 32},
    advertised={1: b"c" * 160, 2: b"d" * 160},
    terms=SecureTerms(weight_max=9, group_size=3),
    setup=b"u" * 32,
    certificates={1: b"e"},
)


def others_of(value: Any) -> Iterator[Any]:
    """Yield values that differ from one of a field, as little as can be."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            for other in others_of(getattr(value, field.name)):
                try:
                    yield replace(value, **{field.name: other})
                except ConfigError:
                    continue
    elif isinstance(value, dict):
        yield {key: said[:-1] + b"!" for key, said in value.items()}
    elif isinstance(value, bytes):
        yield value[:-1] + b"!"
    elif isinstance(value, str):
        yield from (other for other in ("skellam", "discrete_gaussian") if other != value)
    elif isinstance(value, tuple):
        yield (*value, "another")
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield math.nextafter(value, math.inf)
    else:
        assert value is None, f"say here how a {type(value).__name__} is changed"


def test_every_field_of_an_announcement() -> None:
    """Everything that a server announces, the terms included, is in what clients sign."""

    def bound(announcement: Announcement) -> tuple[Any, ...]:
        content = RecordDict({"arrays": params_to_arrays(model())})
        found = bind(announcement, run_id=1, category="train", group="1", content=content)
        return found.session, found.round, found.model, found.configuration, found.beacon

    base = bound(ANNOUNCED)
    noisy = replace(ANNOUNCED.terms, metrics=(), clip_norm=1.0, noise_multiplier=2.0)
    for start in (ANNOUNCED, replace(ANNOUNCED, terms=noisy)):
        for field in fields(Announcement):
            told = list(others_of(getattr(start, field.name)))
            assert told, f"{field.name} was not changed"
            for other in told:
                assert bound(replace(start, **{field.name: other})) != bound(start), field.name
    assert bound(ANNOUNCED) == base


def test_kinds_and_order_of_records() -> None:
    """Params in another order are another model, and metrics are no configuration."""

    def bound(content: RecordDict) -> tuple[bytes, bytes]:
        found = bind(ANNOUNCED, run_id=1, category="train", group="1", content=content)
        return found.model, found.configuration

    params, said = model(), {"rate": 0.5, "epochs": 2}
    backwards = dict(reversed(params.items()))
    contents = [
        RecordDict({"arrays": params_to_arrays(params), "config": ConfigRecord(said)}),
        RecordDict({"arrays": params_to_arrays(backwards), "config": ConfigRecord(said)}),
        RecordDict({"arrays": params_to_arrays(params), "config": MetricRecord(said)}),
        RecordDict({"config": ConfigRecord(said), "arrays": params_to_arrays(params)}),
        RecordDict(
            {
                "arrays": params_to_arrays(params),
                "config": ConfigRecord(dict(reversed(said.items()))),
            }
        ),
    ]
    assert len({bound(content) for content in contents}) == len(contents)
