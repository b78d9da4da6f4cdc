"""An enrolled client in secure sums: its key lasts, and its owner decides about the others'."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from meadow.client.secure_owner import owned_identity, peer_of, pins_of, signing_key
from meadow.errors import ConfigError, SecureAggregationError
from meadow.privacy.secagg import Minimum

KEYS = {node: bytes([node]) * 32 for node in (1, 2, 3)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An agent's folder whose owner says nothing."""
    (tmp_path / "identity").mkdir()
    (tmp_path / "client.toml").write_text("")
    return tmp_path


def identity(folder: Path, kit: Any) -> Any:
    return owned_identity(folder, node=5)(kit.context(1))


def test_a_key_lasts(folder: Path, kit: Any) -> None:
    """It is made once, only its owner may read it, and it is the client's in every session."""
    first = identity(folder, kit)
    assert first.public_key == identity(folder, kit).public_key
    assert first.node == 5 and peer_of(first.key) == f"ed25519:{first.public_key.hex()}"
    file = folder / "identity" / "signing.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and len(file.read_bytes()) == 32


def test_a_damaged_key_is_told(folder: Path) -> None:
    """It is not replaced in silence: others have pinned it."""
    (folder / "identity" / "signing.key").write_bytes(b"short")
    with pytest.raises(SecureAggregationError, match="enrol again"):
        signing_key(folder)


def test_keys_are_pinned_for_good(folder: Path, kit: Any) -> None:
    """New clients are taken in, a changed key is refused, and nothing of that cohort is kept."""
    identity(folder, kit).accept(KEYS)
    identity(folder, kit).accept({**KEYS, 4: b"d" * 32})
    assert len(pins_of(folder)) == 4
    with pytest.raises(SecureAggregationError, match="client 2 has another key"):
        identity(folder, kit).accept({**KEYS, 2: b"x" * 32, 9: b"n" * 32})
    assert len(pins_of(folder)) == 4 and pins_of(folder)["2"] == KEYS[2].hex()


def test_damaged_pins_are_told(folder: Path, kit: Any) -> None:
    """They are not begun anew in silence."""
    (folder / "identity" / "peers.json").write_text("{")
    with pytest.raises(SecureAggregationError, match=r"delete it to trust the next keys"):
        identity(folder, kit).accept(KEYS)


def test_known_peers_are_all(folder: Path, kit: Any) -> None:
    """Where the owner lists keys, nobody else may be in a cohort, and nothing is pinned."""
    listed = ", ".join(f'"ed25519:{key.hex()}"' for key in KEYS.values())
    (folder / "client.toml").write_text(f"[policy]\nknown_peers = [{listed}]\n")
    own = identity(folder, kit)
    own.accept({**KEYS, 5: own.public_key})
    with pytest.raises(
        SecureAggregationError, match=r"client 4 has the key 6464.* none of the known"
    ):
        own.accept({**KEYS, 4: b"d" * 32})
    assert not (folder / "identity" / "peers.json").exists()


def test_the_owners_minimum(folder: Path, kit: Any) -> None:
    """What client.toml says, read again for every session, and never fewer than three."""
    assert identity(folder, kit).minimum == Minimum(clients=3, survivors=2, corrupt=0)
    (folder / "client.toml").write_text(
        "[policy]\nmin_cohort = 10\nmin_survivors = 7\nmin_colluders = 3\n"
    )
    assert identity(folder, kit).minimum == Minimum(clients=10, survivors=7, corrupt=3)
    (folder / "client.toml").write_text("[policy]\nmin_survivors = 0\n")
    with pytest.raises(ConfigError, match="min_survivors"):
        identity(folder, kit)
