"""client.toml: the owner's file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meadow.config.client_config import ClientConfig, load_client_config, make_client_config
from meadow.errors import ConfigError

HASH = f"sha256:{'0' * 64}"
OWNERS = f"""
[apps]
digits = "apps/digits"
elsewhere = "/srv/app"
[data]
index = 1
count = 3
path = "/data/images"
limits = {{ rows = 10 }}
[device]
device = "cuda:1"
threads = 4
memory_mb_max = 2048
[policy]
allowed_apps = ["{HASH}"]
min_cohort = 3
rounds_per_day = 24
require_secure_aggregation = true
"""


def test_an_owners_file_is_read(tmp_path: Path) -> None:
    """Every section is understood; app folders are beside the file; free keys are kept."""
    (tmp_path / "client.toml").write_text(OWNERS)
    config = load_client_config(tmp_path)
    assert config.apps == {"digits": str(tmp_path / "apps/digits"), "elsewhere": "/srv/app"}
    assert (config.data.index, config.data.count) == (1, 3)
    assert config.data.config == {"path": "/data/images", "limits": {"rows": 10}}
    assert (config.device.device, config.device.threads) == ("cuda:1", 4)
    assert config.device.memory_mb_max == 2048
    assert config.policy.allowed_apps == (HASH,)
    assert (config.policy.min_cohort, config.policy.rounds_per_day) == (3, 24)
    assert config.policy.require_secure_aggregation
    assert not config.policy.require_differential_privacy
    assert config.source == tmp_path / "client.toml"


def test_the_environment_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file alone decides: an owner's policy cannot be loosened from outside."""
    path = tmp_path / "client.toml"
    path.write_text("[policy]\nmin_cohort = 9")
    monkeypatch.setenv("MEADOW_POLICY__MIN_COHORT", "1")
    assert load_client_config(path).policy.min_cohort == 9


def test_an_empty_file_allows_its_apps_only() -> None:
    """Without a word there is no app, no data key, and the processor."""
    config = make_client_config({})
    assert config.apps == {} and config.data.config == {}
    assert config.data.index is None
    assert (config.device.device, config.device.threads) == ("auto", 1)
    assert config.policy.allowed_apps == ()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"polcy": {}}, "polcy is not a known key; did you mean policy?"),
        ({"policy": {"min_cohrt": 2}}, "did you mean policy.min_cohort?"),
        ({"policy": {"min_cohort": 0}}, "policy.min_cohort must be a whole number >= 1, got 0"),
        ({"policy": {"rounds_per_day": 0.5}}, "policy.rounds_per_day must be a whole number"),
        ({"policy": {"require_secure_aggregation": 1}}, "must be true or false, got 1"),
        ({"policy": {"allowed_apps": HASH}}, "policy.allowed_apps must be a list of texts"),
        ({"policy": {"allowed_apps": [3]}}, "policy.allowed_apps must be a list of texts"),
        ({"policy": {"allowed_apps": ["digits"]}}, 'must be "sha256:" and 64 hexadecimal digits'),
        ({"policy": {"min_survivors": 1}}, "policy.min_survivors must be a whole number >= 2"),
        ({"policy": {"min_colluders": -1}}, "policy.min_colluders must be a whole number >= 0"),
        ({"policy": {"known_peers": ["site-b"]}}, 'must be "ed25519:" and 64 hexadecimal digits'),
        ({"apps": {"digits": 3}}, "apps.digits must be a text, got 3"),
        ({"apps": ["digits"]}, "apps must be a table, [apps]"),
        ({"data": 3}, "data must be a table, [data], got 3"),
        ({"data": {"index": -1}}, "data.index must be a whole number >= 0"),
        ({"data": {"index": 3, "count": 3}}, "data.index = 3 must be less than data.count = 3"),
        ({"device": {"device": "gpu"}}, 'device.device must be "auto"'),
        ({"device": {"device": "cuda:x"}}, 'device.device must be "auto"'),
        ({"device": {"gpus": "some"}}, 'device.gpus must be "all", "cpu", a number or a list'),
        ({"device": {"gpus": [0, 0]}}, "device.gpus must be different numbers >= 0, got [0, 0]"),
        ({"device": {"gpus": []}}, "device.gpus must be different numbers >= 0, got []"),
        ({"device": {"gpus": ["a"]}}, "list of whole numbers"),
        ({"device": {"gpus": 0, "device": "cpu"}}, 'says again what device = "cpu" says'),
        ({"device": {"parallel": "dpp"}}, 'did you mean "ddp"?'),
        ({"device": {"parallel": "ddp", "device": "mps"}}, "is for several processes"),
        ({"device": {"processes": 2}}, "device.processes is only for when device.parallel"),
        (
            {"device": {"gpus": [0, 1], "parallel": "ddp", "processes": 3}},
            "= 3 must be the number of device.gpus, 2",
        ),
        ({"device": {"threads": 0}}, "device.threads must be a whole number >= 1"),
        ({"device": {"memory_mb_max": 1}}, "device.memory_mb_max must be a whole number >= 64"),
    ],
)
def test_mistakes_are_named(values: dict[str, Any], says: str) -> None:
    """Every mistake names the file, the key, and what would be right."""
    with pytest.raises(ConfigError, match=f"^here: .*{re.escape(says)}"):
        make_client_config(values, where="here")


def test_a_missing_file_says_who_makes_it(tmp_path: Path) -> None:
    """A missing file is an error with the next step."""
    with pytest.raises(ConfigError, match="meadow client enroll"):
        load_client_config(tmp_path)


free = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
names = st.sampled_from(
    ["apps", "data", "device", "policy", "index", "threads", "allowed_apps", "min_cohort"]
)
tables = st.dictionaries(
    names, free | st.lists(free, max_size=2) | st.dictionaries(names, free, max_size=4), max_size=4
)


@given(tables)
def test_any_table_is_a_config_or_a_config_error(table: dict[str, Any]) -> None:
    """Whatever a file holds, it is understood or refused."""
    try:
        assert isinstance(make_client_config(table), ClientConfig)
    except ConfigError as error:
        assert "\n" not in str(error)
