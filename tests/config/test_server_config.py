"""server.toml: where the server listens, and its bounds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meadow.config.server_config import (
    ServerConfig,
    load_server_config,
    make_server_config,
    server_config_to_toml,
)
from meadow.errors import ConfigError


def test_text_reads_back(tmp_path: Path) -> None:
    """What `meadow server init` writes is what `meadow server start` reads."""
    made = ServerConfig(hosts=("fl.example.org", "::1"), fleet_port=0, enroll_port=0, lease_s=5.5)
    (tmp_path / "server.toml").write_text(server_config_to_toml(made))
    assert load_server_config(tmp_path) == made
    assert load_server_config(tmp_path / "server.toml").source == tmp_path / "server.toml"


def test_a_missing_file_says_who_makes_it(tmp_path: Path) -> None:
    """A missing file is an error with the next step."""
    with pytest.raises(ConfigError, match="meadow server init"):
        load_server_config(tmp_path)


@pytest.mark.parametrize("host", ["localhost", "fl.example.org", "10.0.0.1", "::1", "a"])
def test_hosts(host: str) -> None:
    """Names and addresses of both kinds are hosts."""
    assert make_server_config({"hosts": [host], "listen": host}).hosts == (host,)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"hots": "x"}, "hots is not a known key; did you mean hosts?"),
        ({"zzzzzz": 1}, "zzzzzz is not a known key; known are hosts, listen"),
        ({"hosts": ["a b"]}, "hosts must be a host name or an address"),
        ({"hosts": []}, "hosts must name at least one host, got none"),
        ({"hosts": "a"}, "hosts must be a list of texts"),
        ({"listen": "https://x"}, "listen must be a host name or an address"),
        ({"fleet_port": 70000}, "fleet_port must be a whole number >= 0 and <= 65535, got 70000"),
        ({"fleet_port": 1, "enroll_port": 1}, "fleet_port and enroll_port are both 1"),
        ({"certificate_days": 0}, "certificate_days must be a whole number >= 1"),
        ({"lease_s": 0}, "lease_s must be a number >= 1"),
        ({"blob_bytes_max": 1}, "blob_bytes_max must be a whole number >= 1024"),
        ({"fleet": {"port": 1}}, "fleet is not a known key"),
        ({"notify": {"url": "file:///etc/passwd", "key_file": "k"}}, "notify.url = "),
        ({"notify": {"url": "https://a b\r\nX: y", "key_file": "k"}}, "notify.url = "),
        (
            {"notify": {"url": "https://u:p@a/", "key_file": "k"}},
            "notify.url must not hold a password",
        ),
        (
            {"notify": {"url": "http://10.0.0.1/", "key_file": "k"}},
            "notify.url = http://10.0.0.1/ must begin with https",
        ),
        (
            {"notify": {"url": "https://a:70000/", "key_file": "k"}},
            "notify.url = https://a:70000/ must be a URL",
        ),
        ({"notify": {"key_file": "k"}}, "notify.key_file is only for when notify.url is set"),
    ],
)
def test_mistakes_are_named(values: dict[str, Any], says: str) -> None:
    """Every mistake names the file, the key, and what would be right."""
    with pytest.raises(ConfigError, match=f"^here: {re.escape(says)}"):
        make_server_config(values, where="here")


free = st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.text())
names = st.sampled_from(
    ["hosts", "listen", "fleet_port", "enroll_port", "lease_s", "certificate_days", "x"]
)


@given(st.dictionaries(names, free, max_size=5))
def test_any_table_is_a_config_or_a_config_error(table: dict[str, Any]) -> None:
    """Whatever a file holds, it is understood or refused."""
    try:
        assert isinstance(make_server_config(table), ServerConfig)
    except ConfigError as error:
        assert "\n" not in str(error)
