"""When a site takes part: not while its owner has paused it, nor outside of the owner's windows.

While the gate is closed the agent is not connected: it begins no instruction, and nothing leaves. Work that
has begun is finished, and its answer waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ...config.client_config import PolicyConfig, minutes_of
from ...errors import ConfigError, StoreError
from ...machine.power import on_mains
from ...transport.durable import sync_folder, write_file

__all__ = ["STATES", "Gate", "is_paused", "pause", "resume"]

PAUSED: Final = "paused"
"""A file of the client's folder; the site is paused while it is there."""
LOOK_EVERY_S: Final = 1.0
STATES: Final = ("open", "paused", "hours", "battery")


class Gate:
    """The owner's gate, as it is now: `pause` and a change of client.toml take effect within seconds."""

    def __init__(
        self,
        directory: Path,
        policy: Callable[[], PolicyConfig],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._policy = policy
        self._clock = clock

    def closed_by(self) -> str:
        """Return why the gate is closed, empty if it is open."""
        return self.state()[1]

    def state(self) -> tuple[str, str]:
        """Return which of `STATES` the gate is in, and why it is closed in words."""
        if is_paused(self._directory):
            return "paused", "paused by its owner; `meadow client resume` ends that"
        with suppress(ConfigError):  # every instruction is refused until client.toml is right again
            policy = self._policy()
            if policy.hours is not None and not _within(policy.hours, self._clock()):
                window = policy.hours.replace("-", " to ")
                return "hours", f"it takes part from {window} (policy.hours)"
            if policy.mains_power_only and not on_mains():
                return "battery", "this machine runs on its battery (policy.mains_power_only)"
        return "open", ""

    async def until_open(self) -> None:
        """Wait while the gate is closed."""
        while await asyncio.to_thread(self.closed_by):
            await asyncio.sleep(LOOK_EVERY_S)

    async def until_closed(self) -> str:
        """Wait while the gate is open; return why it is closed."""
        while not (why := await asyncio.to_thread(self.closed_by)):
            await asyncio.sleep(LOOK_EVERY_S)
        return why


def is_paused(directory: Path) -> bool:
    """Return whether the owner has paused the site."""
    return (directory / PAUSED).exists()


def pause(directory: Path) -> None:
    """Pause a site, durably, whether its agent runs or not.

    Raises:
        StoreError: the folder cannot be written.
    """
    write_file(directory / PAUSED, b"")


def resume(directory: Path) -> None:
    """End the pause of a site.

    Raises:
        StoreError: the folder cannot be written.
    """
    try:
        (directory / PAUSED).unlink(missing_ok=True)
        sync_folder(directory)
    except OSError as error:
        raise StoreError(f"{directory / PAUSED}: {error.strerror}") from error


def _within(hours: str, at_s: float) -> bool:
    begin, end = minutes_of(hours)
    now = time.localtime(at_s)
    minute = now.tm_hour * 60 + now.tm_min
    return begin <= minute < end if begin < end else minute >= begin or minute < end
