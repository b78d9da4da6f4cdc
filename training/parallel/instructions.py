"""Rank 0's instructions to the other ranks, as JSON over a socket pair; tensors go through collectives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from ...partitioning.partition import Partition
from ...privacy.dp.example_level import ExampleTerms
from ...task import Site
from ..device_use import DeviceUse
from ..mid_epoch import MidEpoch
from ..settings import TrainingSettings
from .plan import ParallelPlan

__all__ = [
    "READY",
    "Meeting",
    "RankStart",
    "RoundInstruction",
    "Word",
    "receive_message",
    "send_message",
]

READY = "ready"

FRAME_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """What a rank loads, and the group that it joins.

    Attributes:
        rendezvous: the file where the ranks of one machine meet.
        address: where it listens instead, with ranks on several machines; it then says on which
            port with its `READY`, and is told rank 0's store by a `Meeting`.
    """

    app_dir: str
    sha256: str
    rank: int
    plan: ParallelPlan
    use: DeviceUse
    rendezvous: str = ""
    address: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {
            "app_dir": self.app_dir,
            "sha256": self.sha256,
            "rank": self.rank,
            "plan": self.plan.to_json(),
            "use": asdict(self.use),
            "rendezvous": self.rendezvous,
            "address": self.address,
        }

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> RankStart:
        """Return what `to_json` gave."""
        plan = ParallelPlan.from_json(stated["plan"])
        return cls(**{**stated, "plan": plan, "use": DeviceUse(**stated["use"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where rank 0's store is, for ranks on several machines."""

    address: str
    port: int


@dataclass(slots=True, kw_only=True)
class RoundInstruction:
    """One round: all ranks train by the same instruction.

    Attributes:
        evaluate: which of the site's data to evaluate instead; empty: none.
        dp_sgd: the terms of example-level privacy, if any; `sampling` (hex) is then the secret seed of
            sampling bits and noise.
    """

    site: Site
    settings: TrainingSettings
    client: int
    examples_max: int | None
    saves: MidEpoch | None
    resume_at: int
    evaluate: Literal["", "train", "test"] = ""
    dp_sgd: ExampleTerms | None = None
    sampling: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        site = {**asdict(self.site), "config": dict(self.site.config)}
        saves = None
        if self.saves is not None:
            saves = {**asdict(self.saves), "folder": str(self.saves.folder)}
        return {
            "site": site,
            "settings": asdict(self.settings),
            "client": self.client,
            "examples_max": self.examples_max,
            "saves": saves,
            "resume_at": self.resume_at,
            "evaluate": self.evaluate,
            "dp_sgd": None if self.dp_sgd is None else asdict(self.dp_sgd),
            "sampling": self.sampling,
        }

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> RoundInstruction:
        """Return what `to_json` gave."""
        site = {**stated["site"], "partition": Partition(**stated["site"]["partition"])}
        saves = stated["saves"]
        if saves is not None:
            saves = MidEpoch(**{**saves, "folder": Path(saves["folder"])})
        parsed = {"settings": TrainingSettings(**stated["settings"]), "saves": saves}
        if stated["dp_sgd"] is not None:
            parsed["dp_sgd"] = ExampleTerms(**stated["dp_sgd"])
        return cls(**{**stated, **parsed, "site": Site(**site)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A rank's report: that it is ready, or why it ended: "app", "memory", or "lost", which is
    the end of another one."""

    kind: str
    text: str


def send_message(connection: Connection, message: Mapping[str, Any]) -> None:
    """Send one object.

    Raises:
        OSError: the peer is gone.
    """
    connection.send_bytes(json.dumps(message).encode())


def receive_message(connection: Connection) -> dict[str, Any]:
    """Return the next object.

    Raises:
        OSError, EOFError: the peer is gone.
    """
    message: dict[str, Any] = json.loads(connection.recv_bytes(FRAME_BYTES_MAX))
    return message
