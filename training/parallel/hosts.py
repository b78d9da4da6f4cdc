"""Ranks on several machines of a site: what a group of ranks asks of whoever carries their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

__all__ = ["Host", "Hosts", "RankProcess"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Another machine that is there, and the devices of the ranks that it has room for."""

    name: str
    devices: tuple[str, ...]


class RankProcess(Protocol):
    """A rank's process, here or on another machine; that of another machine has the id 0."""

    @property
    def pid(self) -> int:
        """Return the process id."""

    def poll(self) -> int | None:
        """Return the status with which it has ended, None while it runs."""

    def kill(self) -> None:
        """End it."""

    def wait(self) -> int:
        """Wait for its end; returns the status."""


class Hosts(Protocol):
    """The other machines. Host 0 is this one, and those of an attempt are numbered from 1."""

    def gather(self) -> tuple[Host, ...]:
        """Begin an attempt with the machines that are there, after waiting for those that are not;
        everything of the attempt before has ended."""

    def changed(self) -> bool:
        """Say whether an attempt that began now would have other machines."""

    def address(self, host: int) -> str:
        """Return the loopback address of a host's ranks in this attempt, the same on all machines."""

    def start(self, host: int, sha256: str) -> tuple[RankProcess, Connection]:
        """Start a rank on another machine, of the app with this hash; returns it, and the way to it.

        Raises:
            DataError: the machine cannot, for instance because it does not have the app.
            OSError: the machine was lost.
        """

    def connect(self, ports: Sequence[Sequence[int]]) -> None:
        """Let all machines reach these ports of each host, at its address.

        Raises:
            OSError: a machine was lost, or cannot.
        """

    def end(self) -> None:
        """End everything of the attempt, on all machines."""
