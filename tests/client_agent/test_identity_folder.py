"""The certificate's life: renewed in time, complete after a crash, revoked for good."""

from __future__ import annotations

import asyncio

import pytest

from meadow.client.identity_folder import IdentityFolder
from meadow.errors import IdentityError

from .conftest import Client


def test_certificate_is_renewed(client: Client) -> None:
    """A certificate near its end is replaced, with a fresh key, and used at once."""

    async def scenario() -> tuple[str, str]:
        # It was issued as of five minutes ago, so two thirds of its life are over.
        async with client.connected(days=0.001):
            await client.fleet.until(lambda: len(client.fleet.serials) == 2)
            first, second = client.fleet.serials
            return first, second

    first, second = asyncio.run(scenario())
    identity = IdentityFolder(client.directory).load()
    assert first != second == identity.certificate.serial
    assert client.fleet.renewals == 1
    assert client.texts("renewed") == ["the certificate was renewed"]


def test_interrupted_renewal_is_completed(client: Client) -> None:
    """A crash between the two files of a renewal leaves an identity that can be used."""

    async def scenario() -> IdentityFolder:
        await client.fleet.start()
        identities = client.enroll()
        request = identities.begin_renewal("site-1")
        certificate = client.fleet.certify(request)
        (identities.folder / "certificate.pem").write_bytes(certificate.certificate_pem)
        await client.fleet.stop()
        return identities

    identities = asyncio.run(scenario())
    next_key = (identities.folder / "key.next.pem").read_bytes()
    assert identities.load().key_pem == next_key
    assert (identities.folder / "key.pem").read_bytes() == next_key
    assert (identities.folder / "key.pem").stat().st_mode & 0o777 == 0o600


def test_revoked_client_stops(client: Client) -> None:
    """A client that the server has revoked says so and ends, instead of trying for ever."""

    async def scenario() -> None:
        await client.fleet.start()
        client.enroll()
        task = asyncio.create_task(client.agent().run())
        await client.fleet.until(lambda: client.fleet.hellos)
        client.fleet.revoked = True
        client.fleet.disconnect()
        with pytest.raises(IdentityError, match="revoked"):
            await task
        with pytest.raises(IdentityError, match="revoked"):
            await client.agent().run()
        await client.fleet.stop()

    asyncio.run(scenario())
