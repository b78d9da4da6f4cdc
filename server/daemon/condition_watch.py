"""Looks, every few seconds, which conditions hold that an operator should know of, and records when each
begins and ends: a site that is gone, certificates near their end, a disk that fills, a privacy budget
that is nearly spent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ...config.server_config import NotifyConfig, StorageConfig
from ...errors import MeadowError
from ...transport.identity import identity_of, read_certificate
from ..journal.conditions import CONDITIONS, Condition, standing
from ..journal.journal import Journal
from .agent_registry import AgentRegistry
from .server_dir import AdminIdentity, ServerFolder

__all__ = ["AUTHORITY", "QUOTA_PART", "ConditionWatch", "is_ending"]

LOG = logging.getLogger("meadow.server")
LOOKED_EVERY_S: Final = 5.0
ENDING_PART: Final = 0.15
"""A certificate is near its end when this part of its lifetime is left; agents renew at a third."""
ENDING_DAYS_MAX: Final = 30.0
AUTHORITY: Final = "the authority"
AUTHORITY_DAYS: Final = 90.0
"""Of the authority's: every client will have to enrol anew."""
QUOTA_PART: Final = 0.8
RECOVERED_TIMES: Final = 1.2
"""A condition with a bound ends when the bound is kept by so much: it does not come and go."""
EPSILON_PART: Final = 0.9
EPSILON_S_MAX: Final = 300.0
Record = Callable[[str, Mapping[str, Any]], Awaitable[None]]


def is_ending(until_s: float, days: float, *, now_s: float, of_authority: bool = False) -> bool:
    """Return whether a certificate that was issued for so many days is near its end, or past it."""
    bound = AUTHORITY_DAYS if of_authority else min(ENDING_DAYS_MAX, ENDING_PART * days)
    return until_s - now_s < 86400 * bound


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What was seen of a condition: that it holds, or that it does not."""

    kind: str
    about: str = ""
    holds: bool
    detail: Mapping[str, Any] = field(default_factory=dict)


class ConditionWatch:
    """Knows which conditions hold; `look` finds out what has changed."""

    def __init__(
        self,
        server_folder: ServerFolder,
        journal: Journal,
        agents: AgentRegistry,
        *,
        server_certificate: Callable[[], bytes],
        used_bytes: Callable[[], int | None],
        record: Record,
        clock: Callable[[], float],
    ) -> None:
        """`used_bytes` is what the folder holds, if it has a quota; `record` records an event of the
        server's."""
        self._folder, self._agents = server_folder, agents
        self._server_certificate, self._used_bytes = server_certificate, used_bytes
        self._storage = server_folder.config.storage or StorageConfig()
        self._record, self._clock = record, clock
        self.standing: dict[Condition, dict[str, Any]] = standing(journal.events.after(0))
        """The conditions that hold, with their details."""
        self._away_since_s: dict[str, float] = {}
        self._ledger_seen: object = None

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # a defect must not end the daemon, nor go unseen
                LOG.exception("the server's conditions cannot be seen")
            await asyncio.sleep(LOOKED_EVERY_S)

    async def look(self) -> None:
        """Record what has begun and ended since the last look."""
        seen = [
            *self._sites(),
            *await asyncio.to_thread(lambda: [*self._certificates(), *self._disk()]),
        ]
        seen += await self._epsilons()
        for each in seen:
            known = (each.kind, each.about)
            if each.holds == (known in self.standing):
                continue
            detail = {**({"about": each.about} if each.about else {}), **each.detail}
            if each.holds:
                await self._record(each.kind, detail)
                self.standing[known] = detail
            else:
                await self._record(CONDITIONS[each.kind], detail)
                del self.standing[known]

    # ------------------------------------------------------------------ what there is to see

    def _sites(self) -> Iterable[_Seen]:
        """A daemon that has just begun waits for its sites as long as for one that goes.

        Of thousands of sites, only those are seen of which something holds or has held.
        """
        minutes = (self._folder.config.notify or NotifyConfig()).site_gone_minutes
        now_s = self._clock()
        days = self._folder.config.certificate_days
        enrolled = [s for s in self._agents.sites() if s.serial and s.revoked_at_s is None]
        for site in enrolled:
            if self._agents.get(site.node_id) is not None:
                self._away_since_s.pop(site.name, None)
                if ("site_gone", site.name) in self.standing:
                    yield _Seen(kind="site_gone", about=site.name, holds=False)
            elif now_s - self._away_since_s.setdefault(site.name, now_s) >= 60 * minutes:
                yield _Seen(
                    kind="site_gone", about=site.name, holds=True, detail={"minutes": minutes}
                )
            ending = is_ending(site.certificate_until_s, days, now_s=now_s)
            if ending or ("certificate_ending", site.name) in self.standing:
                yield self._certificate(
                    site.name, site.certificate_until_s, days,
                    "it has to connect before, or to enrol again",
                )  # fmt: skip
        for name in self._away_since_s.keys() - {site.name for site in enrolled}:
            del self._away_since_s[name]

    def _certificates(self) -> Iterable[_Seen]:
        folder = self._folder
        for name, pem, remedy in (
            (
                AUTHORITY,
                folder.authority.certificate_pem,
                "make a new server, where clients enrol",
            ),
            ("the server", self._server_certificate(), "restart the daemon"),
        ):
            found = read_certificate(pem)
            until_s = found.not_valid_after_utc.timestamp()
            days = (until_s - found.not_valid_before_utc.timestamp()) / 86400
            yield self._certificate(name, until_s, days, remedy)
        with suppress(MeadowError):  # `meadow server doctor` says what is wrong with it
            admin = identity_of(AdminIdentity.read(folder.folder / "admin.json").certificate_pem)
            days = (admin.not_after - admin.not_before).total_seconds() / 86400
            remedy = "`meadow server renew-admin`"
            yield self._certificate("admin.json", admin.not_after.timestamp(), days, remedy)
        with suppress(MeadowError):
            for entry in folder.roles.entries():
                remedy = f"revoke the role of {entry.name}, and add it again"
                yield self._certificate(f"role {entry.name}", entry.until_s, math.inf, remedy)

    def _certificate(self, name: str, until_s: float, days: float, remedy: str) -> _Seen:
        left_days = (until_s - self._clock()) / 86400
        return _Seen(
            kind="certificate_ending",
            about=name,
            holds=is_ending(until_s, days, now_s=self._clock(), of_authority=name == AUTHORITY),
            detail={"days": round(left_days, 2), "remedy": remedy},
        )

    def _disk(self) -> Iterable[_Seen]:
        free = shutil.disk_usage(self._folder.folder).free
        yield self._above("disk_low", self._storage.free_bytes_min, free, {"free_bytes": free})
        used, quota = self._used_bytes(), self._storage.bytes_max
        if used is not None and quota is not None:
            detail = {"used_bytes": used, "bytes_max": quota}
            yield self._above("storage_near", used, QUOTA_PART * quota, detail)

    def _above(self, kind: str, value: float, bound: float, detail: Mapping[str, Any]) -> _Seen:
        """A value that is above its bound, until it is well below."""
        margin = RECOVERED_TIMES if (kind, "") in self.standing else 1.0
        return _Seen(kind=kind, holds=value * margin > bound, detail=detail)

    async def _epsilons(self) -> list[_Seen]:
        """The epsilons of all runs together; a process of its own computes them when they have changed."""
        config = self._folder.config
        bounds = {"client": config.epsilon_max, "record": config.record_epsilon_max}
        ledger = self._folder.folder / "privacy.sqlite"
        if not any(bounds.values()) or not ledger.exists():
            return []
        logs = [ledger, ledger.with_name(f"{ledger.name}-wal")]
        changed = [(each.stat().st_mtime_ns, each.stat().st_size) for each in logs if each.exists()]
        if changed == self._ledger_seen:
            return []
        self._ledger_seen = changed
        spent = await _spent(self._folder)
        seen = []
        for unit, key in (("client", "epsilon"), ("record", "record_epsilon")):
            if (bound := bounds[unit]) is None or key not in spent:
                continue
            epsilon = math.inf if spent[key] is None else float(spent[key])
            detail = {"epsilon": f"{epsilon:.4g}", "bound": f"{bound:g}"}
            holds = epsilon >= EPSILON_PART * bound
            seen.append(_Seen(kind="epsilon_near", about=unit, holds=holds, detail=detail))
        return seen


async def _spent(server_folder: ServerFolder) -> Mapping[str, Any]:
    """Return what `meadow server privacy` says; nothing if it cannot say it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "meadow", "server", "privacy", "--format", "json"),
        *("--dir", str(server_folder.folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(EPSILON_S_MAX):
            printed, errors = await process.communicate()
    except TimeoutError:
        LOG.error("the epsilon of all runs is not known after %.0f s", EPSILON_S_MAX)
        return {}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        LOG.error(
            "the epsilon of all runs is not known: %s", errors.decode(errors="replace")[-300:]
        )
        return {}
    return dict(json.loads(printed))
