"""The relay's process: a daemon for the clients below, and an agent of the server above."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ..client.agent.agent import Agent
from ..client.agent.events import Report
from ..server.daemon.daemon import Daemon
from ..server.daemon.server_dir import ServerFolder
from .folder import ABOVE, secret_in
from .trainer import RelayTrainer

__all__ = ["Relay"]


class Relay:
    """Runs the relay of a folder until it is stopped."""

    def __init__(
        self,
        server_folder: ServerFolder,
        *,
        report: Report = lambda event: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        folder = server_folder.folder
        self._daemon = Daemon(server_folder, clock=clock)
        self._agents = self._daemon.works.agents
        trainer = RelayTrainer(self._daemon.works, secret=secret_in(folder), clock=clock)
        self._agent = Agent(
            folder / ABOVE, trainer=trainer, report=report, clock=clock, leaves=self
        )

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever the clients below may have changed; return how to unsubscribe."""
        return self._agents.on_change(listener)

    def node_ids(self) -> list[int]:
        """Return the clients below that are there."""
        return self._agents.available()

    def stop(self) -> None:
        """Drain and end."""
        self._daemon.stop()

    async def run(self, *, ready: Callable[[dict[str, str]], None]) -> None:
        """Serve both sides until SIGTERM, SIGINT or `stop()`; `ready` gets the addresses below.

        Raises:
            MeadowError: as `Daemon.run` and `Agent.run`.
        """
        above: list[asyncio.Task[None]] = []

        def listening(addresses: dict[str, str]) -> None:
            task = asyncio.create_task(self._agent.run())
            task.add_done_callback(lambda _: self._daemon.stop())
            above.append(task)
            ready(addresses)

        try:
            await self._daemon.run(ready=listening, before_end=lambda: self._end(above))
        finally:
            for task in above:
                await task

    async def _end(self, above: list[asyncio.Task[None]]) -> None:
        """Stop the side above before what it works with is closed."""
        self._agent.stop()
        await asyncio.gather(*above, return_exceptions=True)
