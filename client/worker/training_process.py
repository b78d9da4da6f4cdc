"""The training process: `python -m meadow.client.worker.training_process --fd N`, started by the agent.

It loads one app, with torch and the owner's data, and executes instructions until the agent
disconnects. The app's output is in the agent's training.log.
"""

from __future__ import annotations

import argparse
import os
import threading
import traceback

from ...errors import MeadowError, ProtocolError
from ...machine.process_limits import keep_freed_memory, use_large_pages
from ...transport.fleet_pb2 import (
    AgentOrder,
    Inspection,
    TrainerMessage,
    TrainingDone,
    TrainingReady,
    TrainingStep,
    TrainingWork,
)
from ...transport.pipe import Pipe
from ..agent.training import APP_RAISED, failure
from .installed_app import InstalledApp

__all__ = ["main"]

STEP_S = 1.0
AGENT_GONE = 70
ANYTHING = (Exception, SystemExit)
"""Exceptions of an app that are reported to the run, and do not end this process."""


class _Pulse:
    """Reports to the agent, about once a second during work, that this process is alive."""

    def __init__(self, pipe: Pipe[AgentOrder, TrainerMessage]) -> None:
        self._pipe = pipe
        self._working = threading.Event()
        self._resting = threading.Event()
        self._instruction_id = ""
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def begin(self, instruction_id: str) -> None:
        self._instruction_id = instruction_id
        self._resting.clear()
        self._working.set()

    def end(self) -> None:
        self._working.clear()
        self._resting.set()

    def _beat(self) -> None:
        while True:
            self._working.wait()
            if self._resting.wait(STEP_S):
                continue
            step = TrainingStep(instruction_id=self._instruction_id)
            try:
                self._pipe.send(TrainerMessage(step=step))
            except OSError:
                os._exit(AGENT_GONE)  # without the agent, the result is lost


def main() -> None:
    """Serve the agent at the other end of an inherited socket until it is gone."""
    keep_freed_memory()
    use_large_pages()
    parser = argparse.ArgumentParser(prog="meadow.client.worker.training_process")
    parser.add_argument("--fd", type=int, required=True)
    pipe: Pipe[AgentOrder, TrainerMessage] = Pipe.inherited(parser.parse_args().fd, AgentOrder)
    pulse = _Pulse(pipe)
    first = pipe.receive()
    if first is None:
        return
    pulse.begin("")
    app, ready = _load(first)
    pulse.end()
    pipe.send(TrainerMessage(ready=ready))
    while app is not None and (message := pipe.receive()) is not None:
        pulse.begin(message.work.instruction.id)
        if message.HasField("inspect"):
            answer = TrainerMessage(inspection=_inspect(app))
        else:
            answer = TrainerMessage(done=_execute(app, message.work))
        pulse.end()
        pipe.send(answer)


def _load(message: AgentOrder) -> tuple[InstalledApp | None, TrainingReady]:
    if not message.HasField("start"):
        raise ProtocolError("the agent's first message did not name an app")
    try:
        app = InstalledApp.load(message.start)
    except ANYTHING as error:
        traceback.print_exc()
        return None, TrainingReady(problem=_last_line(error))
    return app, TrainingReady(device=app.device)


def _execute(app: InstalledApp, work: TrainingWork) -> TrainingDone:
    try:
        return app.execute(work)
    except ANYTHING as error:
        traceback.print_exc()
        envelope = failure(work.instruction, APP_RAISED, app.explain(error))
        return TrainingDone(instruction_id=work.instruction.id, envelope=envelope, state=work.state)


def _inspect(app: InstalledApp) -> Inspection:
    try:
        return app.inspect()
    except ANYTHING as error:
        traceback.print_exc()
        return Inspection(problem=app.explain(error))


def _last_line(error: BaseException) -> str:
    if isinstance(error, MeadowError):
        return str(error)
    return traceback.format_exception_only(error)[-1].strip()


if __name__ == "__main__":
    main()
