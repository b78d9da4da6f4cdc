"""Run an agent that kills itself with SIGKILL at one step: killed_agent.py DIR STEP."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from meadow.client.agent.agent import Agent
from meadow.client.agent.connection import Connection
from meadow.client.agent.state import AgentState
from meadow.client.agent.warm_process import WarmProcess
from meadow.client.owner.ledger import Ledger


class Step(StrEnum):
    """Where the agent dies: before or after one of the steps of an instruction."""

    BEFORE_COUNTED = "before_counted"
    AFTER_COUNTED = "after_counted"
    AFTER_FETCHED = "after_fetched"
    AFTER_EXECUTED = "after_executed"
    AFTER_RECORDED = "after_recorded"
    AFTER_UPLOADED = "after_uploaded"
    AFTER_SENT = "after_sent"
    AFTER_ACKNOWLEDGED = "after_acknowledged"


_PLACES: dict[Step, tuple[type[Any], str, bool]] = {
    Step.BEFORE_COUNTED: (Ledger, "participate", True),
    Step.AFTER_COUNTED: (Ledger, "participate", False),
    Step.AFTER_FETCHED: (Connection, "download", False),
    Step.AFTER_EXECUTED: (WarmProcess, "execute", False),
    Step.AFTER_RECORDED: (AgentState, "record", False),
    Step.AFTER_UPLOADED: (Connection, "upload", False),
    Step.AFTER_SENT: (Connection, "send", False),
    Step.AFTER_ACKNOWLEDGED: (AgentState, "acknowledge", False),
}


def _die(*arguments: Any) -> None:
    is_reply = [
        a.HasField("reply")
        for a in arguments
        if hasattr(a, "HasField") and a.DESCRIPTOR.name == "AgentMessage"
    ]
    if all(is_reply):
        os.kill(os.getpid(), signal.SIGKILL)


def _deadly(function: Callable[..., Any], before: bool) -> Callable[..., Any]:
    async def later(*arguments: Any, **named: Any) -> Any:
        result = await function(*arguments, **named)
        _die(*arguments)
        return result

    def now(*arguments: Any, **named: Any) -> Any:
        if before:
            _die()
        result = function(*arguments, **named)
        _die()
        return result

    return later if asyncio.iscoroutinefunction(function) else now


if __name__ == "__main__":
    owner, name, before = _PLACES[Step(sys.argv[2])]
    setattr(owner, name, _deadly(getattr(owner, name), before))
    asyncio.run(Agent(sys.argv[1]).run())
