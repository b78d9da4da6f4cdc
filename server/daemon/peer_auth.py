"""Authenticates and admits callers by the certificates that the TLS handshake has verified.

Who may make which call is in `routes.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio

from ... import __version__
from ...errors import IdentityError, StoreError
from ...transport.address import caller_of
from ...transport.fleet_pb2 import Hello
from ...transport.identity import Identity, Role, peer_identity
from ...transport.protocol import PROTOCOL_VERSION
from ..journal.site_table import SiteRow
from .agent_registry import AgentRegistry
from .audit_limiter import Allowance, Denials
from .roles import ROLE_WORDS, RoleFolder
from .routes import ENROLMENT, ROUTES, Route

__all__ = ["REVOKED", "Callers", "Context", "caller"]

Context = grpc.aio.ServicerContext[Any, Any]
FOREIGN_EVERY_S = 3600.0
REVOKED = "this client was revoked; ask the server's operator for a new token"


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
    """Admits callers to the calls of the table of routes, and records refused ones."""

    def __init__(
        self,
        agents: AgentRegistry,
        roles: RoleFolder,
        denials: Denials,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._agents = agents
        self._roles = roles
        self._denials = denials
        self._foreign = Allowance(burst=1, every_s=FOREIGN_EVERY_S, clock=clock)
        self._clock = clock

    async def admit(self, context: Context, call: str) -> None:
        """Abort a call whose caller may not make it; a call without a route, whoever makes it."""
        route = ROUTES.get(call)
        if route is ENROLMENT:  # its listener asks for no certificate; a token is checked instead
            return
        if route is not None and route.roles == ("client",):
            await self.site(context, call=call)
        else:
            await self.admin(context, call)

    async def site(
        self, context: Context, *, claimed: str | None = None, call: str = "Fleet"
    ) -> SiteRow:
        """Return the caller's site; abort the call if it is not admitted.

        A connection may outlive its certificate, so every call is checked.
        """
        try:
            identity = caller(context, role="client")
        except IdentityError as error:
            refused = {"call": "fleet", "reason": str(error)}
            await self._denials.record(refused, audited=_audited(context, call))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        site = self._agents.site(identity.name)
        problem = _problem(site, identity, claimed, self._clock())
        if site is None or problem:
            name = None if claimed is None else claimed[:80]
            detail = {"client": identity.name, "claimed": name, "reason": problem}
            audited = _audited(context, call)
            await self._denials.record(detail, caller=identity.name, audited=audited)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, problem or "unknown client")
        return site

    async def refuse_protocol(self, context: Context, hello: Hello) -> None:
        """Abort the stream of an agent with another version of the protocol.

        The agent tries again until somebody upgrades it, so this is recorded once an hour.
        """
        older, newer = "the agent's", "the server's"
        if hello.protocol > PROTOCOL_VERSION:
            older, newer = newer, older
        reason = (
            f"the client speaks protocol {hello.protocol}, not {PROTOCOL_VERSION}: this server has Meadow "
            f"{__version__}, and the client {hello.version[:40]!r}; upgrade {older} Meadow, which is older than "
            f"{newer}"
        )
        name = peer_identity(context.auth_context()).name
        if self._foreign.take(name):
            detail = {"client": name, "claimed": None, "reason": reason}
            await self._denials.record(detail, caller=name, audited=_audited(context, "Fleet"))
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)

    async def admin(self, context: Context, call: str) -> Identity:
        """Return who administers the server by this call; abort the call of anybody else.

        A certificate may be revoked while its connection lasts, so every call is checked.
        """
        route = ROUTES.get(call, Route(()))
        try:
            identity = peer_identity(context.auth_context())
            if identity.role in ROLE_WORDS.values():
                self._roles.check(identity, datetime.fromtimestamp(self._clock(), UTC))
            if identity.role not in route.roles:
                text = f"{identity.name} has the role {identity.role!r}, {_not_of(route, call)}"
                raise IdentityError(text)
        except (IdentityError, StoreError) as error:
            detail = {"call": "admin", "reason": str(error)}
            await self._denials.record(detail, audited=_audited(context, call))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        return identity


def _audited(context: Context, call: str) -> dict[str, str]:
    """Return what the audit log says of a caller that was refused."""
    who = role = ""
    with suppress(IdentityError):
        identity = peer_identity(context.auth_context())
        who, role = identity.name, identity.role
    return {"who": who, "role": role, "call": call, "address": caller_of(context.peer())}


def _not_of(route: Route, call: str) -> str:
    roles = [repr(role) for role in route.roles]
    if not roles:
        return f"and {call} is for nobody"
    return f"not {' or '.join(filter(None, [', '.join(roles[:-1]), roles[-1]]))}, for {call}"


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
