"""An app that no site has installed: offered, looked at, approved, run; and signed ones at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from .processes import Federation, meadow, wait_until

CODE = """
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()
ANSWER = 7

@client.query()
def answer(message, context):
    return Message(RecordDict({"m": MetricRecord({"answer": ANSWER})}), reply_to=message)

@server.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        pass
    asked = [Message(RecordDict({"c": ConfigRecord({})}), node, "query") for node in nodes]
    (reply,) = grid.send_and_receive(asked)
    if reply.has_error():
        raise RuntimeError(reply.error.reason)
    if reply.content["m"]["answer"] != ANSWER:
        raise RuntimeError("another version answered")
"""
PYPROJECT = """
[project]
name = "asks"
version = "1"
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "asks:server"
clientapp = "asks:client"
"""


@pytest.mark.fleet
def test_an_app_comes_with_the_run(tmp_path: Path) -> None:
    """Nothing runs unapproved; then the approved version does; then a signed one, at once."""
    app = tmp_path / "asks"
    app.mkdir()
    (app / "asks.py").write_text(CODE)
    (app / "pyproject.toml").write_text(PYPROJECT)
    federation = Federation(tmp_path, app)
    site = str(federation.client_dir(0))
    try:
        federation.start_server()
        token = meadow("server", "token", "site-a", "--dir", str(federation.server_dir))
        meadow(
            "client", "enroll", "--dir", site, "--server", token["server"], "--token", "-",
            "--ca-fingerprint", token["ca_fingerprint"], stdin=token["token"],
        )  # fmt: skip
        agent = federation.start_client(0)
        wait_until(lambda: agent.events("connected"), "it connects")

        refused = federation.wait_for_end(federation.submit())
        assert refused["status"] == "failed"
        assert "waits for the approval of this site's owner" in refused["cause"]
        (offer,) = meadow("client", "apps", "--dir", site)["rows"]
        assert (offer["app"], offer["state"]) == ("asks", "waits")
        shown = meadow("client", "apps", "show", "asks", "--dir", site)
        assert {change["path"] for change in shown["changes"]} == {"asks.py", "pyproject.toml"}
        meadow("client", "apps", "approve", "asks", shown["sha256"], "--dir", site)
        assert federation.wait_for_end(federation.submit())["status"] == "finished"

        (app / "asks.py").write_text(CODE.replace("ANSWER = 7", "ANSWER = 8"))
        key = tmp_path / "author.pem"
        public = meadow("app", "key", str(key))["key"]
        meadow("app", "sign", str(app), "--key", str(key))
        toml = Path(site, "client.toml")
        text = toml.read_text().replace("[apps]\n", f'[apps]\nauto_approve = ["{public}"]\n', 1)
        toml.write_text(text)
        assert federation.wait_for_end(federation.submit())["status"] == "finished"
        states = meadow("client", "apps", "--dir", site)["rows"]
        assert [(row["app"], row["state"]) for row in states] == [("asks", "approved")]
    finally:
        for process in [*federation.clients, federation.server]:
            process.stop()
