"""Case 19: a token is good once, for one client, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from meadow.machine.process_limits import allow_many_files
from meadow.server.daemon.fleet import RENEWALS_MAX
from meadow.transport import fleet_pb2 as pb
from meadow.transport.fleet_pb2_grpc import AdminStub, EnrollmentStub, FleetStub
from meadow.transport.identity import identity_of
from meadow.transport.keys import KeyPair, create_request
from meadow.transport.tokens import create_token

from .crowd import KINDS, crowd
from .live_server import CALL_S, LiveServer, refused

DENIED = grpc.StatusCode.PERMISSION_DENIED
LONG_AGO_S = 1e9
CROWD = 1000


@pytest.fixture
def stub(server: LiveServer) -> Iterator[EnrollmentStub]:
    """The enrolment listener, as a stranger reaches it."""
    with server.enrollment() as channel:
        yield EnrollmentStub(channel)
    assert server.alive


def enroll(stub: EnrollmentStub, token: str, csr_pem: bytes) -> pb.Certificate:
    """Redeem a token."""
    return stub.Enroll(pb.EnrollRequest(token=token, csr_pem=csr_pem), timeout=CALL_S)


@pytest.fixture
def request_pem(tmp_path: Path) -> bytes:
    """A good request for a certificate."""
    return create_request("new", tmp_path / "key.pem")


def test_reused(server: LiveServer, stub: EnrollmentStub, request_pem: bytes) -> None:
    """A token that was used is refused, and recorded by the name that it was for."""
    token = server.token("once")
    assert enroll(stub, token, request_pem).client == "once"
    with refused(DENIED, match="not valid: unknown, used or expired"):
        enroll(stub, token, request_pem)
    assert (
        "of once was used, revoked or replaced"
        in server.events(kind="enrollment_refused")[-1]["reason"]
    )


def test_replaced(server: LiveServer, stub: EnrollmentStub, request_pem: bytes) -> None:
    """A newer token voids the older one, before the newer one is redeemed and after."""
    old, new = server.token("twice"), server.token("twice")
    other = server.token("bystander")
    with refused(DENIED, match="not valid"):
        enroll(stub, old, request_pem)
    assert "twice" in server.events(kind="enrollment_refused")[-1]["reason"]
    first = enroll(stub, new, request_pem)
    with refused(DENIED, match="not valid"):
        enroll(stub, old, request_pem)
    assert first.client == "twice"
    assert enroll(stub, other, request_pem).client == "bystander"


def test_expired(server: LiveServer, stub: EnrollmentStub, request_pem: bytes) -> None:
    """A token whose time is over is refused in the same words as any other."""
    token = server.token("late", now_s=LONG_AGO_S)
    with refused(DENIED, match="not valid: unknown, used or expired"):
        enroll(stub, token, request_pem)


@pytest.mark.parametrize("token", ["", "x", "../../x", "' OR 1=1 --", "\x00" * 32, "a" * 60_000])
def test_garbage(stub: EnrollmentStub, request_pem: bytes, token: str) -> None:
    """What is no token at all is refused in the same words as any other."""
    with refused(DENIED, match="not valid: unknown, used or expired"):
        enroll(stub, token, request_pem)


def test_unknown(stub: EnrollmentStub, request_pem: bytes) -> None:
    """A token of the right form that nobody gave out is refused."""
    with refused(DENIED, match="not valid"):
        enroll(stub, create_token()[0], request_pem)


def test_race(server: LiveServer, stub: EnrollmentStub, request_pem: bytes) -> None:
    """Of many who use the same token at once, one gets a certificate."""
    token = server.token("raced")

    def attempt(_: int) -> bool:
        try:
            return bool(enroll(stub, token, request_pem).certificate_pem)
        except grpc.RpcError as error:
            assert error.code() == DENIED
            return False

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(attempt, range(16))) == 1


def signed(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, **names: str) -> bytes:
    """Return a request that asks for any names."""
    oids = {"cn": NameOID.COMMON_NAME, "ou": NameOID.ORGANIZATIONAL_UNIT_NAME}
    subject = x509.Name([x509.NameAttribute(oids[kind], text) for kind, text in names.items()])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def forged() -> bytes:
    """Return a request whose signature is not its key's."""
    pem = signed(ec.generate_private_key(ec.SECP256R1()), cn="x")
    request = x509.load_pem_x509_csr(pem)
    der = bytearray(request.public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    broken = x509.load_der_x509_csr(bytes(der))
    return broken.public_bytes(serialization.Encoding.PEM)


BAD_REQUESTS = {
    "nothing": lambda: b"",
    "garbage": lambda: b"\xff" * 500,
    "a certificate": lambda: b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    "RSA": lambda: signed(rsa.generate_private_key(65537, 2048), cn="x"),
    "P-384": lambda: signed(ec.generate_private_key(ec.SECP384R1()), cn="x"),
    "forged": forged,
    "large": lambda: b"x" * 60_000,
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_request(
    server: LiveServer, stub: EnrollmentStub, request_pem: bytes, case: str
) -> None:
    """A malformed request is refused, says so, and does not use up the token."""
    token = server.token("clumsy")
    with refused(grpc.StatusCode.INVALID_ARGUMENT):
        enroll(stub, token, BAD_REQUESTS[case]())
    assert enroll(stub, token, request_pem).client == "clumsy"


def test_asks_for_more(server: LiveServer, stub: EnrollmentStub) -> None:
    """A request for another name, the role of an administrator or an authority gets neither."""
    key = ec.generate_private_key(ec.SECP256R1())
    answer = enroll(stub, server.token("modest"), signed(key, cn="admin", ou="admin"))
    identity = identity_of(answer.certificate_pem)
    assert (identity.name, identity.role, answer.client) == ("modest", "client", "modest")
    certificate = x509.load_pem_x509_certificate(answer.certificate_pem)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert not constraints.value.ca


def test_named_admin(server: LiveServer, tmp_path: Path) -> None:
    """A client that is called "admin" is still a client."""
    pair = server.enroll("admin", tmp_path)
    with server.channel(pair) as channel, refused(DENIED, match="'client', not 'admin'"):
        AdminStub(channel).Status(pb.Empty(), timeout=CALL_S)


def test_enrolled_anew(server: LiveServer, tmp_path: Path) -> None:
    """With a client's next enrolment, the certificate of its first one is void."""
    first = server.enroll("moved", tmp_path)
    second = server.enroll("moved", tmp_path)
    with server.channel(first) as channel, refused(DENIED, match="was replaced"):
        FleetStub(channel).Renew(pb.RenewRequest(), timeout=CALL_S)
    server.serves(second)


def test_revoked(
    server: LiveServer, stub: EnrollmentStub, request_pem: bytes, tmp_path: Path
) -> None:
    """Revoking a client voids the tokens that it has not used; a new one lets it in again."""
    first = server.enroll("expelled", tmp_path)
    unused = server.token("expelled")
    server.admin.Revoke(pb.SiteName(name="expelled"), timeout=CALL_S)
    with refused(DENIED, match="not valid"):
        enroll(stub, unused, request_pem)
    server.serves(server.enroll("expelled", tmp_path))
    with server.channel(first) as channel, refused(DENIED, match="was replaced"):
        FleetStub(channel).Renew(pb.RenewRequest(), timeout=CALL_S)


def test_renewal(server: LiveServer, tmp_path: Path) -> None:
    """A renewed certificate is for the same name; the third one voids the first."""
    pairs = [server.enroll("renewer", tmp_path)]
    for number in range(2):
        key = tmp_path / f"next-{number}.pem"
        request = pb.RenewRequest(csr_pem=create_request("somebody-else", key))
        with server.channel(pairs[-1]) as channel:
            answer = FleetStub(channel).Renew(request, timeout=CALL_S)
        assert identity_of(answer.certificate_pem).name == "renewer"
        pairs.append(KeyPair(key_pem=key.read_bytes(), certificate_pem=answer.certificate_pem))
    with server.channel(pairs[0]) as channel, refused(DENIED, match="was replaced"):
        FleetStub(channel).Renew(request, timeout=CALL_S)
    server.serves(pairs[2])


def test_many_renewals(server: LiveServer, tmp_path: Path) -> None:
    """A client that asks for one certificate after another is refused; the others are not, nor is
    its connection."""
    greedy, other = server.enroll("greedy", tmp_path), server.enroll("modest", tmp_path)
    request = pb.RenewRequest(csr_pem=b"none")
    with server.channel(greedy) as channel:
        for _ in range(RENEWALS_MAX):
            with refused(grpc.StatusCode.INVALID_ARGUMENT):
                FleetStub(channel).Renew(request, timeout=CALL_S)
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, match="renewed lately"):
            FleetStub(channel).Renew(request, timeout=CALL_S)
    server.serves(greedy)
    request = pb.RenewRequest(csr_pem=create_request("modest", tmp_path / "next.pem"))
    with server.channel(other) as channel:
        assert FleetStub(channel).Renew(request, timeout=CALL_S).client == "modest"


@pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.1"])
@pytest.mark.parametrize("kind", KINDS)
def test_beside_a_crowd(server: LiveServer, tmp_path: Path, kind: str, source: str) -> None:
    """A thousand strangers who stay, from another address or our own, keep nobody from enrolling, and
    the fleet does not notice."""
    allow_many_files()
    honest = server.enroll("member", tmp_path)
    with crowd(server.enroll_address, count=CROWD, kind=kind, source=source) as there:
        assert there == CROWD
        for number in range(3):
            server.enroll(f"newcomer-{number}", tmp_path)
            server.serves(honest)
