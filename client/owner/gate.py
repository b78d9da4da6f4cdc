"""When a site takes part: not while its owner has paused it, nor outside of the owner's windows.

While the gate is closed the agent is not connected: it begins no instruction, and nothing leaves. Work that
has begun is finished, and its answer waits. What the site's own work changes, its load and its temperature,
would open and close the gate in turns: once they have closed it, it stays closed for a while.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ...config.client_config import PolicyConfig, minutes_of
from ...errors import ConfigError, StoreError
from ...machine.metered import metered_network, told_by_network_manager
from ...machine.power import on_mains
from ...machine.temperature import hottest
from ...transport.durable import sync_folder, write_file

__all__ = ["STATES", "Gate", "is_paused", "pause", "resume"]

PAUSED: Final = "paused"
"""A file of the client's folder; the site is paused while it is there."""
LOOK_EVERY_S: Final = 1.0
STATES: Final = ("open", "paused", "hours", "battery", "metered", "load", "temperature")
SETTLING_S: Final = 60.0
"""So long it stays closed, at least, after the load or the temperature has closed it."""
TOLD_AGAIN_S: Final = 30.0
"""NetworkManager is asked so often."""


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
        self._settling: tuple[PolicyConfig, tuple[str, str], float] | None = None
        self._told: dict[str, tuple[bool, float]] = {}

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
            if policy.unmetered_only:
                metered = metered_network(policy.metered_interfaces, told=self._is_metered)
                if metered:
                    return (
                        "metered",
                        f"the network in use, {metered}, is metered (policy.unmetered_only)",
                    )
            return self._strained(policy) or ("open", "")
        return "open", ""

    def _strained(self, policy: PolicyConfig) -> tuple[str, str] | None:
        """Return what is too high, the load or the temperature, or was until a moment ago."""
        now_s = self._clock()
        if why := _load(policy.load_max):
            self._settling = policy, ("load", why), now_s
        elif why := _heat(policy.temperature_max_c):
            self._settling = policy, ("temperature", why), now_s
        elif self._settling is not None:
            before, _, since_s = self._settling
            if before != policy or not 0 <= now_s - since_s < SETTLING_S:
                self._settling = None
        return None if self._settling is None else self._settling[1]

    def _is_metered(self, interface: str) -> bool:
        now_s = self._clock()
        metered, at_s = self._told.get(interface, (False, -TOLD_AGAIN_S))
        if not 0 <= now_s - at_s < TOLD_AGAIN_S:
            metered = told_by_network_manager(interface)
            self._told = {interface: (metered, now_s)}
        return metered

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


def _load(bound: float | None) -> str:
    if bound is None:
        return ""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return "" if load <= bound else f"the load is {load:.2f} a core (policy.load_max = {bound:g})"


def _heat(bound: float | None) -> str:
    if bound is None:
        return ""
    key = "policy.temperature_max_c"
    if (found := hottest()) is None:
        return f"no temperature sensor can be read; remove {key}, which cannot be kept"
    celsius, sensor = found
    return "" if celsius <= bound else f"{sensor} is at {celsius:.0f} degrees ({key} = {bound:g})"
