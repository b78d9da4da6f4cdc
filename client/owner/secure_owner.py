"""An enrolled client in secure sums: its key, the keys of others, and the owner's policy on disk.

identity/signing.key   our long-term Ed25519 key, 32 bytes; it lasts as long as the identity
identity/peers.json    the others' public keys, as first seen; if the owner lists known_peers,
                       neither this file nor the others' certificates are used
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context

from ...config.client_config import PEER_PREFIX, PolicyConfig
from ...errors import SecureAggregationError
from ...privacy.secagg.client.identity import (
    Accept,
    Identify,
    SecureIdentity,
    known_peers,
    pinned_peers,
)
from ...privacy.secagg.protocol import Minimum
from ...privacy.secagg.protocol.keys import KEY_BYTES
from ...privacy.secagg.terms.announcement import Announcement
from ...randomness.entropy import system_entropy
from ...transport.durable import write_file
from .identity_folder import IdentityFolder
from .owner import OwnersFile, Signature, signature_of
from .secure_certificate import certify_key, require_certified

__all__ = ["owned_identity", "peer_of", "pins_of", "signing_key"]

FOLDER = "identity"
KEY_FILE = "signing.key"
PEERS_FILE = "peers.json"
CLIENTS_MIN = 3


def signing_key(directory: Path) -> Ed25519PrivateKey:
    """Return the client's long-term key; the first call creates it.

    Raises:
        SecureAggregationError: the file is damaged.
        StoreError: it cannot be written.
    """
    path = directory / FOLDER / KEY_FILE
    if not path.exists():
        write_file(path, system_entropy(KEY_BYTES), mode=0o600)
    try:
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SecureAggregationError(f"{path} cannot be used: {error}; enrol again") from None


def peer_of(key: Ed25519PrivateKey) -> str:
    """Return the entry for this key in other owners' known_peers."""
    return PEER_PREFIX + key.public_key().public_bytes_raw().hex()


def pins_of(directory: Path) -> dict[str, str]:
    """Return the first seen keys, in hexadecimal, by node id.

    Raises:
        SecureAggregationError: the file is damaged, so the first seen keys are unknown.
    """
    path = directory / FOLDER / PEERS_FILE
    if not path.exists():
        return {}
    try:
        return {str(node): str(key) for node, key in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise SecureAggregationError(
            f"{path} cannot be read ({error}); delete it to trust the next keys that the server "
            "shows, or list known_peers in client.toml"
        ) from None


def owned_identity(directory: Path, *, node: int) -> Identify:
    """Return an enrolled client's identity, by client.toml as it is when a message arrives."""
    file, enrolled = OwnersFile(directory), IdentityFolder(directory)
    known: tuple[PolicyConfig, Signature, SecureIdentity] | None = None

    def identify(context: Context) -> SecureIdentity:
        nonlocal known
        policy, files = (
            file.config().policy,
            signature_of(*enrolled.files, directory / FOLDER / KEY_FILE),
        )
        if known is None or known[:2] != (policy, files):
            known = policy, files, read(policy)
        return known[2]

    def read(policy: PolicyConfig) -> SecureIdentity:
        key = signing_key(directory)
        return SecureIdentity(
            node=node,
            key=key,
            accept=_accept(directory, policy, key, enrolled.ca_pem),
            certificate=certify_key(
                key.public_key().public_bytes_raw(),
                node=node,
                pair=enrolled.shown(),
            ),
            minimum=Minimum(
                clients=max(CLIENTS_MIN, policy.min_cohort),
                survivors=policy.min_survivors,
                corrupt=policy.min_colluders,
            ),
        )

    return identify


def _accept(directory: Path, policy: PolicyConfig, own: Ed25519PrivateKey, ca_pem: bytes) -> Accept:
    if policy.known_peers:
        listed = {bytes.fromhex(peer.removeprefix(PEER_PREFIX)) for peer in policy.known_peers}
        return known_peers(listed | {own.public_key().public_bytes_raw()})

    def accept(cohort: Announcement) -> None:
        require_certified(cohort, ca_pem=ca_pem, now=datetime.now(UTC))
        pins = {node: bytes.fromhex(key) for node, key in pins_of(directory).items()}
        before = dict(pins)
        pinned_peers(pins)(cohort)
        if pins != before:
            text = json.dumps({node: key.hex() for node, key in pins.items()}, indent=1)
            write_file(directory / FOLDER / PEERS_FILE, text.encode())

    return accept
