"""Finds out why a server cannot be reached, step by step, with plain sockets.

gRPC retries and gives little detail. The same steps are made here, each with its own message: the
name, the port, the proxy, the TLS handshake, and the certificate's authority, validity and names.
"""

from __future__ import annotations

import _ssl
import ipaddress
import ssl
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from ..errors import ConfigError, IdentityError, UnreachableError
from .address import Address
from .identity import read_certificate
from .proxy import open_socket

__all__ = ["check_server", "duration", "look_at", "require_authority", "why_not_reached"]

CHAIN_MAX: Final = 8
GREETING_BYTES: Final = 64
ANOTHER = "is that the port of a Meadow server, or does something answer in its place?"


def why_not_reached(
    address: str, ca_pem: bytes, *, now: datetime, timeout_s: float = 5.0
) -> str | None:
    """Return why a server of this authority cannot be reached, None if it can.

    It blocks for at most a few times `timeout_s` seconds.
    """
    try:
        where = Address.parse(address)
        chain = look_at(where, timeout_s=timeout_s)
        require_authority(chain[0], ca_pem, where)
        check_server(chain[0], where, now=now)
    except (UnreachableError, IdentityError, ConfigError) as error:
        return str(error)
    return None


def look_at(address: Address, *, timeout_s: float) -> list[bytes]:
    """Return the certificates that a server presents, unverified, as PEM, its own first.

    Raises:
        UnreachableError: no server answers, or it does not offer TLS with HTTP/2.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # whoever calls looks at them
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    plain = open_socket(address, timeout_s=timeout_s)
    try:
        with plain, context.wrap_socket(plain, server_hostname=address.host) as secure:
            spoken, chain = secure.selected_alpn_protocol(), _chain_of(secure)
    except (OSError, ValueError) as error:
        raise UnreachableError(_no_tls(address, error, timeout_s)) from error
    if not chain:
        raise UnreachableError(f"{address} showed no certificate; {ANOTHER}")
    if spoken != "h2":
        raise UnreachableError(
            f"{address} speaks TLS, but not HTTP/2: it is a web server or a proxy that reads along; "
            "let the connection through as it is (TCP)"
        )
    return chain


def require_authority(leaf_pem: bytes, ca_pem: bytes, address: Address) -> None:
    """Check that an authority issued a server's certificate.

    Raises:
        IdentityError: another authority issued it.
    """
    leaf, authority = read_certificate(leaf_pem), read_certificate(ca_pem)
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        issuer = "".join(c if c.isprintable() else "?" for c in leaf.issuer.rfc4514_string())[:120]
        raise IdentityError(
            f"{address}: what answers there has no certificate of this client's authority, but of "
            f"{issuer!r}: is it the right server, or a proxy that reads along? If the server was "
            "laid out anew, enrol again"
        ) from None


def check_server(leaf_pem: bytes, address: Address, *, now: datetime) -> None:
    """Check that a server's certificate is valid at `now`, and for the host in `address`.

    Raises:
        IdentityError: it is not; the message names the remedy.
    """
    leaf = read_certificate(leaf_pem)
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    clocks = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC"
    if now < begin:
        raise IdentityError(
            f"{address}: the server's certificate is valid from {begin:%Y-%m-%d %H:%M} UTC, and "
            f"{clocks}: this clock is behind, or the server's ahead, by {duration(begin - now)} or "
            "more; set the wrong one (NTP)"
        )
    if now > end:
        raise IdentityError(
            f"{address}: the server's certificate was valid until {end:%Y-%m-%d %H:%M} UTC, and "
            f"{clocks}: this clock is ahead, or the server's behind, by {duration(now - end)} or "
            "more; set the wrong one (NTP)"
        )
    names = _names_of(leaf)
    if not _is_named(address.host, names):
        shown = ", ".join("".join(c if c.isprintable() else "?" for c in n) for n in names[:8])
        raise IdentityError(
            f"{address}: the server's certificate is for {shown[:300]}, not for {address.host!r}; "
            "reach it by one of these names, or have its operator add this one to hosts in "
            "server.toml and start the server again"
        )


def duration(span: timedelta) -> str:
    """Return a length of time as text, in its largest unit."""
    seconds = abs(span.total_seconds())
    for unit, length_s in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _names_of(leaf: x509.Certificate) -> list[str]:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return []
    addresses = [str(each) for each in found.get_values_for_type(x509.IPAddress)]
    return [*found.get_values_for_type(x509.DNSName), *addresses]


def _is_named(host: str, names: list[str]) -> bool:
    try:
        host = str(ipaddress.ip_address(host))
    except ValueError:
        host = host.lower().rstrip(".")
    return host in (name.lower() for name in names)


def _no_tls(address: Address, error: Exception, timeout_s: float) -> str:
    """Return a sentence about the listener at an address where no server answers."""
    if isinstance(error, TimeoutError):
        return f"{address} did not answer: it takes the connection and says nothing; {ANOTHER}"
    closed = isinstance(error, (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError))
    said = _greeting(address, timeout_s)
    if said.startswith(b"HTTP/"):
        return (
            f"{address} speaks HTTP/1 without TLS: it is a web server or a proxy; let the "
            "connection through as it is (TCP), or give the server's own port"
        )
    if said:
        return f"{address} speaks no TLS, but {said!r}; {ANOTHER}"
    if closed:
        return (
            f"{address} closes the connection at once: a firewall or a proxy in between, or another "
            "program's port"
        )
    return f"{address} speaks no TLS; {ANOTHER}"


def _greeting(address: Address, timeout_s: float) -> bytes:
    """Return how the listener answers a request that every web server understands."""
    try:
        with open_socket(address, timeout_s=timeout_s) as plain:
            plain.settimeout(min(timeout_s, 2.0))
            plain.sendall(b"GET / HTTP/1.1\r\nHost: meadow\r\nConnection: close\r\n\r\n")
            return plain.recv(GREETING_BYTES)
    except (OSError, UnreachableError):
        return b""


def _chain_of(secure: ssl.SSLSocket) -> list[bytes]:
    # Public since Python 3.13; the object below it has had it since 3.10.
    public: Any = secure
    source = public if hasattr(public, "get_unverified_chain") else public._sslobj
    shown = list(source.get_unverified_chain() or ())[:CHAIN_MAX]
    return [ssl.DER_cert_to_PEM_cert(_der(certificate)).encode() for certificate in shown]


def _der(certificate: Any) -> bytes:
    if isinstance(certificate, bytes):
        return certificate
    return bytes(certificate.public_bytes(_ssl.ENCODING_DER))
