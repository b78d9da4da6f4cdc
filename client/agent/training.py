"""The interface between the agent and a trainer, which executes its instructions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ...transport.fleet_pb2 import AppError, Envelope, Instruction, Metadata, TrainingDone

__all__ = [
    "APP_CRASHED",
    "APP_NOT_LOADED",
    "APP_RAISED",
    "REASON_CHARS_MAX",
    "REPLY_UNAVAILABLE",
    "Trainer",
    "failure",
]

APP_NOT_LOADED = 1
APP_RAISED = 2
REPLY_UNAVAILABLE = 4
APP_CRASHED = 8
"""Flower's error codes. Source: flwr 1.41, common/constant.py, ErrorCode."""

REASON_CHARS_MAX = 2000


class Trainer(Protocol):
    """Executes instructions of the apps that the owner has installed, one at a time."""

    async def execute(
        self,
        instruction: Instruction,
        blob_dir: Path,
        reply_dir: Path,
        state_dir: Path,
        state: bytes,
        step: Callable[[], None],
    ) -> TrainingDone:
        """Return the app's reply, its tensors as files in `reply_dir`, and its new client state.

        `step` is called repeatedly while the work runs. A failure of the app is the reply's error.
        Cancelling the call stops the work.
        """
        ...

    async def prepare(self, app: str) -> None:
        """Load an app, so that its first instruction does not have to wait."""

    def resident_bytes(self) -> int | None:
        """Return the memory that it holds now, None while no app is loaded."""
        return None

    async def close(self) -> None:
        """Stop, and release memory and devices."""


def failure(instruction: Instruction, code: int, reason: str) -> Envelope:
    """Return an error reply with this code and reason."""
    metadata = instruction.envelope.metadata
    now_s = time.time()
    return Envelope(
        metadata=Metadata(
            run_id=instruction.run_id,
            message_id=uuid.uuid4().hex,
            src_node_id=metadata.dst_node_id,
            dst_node_id=metadata.src_node_id,
            reply_to_message_id=metadata.message_id,
            group_id=metadata.group_id,
            created_at_s=now_s,
            ttl_s=metadata.ttl_s,
            message_type=metadata.message_type,
        ),
        error=AppError(code=code, reason=reason[:REASON_CHARS_MAX]),
    )
