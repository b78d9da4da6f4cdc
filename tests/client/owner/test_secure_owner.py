"""An enrolled client in secure sums: its key lasts, and its owner decides about the others'."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from meadow.client.owner.identity_folder import IdentityFolder
from meadow.client.owner.secure_certificate import certify_key
from meadow.client.owner.secure_owner import owned_identity, peer_of, pins_of, signing_key
from meadow.errors import ConfigError, SecureAggregationError
from meadow.privacy.secagg.protocol import Minimum
from meadow.privacy.secagg.terms.announcement import Announcement
from meadow.privacy.secagg.terms.terms import SecureTerms
from meadow.transport.authority import Authority
from meadow.transport.fleet_pb2 import Certificate
from meadow.transport.keys import KeyPair, create_request

KEYS = {node: bytes([node]) * 32 for node in (1, 2, 3)}


NOW = datetime.now(UTC)
AUTHORITY = Authority.create(now=NOW)
Certify = Callable[..., bytes]


def issued(
    path: Path, name: str, *, by: Authority = AUTHORITY, now: datetime = NOW, days: float = 7
) -> KeyPair:
    """Return a client's TLS key and a certificate for it."""
    request = create_request(name, path)
    pem = by.issue_client(request, name=name, now=now, days=days)
    return KeyPair(key_pem=path.read_bytes(), certificate_pem=pem)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An enrolled agent's folder whose owner says nothing."""
    enrolled = IdentityFolder(tmp_path)
    pem = AUTHORITY.issue_client(enrolled.request(), name="site-5", now=NOW, days=7)
    enrolled.store(
        Certificate(certificate_pem=pem, ca_pem=AUTHORITY.certificate_pem, client="site-5")
    )
    (tmp_path / "client.toml").write_text("")
    return tmp_path


@pytest.fixture
def certify(tmp_path: Path) -> Certify:
    """Certifies a key as that of an enrolled client."""

    def make(node: int, key: bytes, *, name: str = "", signs: bytes = b"", **issue: Any) -> bytes:
        pair = issued(tmp_path / f"tls-{node}-{len(issue)}", name or f"site-{node}", **issue)
        return certify_key(signs or key, node=node, pair=pair)

    return make


def cohort(keys: Mapping[int, bytes], certify: Certify, **others: bytes) -> Announcement:
    """Return what a server says of these clients, with certificates of all but some."""
    certificates = {node: certify(node, key) for node, key in keys.items()}
    certificates |= {int(node[1:]): said for node, said in others.items()}
    return Announcement(
        session=b"s" * 32,
        round=1,
        keys=keys,
        advertised=dict.fromkeys(keys, bytes(160)),
        terms=SecureTerms(),
        setup=bytes(32),
        certificates=certificates,
    )


CONTEXT = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


def identity(folder: Path) -> Any:
    return owned_identity(folder, node=5)(CONTEXT)


def test_a_key_lasts(folder: Path) -> None:
    """It is made once, only its owner may read it, and it is the client's in every session."""
    first = identity(folder)
    assert first.public_key == identity(folder).public_key
    assert first.node == 5 and peer_of(first.key) == f"ed25519:{first.public_key.hex()}"
    file = folder / "identity" / "signing.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and len(file.read_bytes()) == 32


def test_a_damaged_key_is_told(folder: Path) -> None:
    """It is not replaced in silence: others have pinned it."""
    (folder / "identity" / "signing.key").write_bytes(b"short")
    with pytest.raises(SecureAggregationError, match="enrol again"):
        signing_key(folder)


def test_keys_are_pinned_for_good(folder: Path, certify: Certify) -> None:
    """New clients are taken in, a changed key is refused, and nothing of that cohort is kept."""
    identity(folder).accept(cohort(KEYS, certify))
    identity(folder).accept(cohort({**KEYS, 4: b"d" * 32}, certify))
    assert len(pins_of(folder)) == 4
    with pytest.raises(SecureAggregationError, match="client 2 has another key"):
        identity(folder).accept(cohort({**KEYS, 2: b"x" * 32, 9: b"n" * 32}, certify))
    assert len(pins_of(folder)) == 4 and pins_of(folder)["2"] == KEYS[2].hex()


def test_damaged_pins_are_told(folder: Path, certify: Certify) -> None:
    """They are not begun anew in silence."""
    (folder / "identity" / "peers.json").write_text("{")
    with pytest.raises(SecureAggregationError, match=r"delete it to trust the next keys"):
        identity(folder).accept(cohort(KEYS, certify))


def test_known_peers_are_all(folder: Path, certify: Certify) -> None:
    """Where the owner lists keys, nobody else may be in a cohort, and nothing is pinned."""
    listed = ", ".join(f'"ed25519:{key.hex()}"' for key in KEYS.values())
    (folder / "client.toml").write_text(f"[policy]\nknown_peers = [{listed}]\n")
    own = identity(folder)
    own.accept(cohort({**KEYS, 5: own.public_key}, certify))
    with pytest.raises(
        SecureAggregationError, match=r"client 4 has the key 6464.* not in known_peers"
    ):
        own.accept(cohort({**KEYS, 4: b"d" * 32}, certify))
    assert not (folder / "identity" / "peers.json").exists()


def test_the_owners_minimum(folder: Path) -> None:
    """What client.toml says, read again for every session, and never fewer than three."""
    assert identity(folder).minimum == Minimum(clients=3, survivors=2, corrupt=0)
    (folder / "client.toml").write_text(
        "[policy]\nmin_cohort = 10\nmin_survivors = 7\nmin_colluders = 3\n"
    )
    assert identity(folder).minimum == Minimum(clients=10, survivors=7, corrupt=3)
    (folder / "client.toml").write_text("[policy]\nmin_survivors = 0\n")
    with pytest.raises(ConfigError, match="min_survivors"):
        identity(folder)


OTHER = Authority.create(now=NOW)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"by": OTHER}, "issued by another authority"),
        ({"now": NOW - timedelta(days=30)}, "valid .* not now"),
        ({"signs": b"k" * 32}, "its enrolled key did not sign this"),
        ({"name": "site-1"}, "clients 1 and 2 of the cohort are both 'site-1'"),
    ],
    ids=["authority", "expired", "another key", "one client twice"],
)
def test_keys_belong_to_enrolled_clients(
    folder: Path, certify: Certify, wrong: dict[str, Any], says: str
) -> None:
    """Else the cohort is refused, and nothing of it is pinned."""
    own = identity(folder)
    with pytest.raises(SecureAggregationError, match=says):
        own.accept(cohort(KEYS, certify, n2=certify(2, KEYS[2], **wrong)))
    assert pins_of(folder) == {}
    own.accept(cohort({**KEYS, 5: own.public_key}, certify, n5=own.certificate))
    assert len(pins_of(folder)) == 4


@pytest.mark.parametrize("said", [b"", b"\0\3abcdef", b"\xff" * 100, b"x" * 5000], ids=len)
def test_certificates_that_cannot_be_read(folder: Path, certify: Certify, said: bytes) -> None:
    """Are refused with an error that names the client."""
    with pytest.raises(SecureAggregationError, match="client 3's signing key is not certified"):
        identity(folder).accept(cohort(KEYS, certify, n3=said))


def test_a_certificate_of_another_version(folder: Path, certify: Certify) -> None:
    """Is one that cannot be read."""
    said = certify(3, KEYS[3]).replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07", 1)
    with pytest.raises(SecureAggregationError, match="client 3's signing key is not certified"):
        identity(folder).accept(cohort(KEYS, certify, n3=said))


def test_a_certificate_of_another_node(folder: Path, certify: Certify) -> None:
    """A client that is enrolled cannot take another's place in a cohort."""
    stolen = certify(9, KEYS[3], name="site-3")
    with pytest.raises(SecureAggregationError, match="did not sign"):
        identity(folder).accept(cohort(KEYS, certify, n3=stolen))


def test_a_key_in_the_middle_of_a_renewal(folder: Path) -> None:
    """The new certificate is there and its key is not in its place yet: nothing is changed."""
    enrolled = IdentityFolder(folder)
    pem = AUTHORITY.issue_client(enrolled.begin_renewal("site-5"), name="site-5", now=NOW, days=7)
    (folder / "identity" / "certificate.pem").write_bytes(pem)
    assert identity(folder).certificate
    assert (folder / "identity" / "key.next.pem").exists()
