"""server.toml: where the server listens, and its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import SplitResult, urlsplit

from ..transport.address import Address, host_of
from .schema.rules import Rule
from .schema.settings import setting
from .schema.sources import given_by_table, read_toml
from .schema.text import settings_to_toml
from .schema.values import build

__all__ = [
    "EVENTS",
    "NotifyConfig",
    "ServerConfig",
    "StorageConfig",
    "load_server_config",
    "make_server_config",
    "server_config_to_toml",
]

FILE_NAME = "server.toml"
REPLY_BYTES_MIN = 64 << 20
CLIENT_BYTES_MAX = 32 << 30
SPOOL_BYTES_MAX = 256 << 30
EVENTS = (
    "run_finished", "run_failed", "run_stopped", "site_gone", "site_back", "certificate_ending",
    "certificate_renewed", "disk_low", "disk_recovered", "epsilon_near", "epsilon_recovered",
)  # fmt: skip
"""What the server tells somebody of, by its names."""
FREE_BYTES_MIN = 5_000_000_000
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _wrong_url(text: str | None) -> str | None:
    """Return what is wrong with a webhook's address, None if it can be used."""
    try:
        url = urlsplit(text or "https://-")
        url.port  # noqa: B018  # is parsed when it is asked for
    except ValueError as error:
        return f"= {text} must be a URL: {error}"
    if url.scheme not in ("https", "http") or not url.hostname or text != _plain(text):
        return f"= {text} must be a URL as https://alerts.example.org/meadow"
    if url.username is not None or url.password is not None:
        return "must not hold a password, as key_file proves who sends; remove it from the URL"
    if url.scheme == "http" and url.hostname not in LOOPBACK:
        return f"= {text} must begin with https, as only this machine itself may be told over http"
    return None


def _plain(text: str | None) -> str | None:
    """Return a text without what must not be in the first line of a request."""
    return text and "".join(mark for mark in text if "!" <= mark <= "~")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConfig:
    """[notify]: whom the server tells what has happened to it."""

    url: str | None = setting(
        None,
        "each event is sent there as JSON by POST, signed with `key_file`; https, or http to this machine itself",
    )
    key_file: str | None = setting(
        None,
        "the file of the secret that signs, 32 characters or more, which only the server's user may read; "
        "relative to the server's folder",
        only={"url": ()},
    )
    command: tuple[str, ...] = setting(
        (),
        "a program and its arguments, which gets each event as a mail on its standard input: "
        '["/usr/sbin/sendmail", "ops@example.org"]',
    )
    events: tuple[str, ...] = setting(EVENTS, "which events are told")
    site_gone_minutes: float = setting(
        10.0, "a site is gone when it was away for so long", above=0, at_most=10080
    )

    rules: ClassVar[tuple[Rule[NotifyConfig], ...]] = (
        Rule(
            ("url",),
            "https, or http to loopback; no password",
            lambda notify: _wrong_url(notify.url),
        ),
        Rule(
            ("url", "key_file"),
            "`key_file`",
            lambda notify: notify.url is not None and notify.key_file is None,
            "= {url} needs key_file, which signs what is sent; `openssl rand -hex 32 > notify.key` makes one",
        ),
        Rule(
            ("events",),
            "events that there are",
            lambda notify: next((each for each in notify.events if each not in EVENTS), None),
            "must be some of " + ", ".join(EVENTS) + "; {found} is not one",
        ),
        Rule(
            ("command",),
            "a program by its whole path",
            lambda notify: bool(notify.command) and not notify.command[0].startswith("/"),
            "= {command} must begin with a program's whole path, as /usr/sbin/sendmail",
        ),
    )

    @property
    def parts(self) -> SplitResult | None:
        """The parts of `url`, if there is one."""
        return urlsplit(self.url) if self.url else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """[storage]: how long ended runs keep what they have left, and how much the server's folder holds."""

    keep_runs_days: float | None = setting(
        None,
        "so many days after its end, a run's app, checkpoints, model and logs are deleted; its summary, metrics, "
        "configuration and privacy ledger stay. Everything stays if absent",
        at_least=0,
        at_most=36500,
    )
    keep_runs: int | None = setting(
        None, "likewise of all ended runs but so many, the newest", at_least=0
    )
    bytes_max: int | None = setting(
        None,
        "the quota of the server's folder, in bytes: there is a warning at 80 %, and at 100 % no run begins; "
        "runs under way go on",
        at_least=1 << 20,
        at_most=1 << 60,
    )
    free_bytes_min: int = setting(
        FREE_BYTES_MIN,
        "there is a warning when the server's disk has less than this free, in bytes",
        at_least=0,
        at_most=1 << 60,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything that server.toml says."""

    hosts: tuple[str, ...] = setting(
        ("localhost", "127.0.0.1"),
        "names and addresses that clients reach the server by; the certificate is made for them",
    )
    listen: str = setting("0.0.0.0", "the address of this machine that is listened on")
    fleet_port: int = setting(
        9443, "where enrolled clients connect (mutual TLS); 0 is any", at_least=0, at_most=65535
    )
    enroll_port: int = setting(
        9444, "where clients enrol with a token; 0 is any", at_least=0, at_most=65535
    )
    fleet_address: str | None = setting(
        None,
        "HOST:PORT that enrolled clients are told to connect to, where that is another than the "
        "first of hosts with fleet_port: behind NAT, or a forwarded port",
    )
    enroll_address: str | None = setting(
        None, "likewise, HOST:PORT where clients enrol, which `meadow server token` shows"
    )
    blob_bytes_max: int = setting(
        16 << 30, "the largest file of tensors that is taken", at_least=1 << 10, at_most=1 << 50
    )
    reply_bytes_min: int = setting(
        REPLY_BYTES_MIN,
        "a reply may have files of so many bytes however small what was sent to its client; "
        "else 8 times what was sent",
        at_least=0,
        at_most=1 << 50,
    )
    client_bytes_max: int = setting(
        CLIENT_BYTES_MAX,
        "files of one client's replies at once, in bytes; more of them wait",
        at_least=1 << 10,
        at_most=1 << 50,
    )
    spool_bytes_max: int = setting(
        SPOOL_BYTES_MAX,
        "files of all clients' replies at once, in bytes; more of them wait",
        at_least=1 << 10,
        at_most=1 << 60,
    )
    certificate_days: int = setting(
        7, "how long a client's certificate is good; clients renew it", at_least=1, at_most=3650
    )
    lease_s: float = setting(
        60.0, "a client that shows no progress for this time is given up", at_least=1, at_most=86400
    )
    metrics_address: str | None = setting(
        None,
        "HOST:PORT where Prometheus reads /metrics, as 127.0.0.1:9464; whoever reaches it reads names of "
        "clients and progress of runs. It is not there if absent",
    )
    epsilon_max: float | None = setting(
        None,
        "refuse a run that would make the epsilon of a client which takes part in all runs of this "
        "server larger; no limit if absent",
        above=0,
        at_most=1e4,
    )
    record_epsilon_max: float | None = setting(
        None,
        "likewise of a single record",
        above=0,
        at_most=1e4,
    )
    delta: float = setting(1e-6, "the delta at which these epsilons are meant", above=0, below=1)
    notify: NotifyConfig | None = None
    storage: StorageConfig | None = None
    source: Path | None = field(default=None, compare=False)
    """The file it was read from."""

    rules: ClassVar[tuple[Rule[ServerConfig], ...]] = (
        Rule(
            ("hosts",),
            "at least one",
            lambda server: not server.hosts,
            "must name at least one host, got none; name what clients reach the server by",
        ),
        Rule(
            ("fleet_port", "enroll_port"),
            "another than `enroll_port`",
            lambda server: server.fleet_port == server.enroll_port != 0,
            "and enroll_port are both {fleet_port}; the two listeners need different ports",
        ),
    )

    @property
    def names(self) -> tuple[str, ...]:
        """Every name and address that clients may reach the server by."""
        announced = [each for each in (self.fleet_address, self.enroll_address) if each]
        return tuple(
            dict.fromkeys([*self.hosts, *(Address.parse(each).host for each in announced)])
        )

    def fleet_advertised(self, port: int) -> str:
        """Return the announced address of the fleet service, whose listener has this port."""
        return self.fleet_address or str(Address(self.hosts[0], port))

    def enroll_advertised(self, port: int) -> str:
        """Return the announced address for enrolment, whose listener has this port."""
        return self.enroll_address or str(Address(self.hosts[0], port))


def load_server_config(path: Path | str) -> ServerConfig:
    """Read server.toml, or the one in a folder.

    Raises:
        ConfigError: anything at all is wrong; the text names the file, the key and the remedy.
    """
    file = Path(path)
    if file.is_dir():
        file = file / FILE_NAME
    table = read_toml(file, remedy='"meadow server init" makes one')
    return replace(make_server_config(table, where=str(file)), source=file)


def make_server_config(values: Mapping[str, Any], *, where: str = "settings") -> ServerConfig:
    """Return the config of a mapping, as `{"hosts": ["fl.example.org"]}`, checked.

    Raises:
        ConfigError: as `load_server_config`.
    """
    config = build(ServerConfig, given_by_table(ServerConfig, values, where), where)
    return _with_addresses(config, where)


def _with_addresses(config: ServerConfig, where: str) -> ServerConfig:
    """Return the config with every name and address in its usual form."""

    def host(key: str, text: str) -> str:
        return host_of(text, what=f"{where}: {key}")

    def address(key: str) -> str | None:
        text: str | None = getattr(config, key)
        return None if text is None else str(Address.parse(text, what=f"{where}: {key}"))

    return replace(
        config,
        hosts=tuple(host("hosts", each) for each in config.hosts),
        listen=host("listen", config.listen),
        fleet_address=address("fleet_address"),
        enroll_address=address("enroll_address"),
        metrics_address=address("metrics_address"),
    )


def server_config_to_toml(config: ServerConfig) -> str:
    """Return the text of a server.toml that says all of `config`."""
    return settings_to_toml(config)
