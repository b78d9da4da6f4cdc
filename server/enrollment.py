"""The enrolment listener: a one-time token and a signing request for a certificate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio

from ..errors import IdentityError, MeadowError
from ..transport import fleet_pb2 as pb
from ..transport.address import caller_of
from ..transport.authority import Authority
from ..transport.identity import identity_of
from ..transport.keys import requested_key
from ..transport.tokens import hash_token
from .callers import Context, abort
from .calls import FirstMessages, parse
from .denials import Denials
from .journal import Journal
from .links import Links
from .threads import JournalThread

__all__ = ["CertificateIssuer", "EnrollmentService"]

STRANGERS_MAX = 256
"""So many calls at once that have not shown a token."""
TOKEN_WAIT_S = 5.0
GUESS_S = 1.0
"""After some refusals, an address waits this long for each of the next."""


class CertificateIssuer:
    """Signs clients' requests and writes down which certificate is theirs."""

    def __init__(
        self,
        authority: Authority,
        journal: Journal,
        thread: JournalThread,
        links: Links,
        *,
        days: float,
        clock: Callable[[], float],
    ) -> None:
        self._authority = authority
        self._journal = journal
        self._thread = thread
        self._links = links
        self._days = days
        self._clock = clock
        self.fleet_address = ""

    async def certify(
        self, name: str, csr_pem: bytes, *, shown: str | None = None
    ) -> pb.Certificate:
        """Issue a short-lived certificate to `name`, for the key of its signing request.

        `shown` is the serial of the certificate that it has now, which stays good until the new
        one is replaced in its turn: the answer to this call may be lost.

        Raises:
            IdentityError: the request is malformed, or its key is not of the kind in use.
        """
        now = datetime.fromtimestamp(self._clock(), UTC)
        pem = self._authority.issue_client(csr_pem, name=name, now=now, days=self._days)
        identity = identity_of(pem)
        until_s = identity.not_after.timestamp()
        await self._thread(
            self._journal.sites.certify, name, identity.serial, shown=shown, until_s=until_s
        )
        site = await self._thread(self._journal.sites.get, name)
        assert site is not None
        self._links.update(site)
        return pb.Certificate(
            certificate_pem=pem,
            ca_pem=self._authority.certificate_pem,
            client=name,
            node_id=site.node_id,
            fleet_address=self.fleet_address,
        )


class EnrollmentService:
    """Takes a token once and answers with a certificate.

    Whoever calls is a stranger until a token is shown: the wait for it is short, and where many are waited
    for, the address that has most of them loses its oldest. An honest request is there at once.
    """

    def __init__(
        self,
        journal: Journal,
        thread: JournalThread,
        issuer: CertificateIssuer,
        denials: Denials,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._thread = thread
        self._issuer = issuer
        self._denials = denials
        self._clock = clock
        self._strangers = FirstMessages(STRANGERS_MAX, STRANGERS_MAX)

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
        try:
            first = await self._strangers.next(requests, address, TOKEN_WAIT_S)
            request = parse(pb.EnrollRequest, first)
        except MeadowError as error:
            await abort(context, error)
        return await self._redeem(request, address, context)

    async def _redeem(
        self, request: pb.EnrollRequest, address: str, context: Context
    ) -> pb.Certificate:
        now_s = self._clock()
        try:
            requested_key(request.csr_pem)  # a malformed request must not use up the token
        except IdentityError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        try:
            token_hash = hash_token(request.token)
            site = await self._thread(self._journal.sites.redeem, token_hash, now_s=now_s)
            certificate = await self._issuer.certify(site.name, request.csr_pem)
        except IdentityError as error:
            detail = {"address": address, "reason": str(error)}
            if not await self._denials.record(detail, caller=address, kind="enrollment_refused"):
                await asyncio.sleep(GUESS_S)
            text = "the token is not valid: unknown, used or expired; ask for a new one"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        except MeadowError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        await self._record("enrolled", {"client": site.name, "node_id": site.node_id})
        return certificate

    async def _record(self, kind: str, detail: dict[str, object]) -> None:
        await self._thread(
            self._journal.events.record, 0, kind, json.dumps(detail), now_s=self._clock()
        )
