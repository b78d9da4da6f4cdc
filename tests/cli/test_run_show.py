"""`meadow run show` and `run watch` speak to people: sentences, and the sites' names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from meadow.cli import run
from meadow.transport import fleet_pb2 as pb

from .conftest import Meadow

TOLD = {
    "client_failed": {
        "round": 2,
        "client": 7,
        "reason": "it raised OSError: no disk",
        "fault": "raised",
        "log": "training.log",
    },
    "app_raised": {"reason": "KeyError: 'a' (server.py, line 3)", "log": "tracebacks.log"},
    "update_refused": {"round": 2, "client": 9, "field": "loss", "reason": "is not finite"},
    "round_waits": {"round": 3, "missing": [7, 8], "updates": 1, "quorum": 2, "step": "3/train/0"},
    "round_committed": {"round": 2, "clients": 3, "failures": 1, "train": {"loss": 0.5}},
    "status": {"status": "failed", "cause": "too few"},
    "ready": {"rounds": 3},
}
SITES = {7: "hospital-a", 9: "hospital-b"}


class Stub:
    """A server with one run."""

    def Sites(self, request: pb.Empty, timeout: float) -> pb.SiteList:
        return pb.SiteList(sites=[pb.Site(node_id=n, name=name) for n, name in SITES.items()])

    def ShowRun(self, request: pb.RunId, timeout: float) -> pb.RunDetail:
        return pb.RunDetail(run=pb.Run(id=1, app="a", status="finished"), events=self._events())

    def Watch(self, request: pb.RunId) -> Iterator[pb.RunEvent]:
        return iter(self._events())

    def _events(self) -> list[pb.RunEvent]:
        return [pb.RunEvent(at_s=1.0, kind=k, json=json.dumps(d)) for k, d in TOLD.items()]


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever server is asked, it is this one."""

    @contextmanager
    def connected(*where: Any) -> Iterator[Stub]:
        yield Stub()

    monkeypatch.setattr(run, "admin_stub", connected)


@pytest.mark.parametrize("command", ["show", "watch"])
def test_people_read_sentences_with_names(meadow: Meadow, command: str) -> None:
    """No JSON, no node number of a site that has a name."""
    said = meadow("run", command, "1")
    assert said.code == 0, said.err
    assert "round 2: hospital-a failed: it raised OSError: no disk; the rest is in" in said.out
    assert "round 2: hospital-b: update refused: loss is not finite" in said.out
    assert "no sign of life of hospital-a, 8" in said.out
    assert "failed: too few" in said.out
    assert "{" not in said.out and "client 7" not in said.out


@pytest.mark.parametrize("command", ["show", "watch"])
def test_programs_get_everything(meadow: Meadow, command: str) -> None:
    """Node numbers and names."""
    said = meadow("run", command, "1", "--format", "json")
    events = said.objects[0]["events"] if command == "show" else said.objects
    (failed,) = (e for e in events if "client_failed" in (e.get("kind"), e.get("event")))
    assert (failed["client"], failed["site"]) == (7, "hospital-a")
    assert len(events) == len(TOLD)
