"""TLS for gRPC: credentials for both sides, and the first connection to an unknown server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from ..errors import IdentityError
from .address import Address
from .identity import match_fingerprint, read_certificate
from .keys import KeyPair
from .reach import check_server, look_at

__all__ = ["channel_credentials", "fetch_ca", "server_credentials"]


def server_credentials(
    current: Callable[[], KeyPair], *, ca_pem: bytes | None
) -> grpc.ServerCredentials:
    """Return a listener's credentials; with `ca_pem`, every client has to present a certificate.

    `current` is called at every connection, so that a certificate can be renewed while the server
    runs. It must be fast, and return the same object as long as nothing has changed.
    """
    shown = current()

    def renewed() -> Any:
        nonlocal shown
        newest = current()
        if newest is shown:
            return None
        shown = newest
        return _configuration(shown, ca_pem)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown, ca_pem),
        renewed,
        require_client_authentication=ca_pem is not None,
    )


def channel_credentials(ca_pem: bytes, pair: KeyPair | None = None) -> grpc.ChannelCredentials:
    """Return a client's credentials: the authority that it trusts, and its key pair, if any."""
    return grpc.ssl_channel_credentials(
        root_certificates=ca_pem,
        private_key=pair.key_pem if pair else None,
        certificate_chain=pair.certificate_pem if pair else None,
    )


def fetch_ca(host: str, port: int, fingerprint: str, *, timeout_s: float = 10.0) -> bytes:
    """Return, as PEM, the authority's certificate of a server that is not known yet.

    Only the fingerprint of the authority is trusted, and nothing is sent to the server; the
    authority is then used to verify the real connection.

    Raises:
        UnreachableError: the server does not answer, or speaks no TLS.
        IdentityError: its authority has another fingerprint, or did not issue its certificate; or
            that is not valid now, or for another name.
    """
    address = Address(host, port)
    pems = look_at(address, timeout_s=timeout_s)
    match_fingerprint(pems[-1], fingerprint)
    _check_issued(pems[0], pems[-1])
    check_server(pems[0], address, now=datetime.now(UTC))
    return pems[-1]


def _configuration(pair: KeyPair, ca_pem: bytes | None) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(pair.key_pem, pair.certificate_pem)], root_certificates=ca_pem
    )


def _check_issued(leaf_pem: bytes, ca_pem: bytes) -> None:
    authority = read_certificate(ca_pem)
    try:
        if not authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise IdentityError("the fingerprint is a certificate's that is no authority's")
        read_certificate(leaf_pem).verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        raise IdentityError("the server's certificate is not from the authority it shows") from None
