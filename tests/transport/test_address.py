"""HOST:PORT in every form that people and gRPC write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meadow.errors import ConfigError
from meadow.transport.address import Address, caller_of, host_of


@pytest.mark.parametrize(
    ("text", "host", "port", "written"),
    [
        ("fl.example.org:9443", "fl.example.org", 9443, "fl.example.org:9443"),
        ("10.0.0.1:1", "10.0.0.1", 1, "10.0.0.1:1"),
        ("[::1]:9443", "::1", 9443, "[::1]:9443"),
        ("[2001:DB8:0:0::1]:65535", "2001:db8::1", 65535, "[2001:db8::1]:65535"),
        (" localhost:80\n", "localhost", 80, "localhost:80"),
    ],
)
def test_read_and_written(text: str, host: str, port: int, written: str) -> None:
    """An IPv6 address is read in brackets, kept without them, and written with them."""
    found = Address.parse(text)
    assert (found.host, found.port, str(found)) == (host, port, written)
    assert Address.parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["", "h", "h:", ":1", "h:0", "h:65536", "h:-1", "h:1:2", "[::1]", "[::1", "[h]:1", "[]:1",
     "http://h:1", "a b:1", "256.1.1.1:1", "h:१", "[10.0.0.1]:1", "u@h:1", "h/x:1"],
)  # fmt: skip
def test_others_are_refused(text: str) -> None:
    """What is no address is an error that says how one is written."""
    with pytest.raises(ConfigError, match=r"^here.* HOST:PORT"):
        Address.parse(text, what="here")


def test_an_ipv6_address_without_brackets() -> None:
    """Nobody can tell where it ends, so the remedy is named."""
    with pytest.raises(ConfigError, match=r"in brackets: \[::1\]:9443"):
        Address.parse("::1:9443")


@pytest.mark.parametrize(
    ("text", "host"), [("[::1]", "::1"), ("::1", "::1"), ("0:0::0001", "::1"), ("a.b", "a.b")]
)
def test_hosts(text: str, host: str) -> None:
    """An address alone may stand with brackets or without."""
    assert host_of(text) == host


@pytest.mark.parametrize(
    ("peer", "caller"),
    [
        ("ipv4:10.0.0.1:5555", "10.0.0.1"),
        ("ipv6:%5B::1%5D:5555", "::/64"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:1", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:10.0.0.1%5D:7", "10.0.0.1"),
        ("unix:/x", "unix:/x"),
    ],
)
def test_callers(peer: str, caller: str) -> None:
    """Whoever has a network of IPv6 has all addresses in it, and is one caller."""
    assert caller_of(peer) == caller


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    """It is an address, or an error of ours in one line."""
    caller_of(text)
    try:
        Address.parse(text)
    except ConfigError as error:
        assert "\n" not in str(error)
