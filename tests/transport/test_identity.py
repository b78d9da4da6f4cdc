"""Certificates say who somebody is, for a while; only the authority can say it."""

from __future__ import annotations

import base64
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from meadow.errors import IdentityError, StoreError
from meadow.transport.authority import Authority
from meadow.transport.identity import (
    check_client_name,
    fingerprint_of,
    identity_of,
    match_fingerprint,
    peer_identity,
    read_certificate,
)
from meadow.transport.keys import create_request, new_key, pem_of, read_key, requested_key
from meadow.transport.tokens import create_token, hash_token, match_token

NOW = datetime(2031, 5, 17, 12, 0, tzinfo=UTC)
AUTHORITY = Authority.create(now=NOW)
KEY = new_key()


def request_of(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey = KEY,
    change: Callable[
        [x509.CertificateSigningRequestBuilder], x509.CertificateSigningRequestBuilder
    ] = lambda builder: builder,
) -> bytes:
    """Make a request for a certificate, not necessarily one that we would make."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
    builder = change(x509.CertificateSigningRequestBuilder().subject_name(subject))
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM)


REQUEST = request_of()


def test_a_client_gets_what_the_server_knows(tmp_path: Path) -> None:
    """Name, role and lifetime come from the server; the key is the client's and stays there."""
    request = create_request("clinic-a", tmp_path / "key.pem")
    pem = AUTHORITY.issue_client(request, name="clinic-b", role="admin", now=NOW, days=30)
    identity = AUTHORITY.verify(pem)
    assert identity == identity_of(pem)
    assert (identity.name, identity.role) == ("clinic-b", "admin")
    assert identity.not_after == NOW + timedelta(days=30)
    assert identity.not_before == NOW - timedelta(minutes=5)
    assert identity.fingerprint == fingerprint_of(pem)
    certificate = x509.load_pem_x509_certificate(pem)
    key = read_key((tmp_path / "key.pem").read_bytes())
    assert certificate.public_key() == key.public_key()
    assert certificate.serial_number == int(identity.serial, 16)


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    """A key's file has mode 0600, and a second request is for the same key."""
    path = tmp_path / "key.pem"
    first = requested_key(create_request("a", path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["key.pem"]
    content = path.read_bytes()
    assert requested_key(create_request("a", path)) == first
    assert path.read_bytes() == content


def test_requests_that_cannot_be_made(tmp_path: Path) -> None:
    """A bad name makes no key; what is no key is not overwritten; a missing folder is an error."""
    with pytest.raises(IdentityError, match="cannot be a name"):
        create_request("A", tmp_path / "key.pem")
    assert not list(tmp_path.iterdir())
    (tmp_path / "key.pem").write_bytes(b"precious")
    with pytest.raises(IdentityError, match="private key"):
        create_request("a", tmp_path / "key.pem")
    assert (tmp_path / "key.pem").read_bytes() == b"precious"
    with pytest.raises(StoreError):
        create_request("a", tmp_path / "missing" / "key.pem")


def test_a_request_gets_no_powers() -> None:
    """Extensions that a request asks for are not in the certificate."""
    pem = AUTHORITY.issue_client(
        request_of(
            change=lambda builder: builder.add_extension(
                x509.BasicConstraints(ca=True, path_length=None), critical=True
            ).add_extension(x509.SubjectAlternativeName([x509.DNSName("evil")]), critical=False)
        ),
        name="a",
        now=NOW,
        days=1,
    )
    extensions = x509.load_pem_x509_certificate(pem).extensions
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    with pytest.raises(x509.ExtensionNotFound):
        extensions.get_extension_for_class(x509.SubjectAlternativeName)


def forged() -> bytes:
    """Make a request whose signature is another key's."""
    der = x509.load_pem_x509_csr(REQUEST).public_bytes(serialization.Encoding.DER)
    other = x509.load_pem_x509_csr(request_of(new_key())).public_bytes(serialization.Encoding.DER)
    cut = der.rindex(b"\x30\x0a\x06\x08")  # where the signature's algorithm begins
    sequence = der[4 if der[1] == 0x82 else 3 : cut] + other[other.rindex(b"\x30\x0a\x06\x08") :]
    whole = b"\x30\x81" + bytes([len(sequence)]) + sequence
    return x509.load_der_x509_csr(whole).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("request_pem", "text"),
    [
        (b"", "cannot be read"),
        (b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----", "read"),
        (AUTHORITY.certificate_pem, "cannot be read"),
        (AUTHORITY.key_pem, "cannot be read"),
        (REQUEST + b"\n" * 20_000, "exceeds 16384"),
        (request_of(rsa.generate_private_key(65537, 2048)), "another key"),
        (request_of(ed25519.Ed25519PrivateKey.generate()), "another key"),
        (request_of(ec.generate_private_key(ec.SECP384R1())), "another key"),
        (forged(), "not signed by its own key"),
    ],
)
def test_bad_requests_are_refused(request_pem: bytes, text: str) -> None:
    """Whatever is not a request with its own P-256 key gets no certificate."""
    with pytest.raises(IdentityError, match=text):
        AUTHORITY.issue_client(request_pem, name="a", now=NOW, days=1)


@given(at=st.integers(0, len(REQUEST) - 1), byte=st.integers(0, 255))
def test_a_changed_request_is_never_another_key(at: int, byte: int) -> None:
    """A request with any byte changed is refused, or still is for the key that signed it."""
    changed = REQUEST[:at] + bytes([byte]) + REQUEST[at + 1 :]
    try:
        key = requested_key(changed)
    except IdentityError:
        return
    assert key == KEY.public_key()


@given(st.binary(max_size=200))
def test_any_bytes_raise_typed_errors_only(raw: bytes) -> None:
    """What is no PEM of ours is refused by type, whatever it is."""
    for wrapped in (raw, b"-----BEGIN CERTIFICATE-----\n" + raw + b"\n-----END CERTIFICATE-----"):
        for read in (identity_of, requested_key, read_key, fingerprint_of):
            with pytest.raises(IdentityError):
                read(wrapped)


@pytest.mark.parametrize("name", ["a", "0", "clinic-a", "clinic.north_2", "a" * 63, "site-0001"])
def test_good_names(name: str) -> None:
    """Names that people give to sites and machines are taken."""
    assert check_client_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "A", "-a", ".a", "_a", "a b", "a/b", "../a", "a\n", "é", "a" * 64, "a,OU=admin", "٣"],
)
def test_bad_names_are_refused_everywhere(name: str) -> None:
    """A name that could be a path, another attribute or a look-alike is refused."""
    with pytest.raises(IdentityError, match="cannot be a name"):
        check_client_name(name)
    with pytest.raises(IdentityError, match="cannot be a name"):
        AUTHORITY.issue_client(REQUEST, name=name, now=NOW, days=1)


def test_a_request_cannot_become_a_server() -> None:
    """Only the server makes its own certificates."""
    with pytest.raises(IdentityError, match="role 'server'"):
        AUTHORITY.issue_client(REQUEST, name="a", role="server", now=NOW, days=1)


def test_time_and_role_are_checked() -> None:
    """An identity passes in its time and role, and at no other."""
    pem = AUTHORITY.issue_client(REQUEST, name="a", now=NOW, days=9)
    identity = identity_of(pem)
    identity.check(NOW, role="client")
    identity.check(NOW + timedelta(days=9), role="client")
    for when in (NOW - timedelta(minutes=6), NOW + timedelta(days=9, seconds=1)):
        with pytest.raises(IdentityError, match="not now"):
            identity.check(when, role="client")
    with pytest.raises(IdentityError, match="has the role 'client', not 'admin'"):
        identity.check(NOW, role="admin")
    assert not identity.needs_renewal(NOW + timedelta(days=5.9))
    assert identity.needs_renewal(NOW + timedelta(days=6))
    assert identity.needs_renewal(NOW + timedelta(days=60))


def test_a_renewed_certificate_is_another_one() -> None:
    """The same key and name again give another serial, so that each can be revoked."""
    serials = {
        identity_of(AUTHORITY.issue_client(REQUEST, name="a", now=NOW, days=1)).serial
        for _ in range(5)
    }
    assert len(serials) == 5


def test_other_authorities_are_refused() -> None:
    """A certificate of another authority is not verified, though it says the same."""
    other = Authority.create(now=NOW)
    pem = other.issue_client(REQUEST, name="a", now=NOW, days=1)
    assert other.verify(pem).name == "a"
    with pytest.raises(IdentityError, match="another authority"):
        AUTHORITY.verify(pem)
    assert AUTHORITY.fingerprint != other.fingerprint


def test_nothing_outlives_the_authority() -> None:
    """A certificate ends with its authority, at the latest."""
    late = NOW + timedelta(days=3650)
    identity = identity_of(AUTHORITY.issue_client(REQUEST, name="a", now=late, days=90))
    assert identity.not_after == NOW + timedelta(days=3653)


def test_an_authority_can_be_kept_in_files() -> None:
    """From its two PEMs the same authority comes back."""
    again = Authority(certificate_pem=AUTHORITY.certificate_pem, key_pem=AUTHORITY.key_pem)
    pem = again.issue_client(REQUEST, name="a", now=NOW, days=1)
    assert AUTHORITY.verify(pem).name == "a"
    assert x509.load_pem_x509_certificate(
        AUTHORITY.certificate_pem
    ).extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(
        ca=True, path_length=0
    )


def test_a_server_is_known_by_its_hosts() -> None:
    """Names and addresses are in a server's certificate, and this machine always is."""
    pair = AUTHORITY.issue_server(["fl.example.org", "10.1.2.3", "localhost"], now=NOW, days=90)
    certificate = x509.load_pem_x509_certificate(pair.certificate_pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == [
        "10.1.2.3",
        "127.0.0.1",
        "::1",
    ]
    assert identity_of(pair.certificate_pem).role == "server"
    assert pair.certificate_pem.endswith(AUTHORITY.certificate_pem)
    with pytest.raises(IdentityError, match="host"):
        AUTHORITY.issue_server(["ünïcode"], now=NOW, days=1)


@pytest.mark.parametrize("role", ["client", "admin"])
def test_unknown_roles_are_refused(role: str) -> None:
    """A certificate of another making, with an unknown, missing or double role, is refused."""
    for units in (["boss"], [], [role, "admin"]):
        subject = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, "a")]
            + [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
        )
        builder = x509.CertificateBuilder(subject, subject, KEY.public_key(), 7, NOW, NOW)
        pem = builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        with pytest.raises(IdentityError, match="role"):
            identity_of(pem)


def test_fingerprints() -> None:
    """A fingerprint is taken as people write it, and nothing but the whole of it."""
    found = AUTHORITY.fingerprint
    colons = ":".join(found[at : at + 2] for at in range(0, 64, 2)).upper()
    for good in (found, found.upper(), colons, f" {colons}\n"):
        match_fingerprint(AUTHORITY.certificate_pem, good)
    for bad in ("", found[:-1], found + "0", "z" * 64, found[:32]):
        with pytest.raises(IdentityError, match="64 hexadecimal digits"):
            match_fingerprint(AUTHORITY.certificate_pem, bad)
    with pytest.raises(IdentityError, match="expected 0000"):
        match_fingerprint(AUTHORITY.certificate_pem, "0" * 64)


def test_a_peer_without_a_certificate_is_nobody() -> None:
    """What gRPC has not authenticated has no identity."""
    pem = AUTHORITY.issue_client(REQUEST, name="a", now=NOW, days=1)
    assert peer_identity({"x509_pem_cert": [pem]}).name == "a"
    for context in ({}, {"x509_pem_cert": []}, {"x509_common_name": [b"a"]}):
        with pytest.raises(IdentityError, match="no certificate"):
            peer_identity(context)


def test_secrets_are_not_printed() -> None:
    """Neither an authority nor a pair shows its key, however it is printed."""
    pair = AUTHORITY.issue_server([], now=NOW, days=1)
    for held in (AUTHORITY, pair):
        assert "PRIVATE" not in f"{held!r} {held}"
        assert held.key_pem.startswith(b"-----BEGIN PRIVATE KEY-----")
    assert pem_of(read_key(pair.key_pem)) == pair.key_pem


def test_tokens() -> None:
    """A token matches its hash as people type it, and no other hash."""
    text, kept = create_token()
    assert len(text) == 39 and text.count("-") == 7
    for typed in (text, text.upper(), f"  {text}\n", text.replace("-", ""), text.replace("-", " ")):
        assert hash_token(typed) == kept
        match_token(typed, kept)
    with pytest.raises(IdentityError, match="not the one"):
        match_token(create_token()[0], kept)
    assert len({create_token() for _ in range(100)}) == 100


@given(st.text(max_size=60))
def test_malformed_tokens_are_refused_and_not_repeated(text: str) -> None:
    """What is no token is refused by type, and the message does not give it away."""
    with pytest.raises(IdentityError) as caught:
        hash_token(text)
    assert str(caught.value) == "a token is eight groups of four of the letters a-z and digits 2-7"


def test_requests_and_certificates_of_another_version() -> None:
    """Are refused as any other that cannot be read."""
    der = serialization.Encoding.DER
    pem = AUTHORITY.issue_client(REQUEST, name="a", now=NOW, days=1)
    certificate = x509.load_pem_x509_certificate(pem).public_bytes(der)
    certificate = certificate.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07", 1)
    request = x509.load_pem_x509_csr(REQUEST).public_bytes(der)
    request = request.replace(b"\x02\x01\x00", b"\x02\x01\x07", 1)

    def as_pem(data: bytes, kind: str) -> bytes:
        body = base64.encodebytes(data).decode()
        return f"-----BEGIN {kind}-----\n{body}-----END {kind}-----\n".encode()

    with pytest.raises(IdentityError, match="cannot be read"):
        read_certificate(as_pem(certificate, "CERTIFICATE"))
    with pytest.raises(IdentityError, match="cannot be read"):
        requested_key(as_pem(request, "CERTIFICATE REQUEST"))
