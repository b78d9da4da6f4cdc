"""`compressed_app(app)`: wraps a Flower ClientApp so that its replies are compressed on request.

It works with any ClientApp, which receives and returns plain params. `compression_mod` does the
same as a Flower mod: `ClientApp(mods=[compression_mod])`.
"""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from ..errors import ProtocolError
from ..flower.messages import arrays_to_params, params_to_arrays
from ..strategies.algorithms.algorithm import Params
from ..strategies.rounds.checks import forms_of
from .grid import upload_seed
from .numbers import Row
from .packet import Packer, is_packed
from .terms import RECORD, CompressionTerms, forms_in

__all__ = ["compressed_app", "compression_mod", "is_compressed"]

RESIDUAL = "compression-residual"
"""Name of the record in the Context's state that holds the residual of the client's last reply."""


def compressed_app(app: ClientApp) -> ClientApp:
    """Return `app` wrapped in `compression_mod`."""
    return _CompressedApp(app)


class _CompressedApp(ClientApp):
    """Passes messages to another app through the mod."""

    def __init__(self, app: ClientApp) -> None:
        super().__init__()
        self._app = app

    def __call__(self, message: Message, context: Context) -> Message:
        return compression_mod(message, context, self._app)


def is_compressed(message: Message) -> bool:
    """Whether an instruction has compression terms."""
    return RECORD in message.content.config_records


def compression_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Unpack an instruction's params, and pack the delta between them and the reply's params.

    Messages without compression terms pass through unchanged.

    Raises:
        ProtocolError: the terms or the params cannot be read, or the reply has other tensors.
    """
    found = message.content.config_records.get(RECORD)
    if found is None:
        return call_next(message, context)
    terms = CompressionTerms.read(found)
    del message.content[RECORD]
    (name,) = message.content.array_records
    arrays = message.content.array_records[name]
    sent_row: Row | None = None
    if is_packed(arrays):
        packer = Packer(forms_in(found), terms, terms.download)
        row, others = packer.unpack(arrays, 0)
        sent = packer.params_of(row, others, None)
        sent_row = row if packer.keeps_rows else None
        message.content[name] = params_to_arrays(sent)
    else:
        sent = arrays_to_params(arrays)
    if terms.upload == "none":
        return call_next(message, context)
    forms = forms_of(sent)
    packer = Packer(forms, terms, terms.upload)
    if sent_row is None:
        sent_row = packer.row_of(sent)  # a copy, as the app may modify its params
    reply = call_next(message, context)
    if reply.has_content() and reply.content.array_records:
        (name,) = reply.content.array_records
        params = arrays_to_params(reply.content.array_records[name])
        if forms_of(params) != forms:
            raise ProtocolError("the app's reply has other tensors than the instruction")
        row = packer.row_of(params)
        row -= sent_row
        seed = upload_seed(terms, message.metadata.group_id, context.node_id)
        reply.content[name] = _packed(packer, row, params, context, seed)
    return reply


def _packed(packer: Packer, row: Row, params: Params, context: Context, seed: int) -> ArrayRecord:
    if packer.feeds_back:
        row += _residual(context, len(row))
    packed, decoded = packer.pack(row, params, seed)
    if packer.feeds_back:
        context.state[RESIDUAL] = params_to_arrays({"row": row - decoded()})
    return packed


def _residual(context: Context, size: int) -> Row:
    """Return the residual of the earlier replies; zeros if there is none of this size."""
    residual = context.state.get(RESIDUAL)
    if isinstance(residual, ArrayRecord):
        row = arrays_to_params(residual)["row"]
        if row.shape == (size,):
            return np.asarray(row, np.float32)
    return np.zeros(size, np.float32)
