"""`secure_app(app)`: wraps a Flower ClientApp so that its updates leave only within secure sums.

The wrapped app trains and evaluates without changes. Its reply stays on the client, which sends
only a masked vector (`privacy.secagg.terms.terms` lists the messages).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, Metadata, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from ....errors import (
    NOTHING_TO_EVALUATE,
    MeadowError,
    RefusedError,
    SecureAggregationError,
    UpdateError,
)
from ....flower.messages import arrays_to_params, params_to_arrays, rebuild_message, tensors_of
from ....strategies.algorithms.combined import EXAMPLES_KEY
from ....strategies.algorithms.metrics import scalars_of
from ..protocol.steps import ProtocolStep
from ..terms.announcement import Announcement, bind, setup_of
from ..terms.member import INTRODUCTION
from ..terms.terms import ANSWERS, IDENTITY, MASKED, RECORD, SECURE_SUM_FAILED, SUFFIX, is_secure
from ..terms.vector import VectorLayout
from .identity import Identify, SecureIdentity, pinned_identity
from .introduction import introduce, spend_seed
from .past import Past
from .session import SavedSession

__all__ = ["secure_app"]


SetupOf = Callable[[Context], bytes]
"""Returns the hash of the configuration that the server gave this client outside the message."""

TTL_S = 12 * 3600.0
"""Flower's usual time to live of a message."""


def secure_app(
    app: ClientApp,
    *,
    identify: Identify | None = None,
    setup: SetupOf = lambda context: setup_of(context.run_config),
) -> ClientApp:
    """Return `app` with secure aggregation: it answers the messages of secure sums, and no others.

    `identify` returns the client's identity and trust; by default `pinned_identity()`. `setup`
    hashes what the app gets from the server outside the message; by default the run config.
    """
    return _SecureApp(app, identify or pinned_identity(), setup)


class _SecureApp(ClientApp):
    """Answers the messages of secure sums, and passes the instructions in them to another app."""

    def __init__(self, app: ClientApp, identify: Identify, setup: SetupOf) -> None:
        super().__init__()
        self._app, self._identify, self._setup = app, identify, setup

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message; exceptions of the wrapped app propagate."""
        kind = message.metadata.message_type
        if not is_secure(kind):
            raise RefusedError(
                f"a {kind!r} message is refused: this client's updates leave it only within "
                "secure sums"
            )
        try:
            if kind == IDENTITY:
                content = RecordDict({INTRODUCTION: self._introduction(context)})
            elif kind in ANSWERS:
                content = self._answer(ANSWERS[kind], message, context)
            else:
                content = self._begin(kind.removesuffix(SUFFIX), message, context)
        except MeadowError as error:
            # A reply, not an exception, so that the end of the session is stored.
            SavedSession.end(context.state)
            return Message(Error(SECURE_SUM_FAILED, str(error)), reply_to=message)
        return Message(content, reply_to=message)

    def _begin(self, category: str, message: Message, context: Context) -> RecordDict:
        """Check the announcement, execute the instruction, and join the session."""
        identity = self._identify(context)
        announcement = Announcement.read(_secure_record(message))
        if announcement.setup != self._setup(context):
            raise SecureAggregationError(
                "the clients of this sum have another app, run config or number of sites than this "
                "one"
            )
        binding = bind(
            announcement,
            run_id=context.run_id,
            category=category,
            group=message.metadata.group_id,
            content=message.content,
        )
        announcement.terms.require_noise_terms(message.content.config_records.get("config", {}))
        params = arrays_to_params(_one(message.content.array_records, "ArrayRecord"))
        layout = VectorLayout(params if category == "train" else {}, announcement.terms)
        plan = announcement.plan(layout.length)
        identity.minimum.require(plan.topology)
        _require_member(identity, announcement)
        Past(context.state).require_new(category, binding)
        seed = spend_seed(context.state, announcement.advertised[identity.node])
        identity.accept(announcement)
        instruction = _instruction(category, message, context, announcement.session)
        vector, examples = self._update(category, instruction, context, layout)
        answer = SavedSession.begin(
            context.state,
            identity=identity,
            announcement=announcement,
            binding=binding,
            category=category,
            seed=seed,
            vector=vector,
            weight=min(examples, plan.encoding.weight_max),
        )
        return _content_of(announcement.session, answer)

    def _update(
        self, category: str, instruction: Message, context: Context, layout: VectorLayout
    ) -> tuple[NDArray[Any], int]:
        """Execute the instruction, and return the update's vector and the number of examples."""
        reply = self._app(instruction, context)
        if reply.has_error():
            if category == "evaluate" and reply.error.code == NOTHING_TO_EVALUATE:
                return layout.vector({}, {}), 0
            raise UpdateError(reply.error.reason or "the app gave no reason for its error")
        metrics: MetricRecord = _one(reply.content.metric_records, "MetricRecord")
        examples = metrics.get(EXAMPLES_KEY)
        whole = isinstance(examples, int | float) and examples >= 1 and examples == int(examples)
        if not whole:
            raise UpdateError(f"{EXAMPLES_KEY} must be a whole number >= 1, got {examples!r}")
        trained = {}
        if category == "train":
            trained = tensors_of(_one(reply.content.array_records, "ArrayRecord"))
        return layout.vector(trained, scalars_of(metrics)), int(examples)  # type: ignore[arg-type]

    def _answer(self, step: ProtocolStep, message: Message, context: Context) -> RecordDict:
        record: Any = _secure_record(message)
        session, received = record.get("session"), record.get("message")
        if type(session) is not bytes or type(received) is not bytes:
            raise SecureAggregationError("the server's message has no session or no content")
        identity = self._identify(context)
        saved = SavedSession.resume(context.state, identity, session)
        content = _content_of(
            session, saved.answer(step, received), masked=step is ProtocolStep.MASK
        )
        if step is ProtocolStep.UNMASK and saved.category == "train":
            # The round's evaluation is next, and then needs no other request for it.
            content[INTRODUCTION] = self._introduction(context)
        return content

    def _introduction(self, context: Context) -> ConfigRecord:
        return introduce(context.state, self._identify(context), self._setup(context))


def _require_member(identity: SecureIdentity, announcement: Announcement) -> None:
    if announcement.keys.get(identity.node) != identity.public_key:
        raise SecureAggregationError("this client is not in the cohort with its own key")


def _instruction(category: str, message: Message, context: Context, session: bytes) -> Message:
    """Return the message that the wrapped app would have received without secure aggregation.

    Guarantees: the metadata are the client's own or bound by the session, so nothing that the
        server sent to this client alone reaches the app.
    """
    metadata = Metadata(
        run_id=context.run_id,
        message_id=session.hex(),
        src_node_id=0,
        dst_node_id=context.node_id,
        reply_to_message_id="",
        group_id=message.metadata.group_id,
        created_at=time.time(),
        ttl=TTL_S,
        message_type=category,
    )
    content = {name: record for name, record in message.content.items() if name != RECORD}
    return rebuild_message(metadata, RecordDict(content))


def _secure_record(message: Message) -> ConfigRecord:
    record = message.content.config_records.get(RECORD)
    if record is None:
        raise SecureAggregationError(f"the message has no ConfigRecord {RECORD!r}")
    return record


def _one(records: Any, kind: str) -> Any:
    if len(records) != 1:
        raise UpdateError(f"the reply must have one {kind}, it has {len(records)}")
    return next(iter(records.values()))


def _content_of(session: bytes, answer: bytes, *, masked: bool = False) -> RecordDict:
    if masked:
        return RecordDict({MASKED: params_to_arrays({MASKED: np.frombuffer(answer, np.uint8)})})
    return RecordDict({RECORD: ConfigRecord({"session": session, "message": answer})})
