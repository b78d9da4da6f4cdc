"""Rank 0's side of the ranks: starts them, instructs them, watches them and restarts them.

If a rank is killed, hangs or runs out of memory, a new group repeats the round's work from its
last save, in the same training process. Over several machines the new group is of those that are
there, and repeats the work from its beginning.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from ...errors import DataError, MeadowError
from ..device_use import DeviceUse
from ..micro_batch import ran_out_of_memory
from .across import listen, make_store
from .hosts import Host, Hosts, RankProcess
from .instructions import (
    READY,
    Meeting,
    RankStart,
    RoundInstruction,
    Word,
    receive_message,
    send_message,
)
from .parallelism import Parallelism
from .plan import ParallelPlan
from .rendezvous import file_store, is_lost_rank, join, leave
from .stages import Stages

__all__ = ["ATTEMPTS_MAX", "RankGroup"]

ATTEMPTS_MAX = 5
"""How often a round is tried when ranks are lost or memory runs out."""
START_WAIT_S = 300.0
"""How long a rank may take to load the app."""
REPORT_WAIT_S = 2.0
"""Seconds within which a rank that has ended must report why."""
MODULE = "meadow.training.local.rank"

T = TypeVar("T")


class RankGroup:
    """The processes that train one app together; this one is rank 0.

    Attributes:
        generation: how often the ranks were started.
        plan: the present plan, which over several machines depends on those that are there.
    """

    def __init__(
        self,
        plan: ParallelPlan,
        use: DeviceUse,
        *,
        app_dir: str,
        sha256: str,
        folder: Path,
        stages: Stages | None = None,
        hosts: Hosts | None = None,
        copied: bool = False,
    ) -> None:
        """`folder` is where ranks meet; no other group may use it. `plan` is this machine's, `hosts`
        are the others, and with `copied` each has a copy of the model."""
        self.plan, self._use, self._stages = plan, use, stages
        self._own_plan, self._hosts, self._copied = plan, hosts, copied
        self._app = {"app_dir": app_dir, "sha256": sha256}
        self._folder = folder
        self._ranks: list[tuple[RankProcess, Connection]] = []
        self._parallelism: Parallelism | None = None
        self.generation = 0

    @property
    def pids(self) -> list[int]:
        """The process ids of the other ranks of this machine."""
        return [process.pid for process, _ in self._ranks if process.pid]

    def warm(self) -> Parallelism:
        """Start the ranks, if they are not there; returns when all have met.

        Raises:
            DataError: they cannot start, for instance because the app does not load there.
        """
        if self._parallelism is not None and self._still_there():
            return self._parallelism
        attempts = 1 if self._hosts is None else ATTEMPTS_MAX
        for attempt in range(1, attempts + 1):
            self.close()
            self.generation += 1
            try:
                self._parallelism = self._meet()
                return self._parallelism
            except DataError:
                self.close()
                raise
            except (EOFError, OSError, RuntimeError) as error:
                fault = self._first_fault()
                self.close()
                why = fault.text if fault else str(error)
                if attempt == attempts or (fault is not None and fault.kind != "lost"):
                    raise DataError(
                        f"{self.plan.ranks} processes did not come together: {why}"
                    ) from error
                print(f"meadow: the ranks meet again: {why}", file=sys.stderr)
        raise AssertionError("unreachable")

    def _still_there(self) -> bool:
        if self._hosts is not None and self._hosts.changed():
            return False
        return all(process.poll() is None for process, _ in self._ranks)

    def _meet(self) -> Parallelism:
        shutil.rmtree(self._folder, ignore_errors=True)  # of a group that was killed
        self._folder.mkdir(parents=True)
        if self._hosts is not None:
            others = self._hosts.gather()
            self.plan = self._own_plan.over(others, copied=self._copied)
            return self._meet_across(self._hosts, others)
        rendezvous = Path(tempfile.mkdtemp(dir=self._folder)) / "rendezvous"
        for rank in range(1, self.plan.ranks):
            send_message(self._started(), self._start(rank, rendezvous=str(rendezvous)))
        for _, connection in self._ranks:
            self._require_ready(connection)
        store = file_store(rendezvous, self.plan.ranks)
        return join(self.plan, 0, store, stages=self._stages)

    def _meet_across(self, hosts: Hosts, others: Sequence[Host]) -> Parallelism:
        plan, own = self.plan, hosts.address(0)
        names = ["", *(other.name for other in others)]
        for rank in range(1, plan.ranks):
            host = plan.host_of(rank)
            if host:
                process, connection = hosts.start(host, self._app["sha256"])
                self._ranks.append((process, connection))
            else:
                connection = self._started()
            send_message(connection, self._start(rank, address=hosts.address(host)))
        of_gloo = listen(own)  # before the store, which listens at the same address
        store, port = make_store(own, plan.ranks, timeout_s=plan.timeout_s)
        ports = [[] if host else [port, of_gloo] for host in range(len(plan.hosts))]
        for rank, (_, connection) in enumerate(self._ranks, 1):
            host = plan.host_of(rank)
            ports[host].append(int(self._require_ready(connection, names[host])))
        hosts.connect(ports)
        for _, connection in self._ranks:
            send_message(connection, asdict(Meeting(address=own, port=port)))
        return join(plan, 0, store, stages=self._stages)

    def _start(self, rank: int, *, rendezvous: str = "", address: str = "") -> dict[str, Any]:
        return RankStart(
            **self._app,
            rank=rank,
            plan=self.plan,
            use=self._use,
            rendezvous=rendezvous,
            address=address,
        ).to_json()

    def run(
        self,
        instruction: Callable[[], RoundInstruction],
        work: Callable[[RoundInstruction, Parallelism], T],
        memory_ran_out: Callable[[], None],
    ) -> T:
        """Have all ranks do a round's work; returns this rank's result.

        `instruction` and `work` are called again if a rank is lost, or, after `memory_ran_out`, if
        that is what happened.

        Raises:
            Exception: what the app raises on this rank.
            DataError: what it raises on another, or the ranks were lost in every attempt.
        """
        lost = ""
        for _ in range(ATTEMPTS_MAX):
            parallelism = self.warm()
            try:
                round_instruction = instruction()
                for _, connection in self._ranks:
                    send_message(connection, round_instruction.to_json())
                return work(round_instruction, parallelism)
            except MeadowError:
                self.close()  # the others wait for this one
                raise
            except Exception as error:
                fault = self._fault(error)
                self.close()
                if fault is None:
                    raise
                if fault.kind == "app":
                    raise DataError(f"in another process: {fault.text}") from error
                if fault.kind == "memory":
                    memory_ran_out()
                lost = fault.text
                print(f"meadow: the ranks are started again: {lost}", file=sys.stderr)
            except BaseException:
                self.close()
                raise
        raise DataError(f"ranks were lost {ATTEMPTS_MAX} times in a row, last: {lost}")

    def close(self) -> None:
        """End the other ranks."""
        ranks, self._ranks = self._ranks, []
        for process, connection in ranks:
            process.kill()
            connection.close()
            process.wait()
        self._parallelism = None
        leave()
        if self._hosts is not None:
            self._hosts.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _started(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                (sys.executable, "-m", MODULE, "--fd", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        connection = Connection(ours.detach())
        self._ranks.append((process, connection))
        return connection

    def _require_ready(self, connection: Connection, host: str = "") -> str:
        where = f" on host {host}" if host else ""
        if not connection.poll(START_WAIT_S):
            raise TimeoutError(f"a rank{where} was not ready within {START_WAIT_S:.0f} s")
        word = Word(**receive_message(connection))
        if word.kind != READY:
            raise DataError(f"in another process{where}: {word.text}")
        return word.text

    def _fault(self, error: Exception) -> Word | None:
        """Return what went wrong in the group, None if it is this rank's own app."""
        if ran_out_of_memory(error):
            return Word(kind="memory", text=str(error))
        if not is_lost_rank(error):
            return None
        return self._first_fault() or Word(kind="lost", text=str(error))

    def _first_fault(self) -> Word | None:
        """Return a rank's report on its end; the loss of another rank has the lowest priority."""
        until_s = time.monotonic() + REPORT_WAIT_S
        faults = []
        for process, connection in self._ranks:
            with contextlib.suppress(EOFError, OSError):
                if connection.poll(max(0.0, until_s - time.monotonic())):
                    faults.append(Word(**receive_message(connection)))
                    continue
            status = process.poll()
            if status is not None:
                faults.append(Word(kind="lost", text=f"a rank ended with status {status}"))
        faults.sort(key=lambda fault: ("memory", "app", "lost").index(fault.kind))
        return faults[0] if faults else None
