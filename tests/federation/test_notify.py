"""A real daemon that tells a webhook and a command, is killed, and goes on telling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from webhooks import WebhookServer

from .processes import Federation, meadow, wait_until

DIGITS = Path(__file__).parents[1] / "shared" / "digits"
pytestmark = pytest.mark.fleet


@pytest.fixture
def told(tmp_path: Path) -> Iterator[tuple[Federation, WebhookServer, Path]]:
    """A server that tells a webhook, and a command that appends to a file."""
    hook, mails = WebhookServer("run_finished"), tmp_path / "mails"
    script = tmp_path / "sendmail"
    script.write_text(f"#!/bin/sh\ncat >> {mails}\n")
    script.chmod(0o755)
    made = Federation(tmp_path, DIGITS)
    key = made.server_dir / "notify.key"
    key.write_text("secret-" * 10)
    key.chmod(0o600)
    with (made.server_dir / "server.toml").open("a") as file:
        file.write(
            f'[notify]\nurl = "{hook.url}"\nkey_file = "notify.key"\ncommand = ["{script}"]\n'
            "site_gone_minutes = 0.02\n"
        )
    try:
        made.start_server()
        made.add_clients(2)
        yield made, hook, mails
    finally:
        made.close()
        hook.close()


def test_told_whatever_is_killed(told: tuple[Federation, WebhookServer, Path]) -> None:
    """A run's end arrives, also when the daemon is killed while it tells of it, with the same id; so
    does a site that goes and comes back. The key is in no log."""
    federation, hook, mails = told
    hook.statuses = [500, None]
    run = federation.submit("run.rounds=1", "run.min_clients=2", "simulation.clients=2")
    assert federation.wait_for_end(run)["status"] == "finished"

    def ends() -> list[str]:
        return [body["id"] for body in hook.bodies if body["event"] == "run_finished"]

    def was(event: str) -> bool:
        about = [(body["event"], body["detail"].get("about")) for body in hook.bodies[seen:]]
        return (event, "client-1") in about

    wait_until(lambda: len(ends()) == 2, "the second try")
    federation.server.kill()
    federation.start_server()
    wait_until(lambda: len(ends()) == 3, "it is told again")
    assert len(set(ends())) == 1
    seen = len(hook.got)
    federation.clients[1].kill()
    wait_until(lambda: was("site_gone"), "it is gone")
    (warning,) = [text for text in warnings(federation) if "client-1" in text]
    assert warning.startswith("client-1 has been away for")
    federation.clients[1].start()
    wait_until(lambda: was("site_back"), "it is back")
    assert not [text for text in warnings(federation) if "client-1" in text]
    wait_until(lambda: "client-1 is back" in mails.read_text(), "the command was told, too")
    assert f"run {run} finished" in mails.read_text()
    for log in (federation.server.log, federation.server_dir / "journal.sqlite"):
        assert b"secret-secret" not in log.read_bytes()


def warnings(federation: Federation) -> list[str]:
    """Return what `meadow server status` warns of."""
    return list(meadow("server", "status", "--dir", str(federation.server_dir))["warnings"])
