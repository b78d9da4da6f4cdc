"""Addresses as HOST:PORT, with an IPv6 address in brackets, as gRPC writes them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote

from ..errors import ConfigError

__all__ = ["Address", "caller_of", "host_of"]

_NAME = re.compile(r"[0-9A-Za-z_]([0-9A-Za-z_.-]{0,251}[0-9A-Za-z_.])?", re.ASCII)
NETWORK_BITS = 64
"""Prefix length of an IPv6 network; a host chooses the rest of its address freely."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and port; `str` writes it as HOST:PORT or [IPV6]:PORT."""

    host: str
    """Without brackets."""
    port: int

    @classmethod
    def parse(cls, text: str, *, what: str = "an address") -> Self:
        """Read HOST:PORT or [IPV6]:PORT.

        Raises:
            ConfigError: it is neither; the message begins with `what`.
        """
        found = re.fullmatch(r"(?P<host>\[[^\[\]]*\]|[^\[\]:]*):(?P<port>[0-9]{1,5})", text.strip())
        if found is None:
            hint = "; an IPv6 address stands in brackets: [::1]:9443" if text.count(":") > 1 else ""
            raise ConfigError(f"{what} must be HOST:PORT, got {text[:200]!r}{hint}")
        port = int(found["port"])
        if not 0 < port < 65536:
            raise ConfigError(
                f"{what} must be HOST:PORT with a port from 1 to 65535, got {text[:200]!r}"
            )
        return cls(host_of(found["host"], what=f"{what}, HOST:PORT,"), port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def host_of(text: str, *, what: str = "a host") -> str:
    """Return a host name, or an address in its usual form and without brackets.

    Raises:
        ConfigError: it is neither.
    """
    host = text.strip()
    in_brackets = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if in_brackets else host)
    except ValueError:
        if _NAME.fullmatch(host) and not re.fullmatch(r"[0-9.]+", host):
            return host
    else:
        if not in_brackets or address.version == 6:
            return str(address)
    raise ConfigError(f"{what} must be a host name or an address, got {text[:200]!r}")


def caller_of(peer: str) -> str:
    """Return the key by which an unknown peer is counted, from gRPC's name of it: its IPv4 address,
    or its IPv6 network."""
    kind, _, rest = unquote(peer).partition(":")
    text = rest.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return peer if kind not in ("ipv4", "ipv6") else text
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), NETWORK_BITS), strict=False))
