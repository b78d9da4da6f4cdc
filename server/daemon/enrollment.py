"""The enrolment listener: issues a certificate for a one-time token and a signing request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio

from ...errors import IdentityError
from ...transport import fleet_pb2 as pb
from ...transport.address import caller_of
from ...transport.authority import Authority
from ...transport.identity import identity_of
from ...transport.keys import requested_key
from ...transport.tokens import hash_token
from ..journal.journal import Journal
from ..journal.site_table import SiteRow
from .agent_registry import AgentRegistry
from .audit_limiter import Denials
from .audit_trail import AuditTrail
from .calls import FirstMessages, parse
from .peer_auth import Context
from .threads import JournalThread

__all__ = ["CertificateIssuer", "EnrollmentService"]

STRANGERS_MAX = 256
"""Bound of concurrent calls that have not sent a token yet."""
TOKEN_WAIT_S = 5.0
GUESS_S = 1.0
"""After some refusals, each further call of an address waits this long."""


class CertificateIssuer:
    """Signs clients' requests and records each client's certificate in the journal."""

    def __init__(
        self,
        authority: Authority,
        journal: Journal,
        thread: JournalThread,
        agents: AgentRegistry,
        *,
        days: float,
        clock: Callable[[], float],
    ) -> None:
        self._authority = authority
        self._journal = journal
        self._thread = thread
        self._agents = agents
        self._days = days
        self._clock = clock
        self.fleet_address = ""

    async def enroll(self, token: str, csr_pem: bytes) -> pb.Certificate:
        """Issue the first certificate of a token's client and use up the token, atomically.

        Raises:
            IdentityError: see `hash_token`, `SiteTable.redeem` and `certify`.
        """
        token_hash, now_s = hash_token(token), self._clock()

        def redeem() -> str:
            site = self._journal.sites.redeem(token_hash, now_s=now_s)
            detail = json.dumps({"client": site.name, "node_id": site.node_id})
            self._journal.events.record(0, "enrolled", detail, now_s=now_s)
            return site.name

        return await self._issue(redeem, csr_pem)

    async def certify(
        self, name: str, csr_pem: bytes, *, shown: str | None = None
    ) -> pb.Certificate:
        """Issue a short-lived certificate to `name` for the key of its signing request.

        `shown` is the serial of the client's present certificate. It stays valid until the new
        one is replaced, as the answer to this call may be lost.

        Raises:
            IdentityError: the request is malformed, or its key is not ECDSA on P-256.
        """
        return await self._issue(lambda: name, csr_pem, shown=shown)

    async def _issue(
        self, name_of: Callable[[], str], csr_pem: bytes, *, shown: str | None = None
    ) -> pb.Certificate:
        now = datetime.fromtimestamp(self._clock(), UTC)

        def write() -> tuple[bytes, SiteRow]:
            sites = self._journal.sites
            with self._journal.transaction():
                name = name_of()
                pem = self._authority.issue_client(csr_pem, name=name, now=now, days=self._days)
                identity = identity_of(pem)
                until_s = identity.not_after.timestamp()
                sites.certify(name, identity.serial, shown=shown, until_s=until_s)
            site = sites.get(name)
            assert site is not None
            return pem, site

        pem, site = await self._thread(write)
        self._agents.update(site)
        return pb.Certificate(
            certificate_pem=pem,
            ca_pem=self._authority.certificate_pem,
            client=site.name,
            node_id=site.node_id,
            fleet_address=self.fleet_address,
        )


class EnrollmentService:
    """Redeems a one-time token for a certificate.

    A caller is unknown until it sends a token. So the wait for it is short, and when too many calls
    wait, the oldest of the address with the most is ended. An honest request arrives at once.
    """

    def __init__(self, issuer: CertificateIssuer, denials: Denials, audit: AuditTrail) -> None:
        self._issuer = issuer
        self._denials = denials
        self._audit = audit
        self._strangers = FirstMessages(STRANGERS_MAX, STRANGERS_MAX, in_turn=False)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return the handler of the call."""
        return {
            "Enroll": grpc.stream_unary_rpc_method_handler(
                self.enroll, response_serializer=pb.Certificate.SerializeToString
            )
        }

    async def enroll(self, requests: AsyncIterator[bytes], context: Context) -> pb.Certificate:
        """Redeem a one-time token."""
        address = caller_of(context.peer())
        first = await self._strangers.next(requests, address, TOKEN_WAIT_S)
        return await self._redeem(parse(pb.EnrollRequest, first), address, context)

    async def _redeem(
        self, request: pb.EnrollRequest, address: str, context: Context
    ) -> pb.Certificate:
        requested_key(request.csr_pem)  # its error is reported in full; a token's is not
        caller = {"role": "client", "call": "Enrollment.Enroll", "address": address}
        try:
            issued = await self._issuer.enroll(request.token, request.csr_pem)
            node = {"node": issued.node_id}
            await self._audit.done(who=issued.client, what=node, outcome="ok", **caller)
            return issued
        except IdentityError as error:
            detail = {"address": address, "reason": str(error)}
            audited = {**caller, "who": "", "role": ""}
            if not await self._denials.record(
                detail, caller=address, kind="enrollment_refused", audited=audited
            ):
                await asyncio.sleep(GUESS_S)
            text = "the token is not valid: unknown, used or expired; ask for a new one"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
            raise AssertionError("abort always raises") from None
