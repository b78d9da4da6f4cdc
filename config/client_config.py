"""client.toml: what the owner of the data allows, and with what it is trained.

The file is the owner's: nothing that a server sends, and no environment variable, changes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from ..errors import ConfigError
from ..transport.address import Address
from .schema.rules import Rule
from .schema.settings import Settings, refuse, setting
from .schema.sources import given_by_table, read_toml
from .schema.values import build
from .sections.device import DeviceConfig

__all__ = [
    "APPROVED_FILE",
    "BLOBS_KEPT",
    "PEER_PREFIX",
    "RECEIVED_BYTES_MAX",
    "ClientConfig",
    "DataConfig",
    "DeviceConfig",
    "MonitoringConfig",
    "PolicyConfig",
    "ServerAddresses",
    "load_client_config",
    "make_client_config",
]

FILE_NAME = "client.toml"
APPROVED_FILE = ".list.json"  # no app can be called so
"""In the folder `approved` beside it: the offered apps that the owner has approved."""
AUTO_APPROVE = "auto_approve"
PEER_PREFIX = "ed25519:"
RECEIVED_BYTES_MAX = 4 << 30
BLOBS_KEPT = 4
"""So many files of instructions an agent keeps, those that are in use among them."""
HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
SHA256 = r"sha256:[0-9a-f]{64}"
ED25519 = r"ed25519:[0-9a-f]{64}"
PLACES = ("client", "distributed", "server")
"""Where noise may be added; as `NoiseTerms.place` says it."""


def minutes_of(hours: str) -> tuple[int, ...]:
    """Return the two times of day in `hours`, in minutes since midnight; nothing if they are none."""
    found = HOURS.fullmatch(hours)
    if found is None or hours[:5] == hours[6:]:
        return ()
    numbers = [int(each) for each in found.groups()]
    return numbers[0] * 60 + numbers[1], numbers[2] * 60 + numbers[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """[data]: this site's place among the sites; every other key is handed to the app."""

    index: int | None = setting(
        None, "this site's number, from 0; its place among the run's sites if absent", at_least=0
    )
    count: int | None = setting(
        None, "how many sites there are; those of the run if absent", at_least=1
    )
    config: Mapping[str, Any] = field(default_factory=dict)
    """The free keys: what the task's `client_data` finds in `Site.config`."""

    rules: ClassVar[tuple[Rule[DataConfig], ...]] = (
        Rule(
            ("index", "count"),
            "less than `count`",
            lambda data: None not in (data.index, data.count) and data.index >= data.count,  # type: ignore[operator]
            "= {index} must be less than data.count = {count}: sites count from 0",
        ),
    )


def _first_but(form: str, texts: Sequence[str]) -> str | None:
    """Return the first of the texts that is not in a form; one that is empty cannot be."""
    return next((text for text in texts if not re.fullmatch(form, text)), None)


def _no_address(texts: Sequence[str]) -> str | None:
    """Return what is wrong with the first text that is no address."""
    try:
        for text in texts:
            Address.parse(text, what="each")
    except ConfigError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddresses:
    """[server]: where this site reaches its server."""

    addresses: tuple[str, ...] = setting(
        (),
        "HOST:PORT of the server, several for several ways to it: when one does not answer, the agent tries the "
        "next, and keeps the one that does; the address that was told at enrolment if empty",
    )

    rules: ClassVar[tuple[Rule[ServerAddresses], ...]] = (
        Rule(
            ("addresses",),
            "HOST:PORT each",
            lambda server: _no_address(server.addresses),
            "must be a list of HOST:PORT; {found}",
        ),
    )

    def tried(self, told: str) -> tuple[str, ...]:
        """Return the addresses to try, given the one that was told at enrolment."""
        return tuple(str(Address.parse(each)) for each in self.addresses) or (told,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """[policy]: what this site refuses, whatever a server asks."""

    allowed_apps: tuple[str, ...] = setting(
        (), 'the only apps that may run, as "sha256:..."; empty is every app under [apps]'
    )
    min_cohort: int = setting(
        1,
        "refuse a round of fewer clients than this; within secure sums the clients make sure of it "
        "themselves, and else it is the server's word",
        at_least=1,
    )
    received_bytes_max: int = setting(
        RECEIVED_BYTES_MAX,
        "refuse an instruction with more tensors than this, in bytes; so much of what was received "
        "is kept besides",
        at_least=0,
        at_most=64 << 30,
    )
    disk_bytes_max: int | None = setting(
        None,
        "refuse an instruction for which this folder would need more than this, with as much for the answer "
        "as for what is received; no limit if absent",
        at_least=1 << 20,
        at_most=1 << 50,
    )
    bandwidth_bytes_per_s_max: int | None = setting(
        None,
        "transfer tensors with at most so many bytes per second, received and sent together; no limit if "
        "absent",
        at_least=16 << 10,
        at_most=1 << 40,
    )
    rounds_per_day: int | None = setting(
        None, "train in at most this many rounds in 24 hours; no limit if absent", at_least=1
    )
    require_secure_aggregation: bool = setting(
        False, "refuse every instruction whose answer is not within a secure sum"
    )
    min_survivors: int = setting(
        2, "refuse a secure sum that could be of fewer clients than this", at_least=2
    )
    min_colluders: int = setting(
        0,
        "refuse a secure sum that does not withstand so many clients colluding with the server",
        at_least=0,
    )
    known_peers: tuple[str, ...] = setting(
        (),
        'the only clients that a secure sum may be with, as "ed25519:..."; if empty, those that '
        "the server shows, each with the key that it has at first",
    )
    require_differential_privacy: bool = setting(
        False, "refuse every instruction whose answer carries no noise"
    )
    noise: tuple[str, ...] = setting(
        (),
        'refuse noise that is added elsewhere: "client" by this client to what it sends, '
        '"distributed" by all clients of a secure sum, "server" by the server, which then sees what '
        "this client sends; empty is anywhere",
    )
    hours: str | None = setting(
        None,
        'take part only at these hours of this machine\'s local time, as "20:00-06:00"; at all hours if '
        "absent",
    )
    mains_power_only: bool = setting(
        False, "take part only while this machine has mains power (Linux)"
    )
    load_max: float | None = setting(
        None,
        "take part only while the system's load, the average of a minute for each core, is at most this; "
        "training counts: with device.threads = 2 on 4 cores it makes 0.5",
        above=0,
        at_most=1000,
    )
    temperature_max_c: float | None = setting(
        None,
        "take part only while no sensor of this machine is hotter than this, in degrees Celsius (Linux)",
        above=0,
        at_most=150,
    )
    unmetered_only: bool = setting(
        False,
        "take part only while the network in use is not metered, by NetworkManager's word or by "
        "metered_interfaces (Linux)",
    )
    metered_interfaces: tuple[str, ...] = setting(
        ("wwan*", "ppp*"),
        "network interfaces that are metered, whatever NetworkManager says; * stands for anything",
        only={"unmetered_only": (True,)},
    )
    report_device: bool = setting(
        False, "send examples a second, peak memory and the GPU's utilisation with an update"
    )
    epsilon_max: float | None = setting(
        None,
        "refuse what would make the epsilon of all rounds on this data, over all runs, larger; "
        "no limit if absent",
        above=0,
        at_most=1e4,
    )
    record_epsilon_max: float | None = setting(
        None,
        "refuse what would make the epsilon of a single record, over all rounds and runs, larger; "
        "no limit if absent",
        above=0,
        at_most=1e4,
    )
    delta: float = setting(1e-6, "the delta at which these epsilons are meant", above=0, below=1)

    rules: ClassVar[tuple[Rule[PolicyConfig], ...]] = (
        Rule(
            ("allowed_apps",),
            '"sha256:" and 64 hexadecimal digits each',
            lambda policy: _first_but(SHA256, policy.allowed_apps),
            'must be "sha256:" and 64 hexadecimal digits each, got {found!r}; "meadow client doctor" prints '
            "those of the installed apps",
        ),
        Rule(
            ("noise",),
            f"some of {list(PLACES)}",
            lambda policy: _first_but("|".join(PLACES), policy.noise),
            f"must be some of {list(PLACES)}, got {{found!r}}",
        ),
        Rule(
            ("hours",),
            'two times of day, as "20:00-06:00"',
            lambda policy: policy.hours is not None and not minutes_of(policy.hours),
            'must be two different times of day, as "20:00-06:00", got {hours!r}',
        ),
        Rule(
            ("known_peers",),
            f'"{PEER_PREFIX}" and 64 hexadecimal digits each',
            lambda policy: _first_but(ED25519, policy.known_peers),
            f'must be "{PEER_PREFIX}" and 64 hexadecimal digits each, got {{found!r}}; "meadow client '
            "doctor\" prints a client's own, for the other owners",
        ),
    )

    @property
    def has_budget(self) -> bool:
        """Whether what was spent before matters."""
        return self.epsilon_max is not None or self.record_epsilon_max is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoringConfig:
    """[monitoring]: what this site's own monitoring reads of the agent."""

    metrics_port: int | None = setting(
        None,
        "port on 127.0.0.1 where Prometheus reads /metrics; every user of this machine can read the names "
        "of apps and the privacy budget there. It is read when the agent starts. It is not there if absent",
        at_least=1,
        at_most=65535,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Everything that client.toml says."""

    apps: Mapping[str, str] = setting(
        None,
        "the apps installed here: a name and its folder, beside this file or absolute. "
        'auto_approve = ["ed25519:..."] among them: authors whose signed versions are installed when '
        "the server offers them; without it, every offered version waits for `meadow client apps`",
    )
    server: ServerAddresses = field(default_factory=ServerAddresses)
    data: DataConfig = field(default_factory=DataConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    monitoring: MonitoringConfig = field(default_factory=MonitoringConfig)
    auto_approve: tuple[str, ...] = field(default=())
    """The authors of [apps]."""
    approved: Mapping[str, str] = field(default_factory=dict)
    """Which of `apps` are offered ones that were approved, and with which hash."""
    source: Path | None = field(default=None, compare=False)
    """The file it was read from."""


def load_client_config(path: Path | str) -> ClientConfig:
    """Read client.toml, or the one in a folder; app folders become absolute.

    Raises:
        ConfigError: anything at all is wrong; the text names the file, the key and the remedy.
    """
    file = Path(path)
    if file.is_dir():
        file = file / FILE_NAME
    table = read_toml(file, remedy='"meadow client enroll" makes one')
    config = make_client_config(table, where=str(file))
    here = file.parent.absolute()
    apps = {name: str(here / folder) for name, folder in config.apps.items()}
    approved = _approved(here / "approved")
    apps |= {name: str(here / "approved" / name / sha256) for name, sha256 in approved.items()}
    return replace(config, apps=apps, approved=approved, source=file)


def _approved(folder: Path) -> dict[str, str]:
    """Return the versions that the owner has approved, by the app's name.

    Raises:
        ConfigError: the file is damaged.
    """
    file = folder / APPROVED_FILE
    try:
        apps = json.loads(file.read_text())["apps"]
        good = all(
            re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name)
            and re.fullmatch(r"[0-9a-f]{64}", sha256)
            for name, sha256 in apps.items()
        )
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; restore it, or delete it") from None
    if not good:
        raise ConfigError(f"{file} names what is no app; restore it, or delete it")
    return dict(apps)


def make_client_config(values: Mapping[str, Any], *, where: str = "settings") -> ClientConfig:
    """Return the config of a mapping of sections, as `{"device": {"threads": 2}}`, checked.

    Raises:
        ConfigError: as `load_client_config`.
    """
    free: dict[str, Any] = {}
    data = values.get("data")
    if isinstance(data, Mapping):
        free = {key: value for key, value in data.items() if key not in ("index", "count")}
        values = {**values, "data": {key: data[key] for key in data if key not in free}}
    authors: tuple[str, ...] = ()
    apps = values.get("apps")
    if isinstance(apps, Mapping) and AUTO_APPROVE in apps:
        authors = _authors(apps[AUTO_APPROVE], where)
        values = {**values, "apps": {key: apps[key] for key in apps if key != AUTO_APPROVE}}
    given: Settings = given_by_table(ClientConfig, values, where)
    config = build(ClientConfig, given, where)
    config = replace(config, apps=config.apps or {}, data=replace(config.data, config=free))
    config = replace(config, auto_approve=authors)
    return config


def _authors(keys: Any, where: str) -> tuple[str, ...]:
    if not isinstance(keys, list) or not all(
        isinstance(key, str) and re.fullmatch(ED25519, key) for key in keys
    ):
        refuse(
            where,
            f"apps.{AUTO_APPROVE}",
            'must be a list of authors\' keys, "ed25519:" and 64 hexadecimal digits each; '
            '"meadow app key" prints one',
        )
    return tuple(keys)
