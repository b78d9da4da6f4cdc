"""The certificate's life: renewed in time, complete after a crash, revoked for good."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from meadow.client.owner.identity_folder import IdentityFolder
from meadow.errors import IdentityError
from meadow.transport.authority import Authority

from ..conftest import Client


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


@pytest.mark.parametrize("name", ["ca.pem", "certificate.pem", "key.pem"])
def test_no_flipped_bit_is_shown_to_a_server(client: Client, name: str) -> None:
    """Whichever it is, the agent ends with a sentence that names the file, or nothing is changed."""
    identities = client.enroll()
    good = identities.load()
    path = identities.folder / name
    data = path.read_bytes()
    refused = 0
    for place in range(0, len(data) * 8, 61):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            found = identities.load()
        except IdentityError as error:
            refused += 1
            assert str(identities.folder) in str(error) and "enrol again" in str(error)
        else:
            assert (found.ca_pem, found.certificate) == (good.ca_pem, good.certificate)
    assert refused > 20


def test_an_agent_with_a_damaged_authority_says_so_and_ends(client: Client) -> None:
    """It does not try for ever, with gRPC's words."""

    async def scenario() -> None:
        await client.fleet.start()
        ca = client.enroll().folder / "ca.pem"
        data = bytearray(ca.read_bytes())
        data[200] ^= 1
        ca.write_bytes(data)
        with pytest.raises(IdentityError, match=r"ca\.pem cannot be used: .* enrol again"):
            await client.agent().run()
        await client.fleet.stop()

    asyncio.run(scenario())


def test_another_server_in_its_place_is_said_to_be_one(client: Client, tmp_path: Path) -> None:
    """The line says whose certificate is missing, and what to do; the agent tries on."""

    async def scenario() -> None:
        await client.fleet.start()
        client.enroll()
        client.fleet.authority = Authority.create(now=datetime.now(UTC))
        await client.fleet.stop()
        await client.fleet.start()
        async with client.running():
            await client.hear("disconnected", 1)
        await client.fleet.stop()

    asyncio.run(scenario())
    assert "has no certificate of this client's authority" in client.texts("disconnected")[0]
