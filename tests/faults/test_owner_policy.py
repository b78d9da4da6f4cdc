"""Case 27: a server that demands too much is refused by real agents, and their owners see it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from meadow.cli.main import main
from meadow.client.agent.agent import Agent
from meadow.client.agent.events import Event
from meadow.client.agent.training import Trainer
from meadow.client.owner.identity_folder import IdentityFolder
from meadow.client.tools.enroll import enroll
from meadow.transport import fleet_pb2 as pb

from .arena import Arena, Played, write_app
from .live_server import CALL_S, LiveServer
from .test_bad_updates import ALONE


class Unused(Trainer):
    """A trainer that must not be asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def execute(
        self,
        instruction: pb.Instruction,
        blob_dir: Path,
        reply_dir: Path,
        state_dir: Path,
        state: bytes,
        step: Callable[[], None],
    ) -> pb.TrainingDone:
        """Take note, and fail."""
        self.asked.append(instruction.id)
        raise AssertionError("the owner does not allow this")


@dataclass(slots=True, kw_only=True)
class Site:
    """A client whose owner says no."""

    reason: str
    """What the owner and the server's operator read."""
    directory: Path = Path()
    trainer: Unused = field(default_factory=Unused)
    events: list[Event] = field(default_factory=list)
    played: Played | None = None


def nothing(app: Path) -> None:
    """Leave the owner's copy of the app as it is."""


def change(app: Path) -> None:
    """Change one byte of an app."""
    with (app / "task.py").open("a") as file:
        file.write("#")


def uninstall(app: Path) -> None:
    """Let the owner's file name no app."""
    file = app.parent / "client.toml"
    file.write_text(file.read_text().replace('"slots" =', '"other" ='))


def empty(app: Path) -> None:
    """Remove the app's files."""
    for path in app.iterdir():
        path.unlink()
    app.rmdir()


SITES = {
    "cohort": ("min_cohort = 50", "policy.min_cohort is 50, this round has", nothing),
    "secagg": ("require_secure_aggregation = true", "this run does not use it", nothing),
    "privacy": ("require_differential_privacy = true", "this run does not use it", nothing),
    "not-allowed": (
        f'allowed_apps = ["sha256:{"0" * 64}"]',
        "not among policy.allowed_apps",
        nothing,
    ),
    "changed": ("", "install the same files on both sides", change),
    "unknown": ("", "app 'slots' is not installed here", uninstall),
    "gone": ("", "install the same files on both sides", empty),
    "bad-toml": ("min_cohort = -1", "client.toml or app has an error", nothing),
}


def install(live: LiveServer, folder: Path, name: str, site: Site) -> Agent:
    """Enrol a client with its own copy of the app."""
    site.directory = folder / name
    app = site.directory / "slots"
    write_app(app)
    enroll(
        site.directory, server=live.enroll_address, token=live.token(name),
        ca_fingerprint=live.home.authority.fingerprint, apps=[app],
    )  # fmt: skip
    return Agent(site.directory, trainer=site.trainer, report=site.events.append)


@contextmanager
def serving(agents: list[Agent]) -> Iterator[None]:
    """Run agents in a thread of their own."""

    async def serve() -> None:
        await asyncio.gather(*(agent.run() for agent in agents))

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield
    finally:
        for agent in agents:
            loop.call_soon_threadsafe(agent.stop)
        thread.join(CALL_S)
        loop.close()


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """All these clients, after a round that none of them takes part in."""
    folder = tmp_path_factory.mktemp("owners")
    with (
        closing(LiveServer(folder / "server")) as live,
        closing(Arena(live, folder / "c")) as arena,
    ):
        yield refuse_all(live, arena, folder)


def refuse_all(live: LiveServer, arena: Arena, folder: Path) -> dict[str, Site]:
    """Play the round that all of them refuse."""
    arena.play()  # and the next round is drawn, without the agents
    made = {name: Site(reason=reason) for name, (_, reason, _) in SITES.items()}
    agents = [install(live, folder, name, site) for name, site in made.items()]
    with serving(agents):
        for name, (policy, _, spoil) in SITES.items():
            live.wait_for_site(name, "connected")
            with (made[name].directory / "client.toml").open("a") as file:
                file.write(policy + "\n")
            spoil(made[name].directory / "slots")
        played = arena.play(agents=len(agents))
    for site in made.values():
        site.played = played
    return made


@pytest.mark.parametrize("name", SITES)
def test_refuses(sites: dict[str, Site], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The client does not train, tells the server why in a line, and its owner reads it later."""
    site = sites[name]
    assert site.played is not None
    assert site.trainer.asked == []
    refused = [event.text for event in site.events if event.kind == "refused"]
    said = [text for text in refused if text.startswith(f"round {site.played.number}:")]
    assert len(said) == 1 and site.reason in said[0]
    node_id = IdentityFolder(site.directory).load().node_id
    told = [d for k, d in site.played.events if k == "client_failed" and d["client"] == node_id]
    assert [detail["round"] for detail in told] == [site.played.number]
    assert "refused by its owner" in told[0]["reason"] and site.reason in told[0]["reason"]
    if name == "bad-toml":  # `status` needs that file, too
        return
    with suppress(SystemExit):
        main(["client", "status", "--dir", str(site.directory), "--format", "json"])
    assert site.reason in json.loads(capsys.readouterr().out)["refusals"][0]["reason"]


def test_run_goes_on(sites: dict[str, Site]) -> None:
    """Those who take part count as if nobody had refused."""
    (played,) = {id(site.played): site.played for site in sites.values()}.values()
    assert played is not None and played.counted == ALONE
