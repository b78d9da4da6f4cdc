"""The route to a server: a direct connection, or an HTTP CONNECT proxy.

The environment variables that gRPC and curl use decide it, for gRPC's calls and for the plain sockets
that examine a server. They are read in this order, and the first that is set applies.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from ..errors import ConfigError, UnreachableError
from .address import Address

__all__ = ["Proxy", "bypass_for_this_machine", "open_socket", "proxy_for", "proxy_options"]

PROXY_VARIABLES: Final = ("grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy")
DIRECT_VARIABLES: Final = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
PROXY_PORT: Final = 80
"""Where a proxy is that names none, as for every http:// address."""
ANSWER_BYTES_MAX: Final = 16 << 10
"""Of a proxy's answer to CONNECT."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy; `str` gives its address without the password."""

    address: Address
    variable: str
    """Where it was said."""
    login: str = field(default="", repr=False)
    """USER:PASSWORD, percent-encoded."""

    def __str__(self) -> str:
        return f"the proxy {self.address} ({self.variable})"

    @property
    def url(self) -> str:
        """As gRPC takes it; with its password."""
        return f"http://{self.login}@{self.address}" if self.login else f"http://{self.address}"


def proxy_for(address: Address, environ: Mapping[str, str] | None = None) -> Proxy | None:
    """Return the proxy for connections to a server, None if there is none.

    Raises:
        ConfigError: the environment names one that cannot be used.
    """
    environ = os.environ if environ is None else environ
    variable = next((name for name in PROXY_VARIABLES if environ.get(name)), None)
    if variable is None or _is_direct(address.host, environ):
        return None
    text = environ[variable].strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port or PROXY_PORT
    except ValueError:
        host, port, parts = None, 0, None
    if parts is None or not host or parts.scheme != "http":
        raise ConfigError(f"{variable} must be http://HOST:PORT of a proxy; it names another kind")
    login, at, _ = parts.netloc.rpartition("@")
    return Proxy(Address(host, port), variable, login if at else "")


def _is_direct(host: str, environ: Mapping[str, str]) -> bool:
    said = next((environ[name] for name in DIRECT_VARIABLES if environ.get(name)), "")
    for entry in filter(None, (each.strip() for each in said.split(","))):
        if entry == "*" or host.lower().endswith(entry.lower().lstrip("*").strip("[]")):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:
            continue
    return False


def bypass_for_this_machine(environ: MutableMapping[str, str]) -> None:
    """Connect to this machine itself without a proxy."""
    said = next((environ[name] for name in DIRECT_VARIABLES if environ.get(name)), "")
    direct = ",".join(filter(None, (said, "localhost,127.0.0.1,::1")))
    environ.update(dict.fromkeys(DIRECT_VARIABLES, direct))


def proxy_options(address: str) -> list[tuple[str, int | str]]:
    """Return the channel options that give the same route as `open_socket`.

    Raises:
        ConfigError: the address is malformed, or the environment names no usable proxy.
    """
    proxy = proxy_for(Address.parse(address))
    if proxy is None:
        return [("grpc.enable_http_proxy", 0)]
    return [("grpc.enable_http_proxy", 1), ("grpc.http_proxy", proxy.url)]


def open_socket(address: Address, *, timeout_s: float) -> socket.socket:
    """Connect to a server, through the proxy if there is one.

    Raises:
        UnreachableError: the connection fails; the text names the remedy.
        ConfigError: the environment names a proxy that cannot be used.
    """
    proxy = proxy_for(address)
    if proxy is None:
        return _connected(address, str(address), timeout_s)
    plain = _connected(proxy.address, str(proxy), timeout_s)
    try:
        _ask_proxy(plain, proxy, address)
    except BaseException as error:
        plain.close()
        if isinstance(error, OSError):
            raise UnreachableError(f"{proxy} did not answer: {_words(error)}") from error
        raise
    return plain


def _connected(address: Address, name: str, timeout_s: float) -> socket.socket:
    try:
        return socket.create_connection((address.host, address.port), timeout_s)
    except socket.gaierror as error:
        raise UnreachableError(
            f"{name} did not answer: this machine does not know the name {address.host!r}; is it spelt right, and "
            "does its DNS work?"
        ) from error
    except ConnectionRefusedError as error:
        raise UnreachableError(
            f"{name} did not answer: nothing listens there; is it running, and is that its port?"
        ) from error
    except TimeoutError as error:
        raise UnreachableError(
            f"{name} did not answer within {timeout_s:.0f} s: a firewall in between drops what is sent "
            "there, or the machine is off"
        ) from error
    except (OSError, UnicodeError) as error:
        raise UnreachableError(
            f"{name} did not answer: there is no way there from this machine ({_words(error)})"
        ) from error


def _ask_proxy(plain: socket.socket, proxy: Proxy, address: Address) -> None:
    lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if proxy.login:
        word = base64.b64encode(unquote(proxy.login).encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {word}")
    plain.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        more = plain.recv(1)  # not a byte of what comes after
        answer += more
        if not more or len(answer) > ANSWER_BYTES_MAX:
            raise UnreachableError(f"{proxy} does not speak HTTP; is that its address?")
    status = answer.split(b"\r\n", 1)[0].decode("ascii", "replace").split(" ", 2)
    if not status[0].startswith("HTTP/1.") or len(status) < 2:
        raise UnreachableError(f"{proxy} does not speak HTTP; is that its address?")
    if status[1] != "200":
        said = "".join(c if c.isprintable() else "?" for c in " ".join(status[1:]))[:80]
        remedy = "ask who runs it to allow that, or name the server in no_proxy"
        if status[1] == "407":
            remedy = (
                f"write user and password into {proxy.variable}: http://USER:PASSWORD@HOST:PORT"
            )
        raise UnreachableError(f"{proxy} refuses to connect to {address}: {said}; {remedy}")


def _words(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)[:200]
