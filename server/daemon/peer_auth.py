"""Authenticates and admits callers by the certificates that the TLS handshake has verified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from ...errors import IdentityError, StoreError
from ...transport.identity import Identity, Role, peer_identity
from ..journal.site_table import SiteRow
from .agent_registry import AgentRegistry
from .audit_limiter import Denials

__all__ = ["REVOKED", "Callers", "Context", "caller"]

Context = grpc.aio.ServicerContext[Any, Any]
REVOKED = "this client was revoked; ask the server's operator for a new token"
REPLACED = (
    "this administrator's certificate was replaced; use the admin.json of the server's folder"
)


def caller(context: Context, *, role: Role) -> Identity:
    """Return the identity in the caller's certificate.

    Raises:
        IdentityError: the caller has no certificate, or one of another role.
    """
    identity = peer_identity(context.auth_context())
    if identity.role != role:
        raise IdentityError(f"{identity.name} has the role {identity.role!r}, not {role!r}")
    return identity


class Callers:
    """Admits enrolled clients and the administrator, and records refused callers."""

    def __init__(
        self,
        agents: AgentRegistry,
        denials: Denials,
        *,
        admin_serial: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        """`admin_serial` returns the serial of the administrator's valid certificate."""
        self._agents = agents
        self._denials = denials
        self._admin_serial = admin_serial
        self._clock = clock

    async def site(self, context: Context, *, claimed: str | None = None) -> SiteRow:
        """Return the caller's site; abort the call if it is not admitted.

        A connection may outlive its certificate, so every call is checked.
        """
        try:
            identity = caller(context, role="client")
        except IdentityError as error:
            await self._denials.record({"call": "fleet", "reason": str(error)})
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        site = self._agents.site(identity.name)
        problem = _problem(site, identity, claimed, self._clock())
        if site is None or problem:
            name = None if claimed is None else claimed[:80]
            detail = {"client": identity.name, "claimed": name, "reason": problem}
            await self._denials.record(detail, caller=identity.name)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, problem or "unknown client")
        return site

    async def admin(self, context: Context) -> str:
        """Return the serial of the administrator's certificate; abort the call of anybody else."""
        try:
            identity = caller(context, role="admin")
            if identity.serial != self._admin_serial():
                raise IdentityError(REPLACED)
        except (IdentityError, StoreError) as error:
            await self._denials.record({"call": "admin", "reason": str(error)})
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        return identity.serial


def _problem(
    site: SiteRow | None, identity: Identity, claimed: str | None, now_s: float
) -> str | None:
    if site is None:
        return f"client {identity.name!r} is not enrolled here"
    if claimed is not None and claimed != identity.name:
        return f"the certificate is for {identity.name!r}, not for {claimed[:80]!r}"
    if site.revoked_at_s is not None:
        return REVOKED
    if identity.serial not in (site.serial, site.previous_serial):
        return f"this certificate of {identity.name!r} was replaced by a newer one"
    if identity.not_after.timestamp() < now_s:
        return f"the certificate of {identity.name!r} has expired"
    return None
