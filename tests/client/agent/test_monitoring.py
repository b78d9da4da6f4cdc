"""An agent's /metrics: what a site's own Prometheus reads, and what alerts and dashboard ask for."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from free_ports import free_port
from prometheus_client.parser import text_string_to_metric_families

from meadow.client.agent.monitoring import RUNS_SHOWN
from meadow.client.owner import gate
from meadow.client.owner.database import AgentDatabase
from meadow.client.owner.identity_folder import IdentityFolder
from meadow.client.owner.ledger import Ledger
from meadow.errors import ConfigError, UnreachableError
from meadow.privacy.dp.noise_terms import NoiseTerms
from meadow.transport import fleet_pb2 as pb

from ..conftest import BLOB_VALUES, Client

DEPLOY = Path(__file__).parents[3] / "deploy"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(port: int) -> Samples:
    """Return the samples by name and labels."""

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            return str(answer.read().decode())

    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(await asyncio.to_thread(read))
        for sample in family.samples
    }


async def until(port: int, name: str, wanted: float, *labels: tuple[str, str]) -> Samples:
    """Scrape until a sample has a value."""
    async with asyncio.timeout(60):
        while (found := await scrape(port))[name, labels] != wanted:
            await asyncio.sleep(0.05)
    return found


def outcomes(found: Samples) -> dict[str, float]:
    """Return how many instructions ended in which way."""
    return {
        dict(labels)["outcome"]: value
        for (name, labels), value in found.items()
        if name == "meadow_agent_instructions_total"
    }


def spend(client: Client, runs: int, noise: float | None) -> None:
    """Count a round of each of so many runs in the client's ledger, before its agent runs."""
    database = AgentDatabase(client.directory / "agent.sqlite")
    ledger = Ledger(database)
    ledger.claim(IdentityFolder(client.directory).folder)
    for run in range(runs):
        app = pb.App(name="counting", sha256="a" * 64)
        terms = None if noise is None else NoiseTerms(noise_multiplier=noise)
        ledger.participate(
            pb.Instruction(id=f"r-{run}", run_id=1000 + run, app=app), now_s=0.0, noise=terms
        )
    database.close()


def test_a_day_of_an_agent(client: Client) -> None:
    """Outcomes, bytes, reconnections, the gate, the warm process, the certificate and the budget
    are on the page as they change; and every alert and panel asks for what is there."""
    port = free_port()
    listening = f"[monitoring]\nmetrics_port = {port}\n"

    async def scenario() -> Samples:
        async with client.connected():
            await client.hear("listening")
            found = await until(port, "meadow_agent_connected", 1)
            assert set(outcomes(found).values()) == {0}
            assert found["meadow_agent_epsilon", (("of", "client"),)] == 0
            client.fleet.send(client.instruction("a"))
            await client.fleet.reply("a")
            await client.hear("sent")
            client.fleet.send(_other_app(client))
            await client.fleet.reply("b")
            client.fleet.send(client.instruction("c", run_config={"raise": True}))
            await client.fleet.reply("c")
            found = await until(port, "meadow_agent_waiting_replies", 0)
            assert outcomes(found) == {"answered": 1, "refused": 1, "failed": 1, "cancelled": 0}
            assert found["meadow_agent_received_bytes_total", ()] > 4 * BLOB_VALUES
            assert found["meadow_agent_sent_bytes_total", ()] > 4 * BLOB_VALUES
            assert found["meadow_agent_training_process", ()] == 1
            assert found["meadow_agent_training_resident_memory_bytes", ()] > 1e7
            assert found["process_resident_memory_bytes", ()] > 1e7
            ends = found["meadow_agent_certificate_end_timestamp_seconds", ()]
            identity = IdentityFolder(client.directory).load()
            assert ends == identity.certificate.not_after.timestamp()
            run = (("app", "counting"), ("of", "client"), ("run", "7"))
            assert math.isinf(found["meadow_agent_run_epsilon", run]), "its rounds had no noise"
            assert not [name for name, _ in found if name == "meadow_agent_epsilon_left"]
            assert found["meadow_agent_connections_total", ()] == 1
            client.fleet.disconnect()
            await until(port, "meadow_agent_connections_total", 2)
            gate.pause(client.directory)
            found = await until(port, "meadow_agent_connected", 0)
            states = {labels[0][1]: v for (n, labels), v in found.items() if n.endswith("_gate")}
            assert states == {
                "open": 0,
                "paused": 1,
                "hours": 0,
                "battery": 0,
                "metered": 0,
                "load": 0,
                "temperature": 0,
            }
            gate.resume(client.directory)
            await until(port, "meadow_agent_gate", 1, ("state", "open"))
            client.configure(listening + "[policy]\nepsilon_max = 5.0\n")
            return await scrape(port)

    client.configure(listening)
    found = asyncio.run(scenario())
    assert found["meadow_agent_epsilon_left", (("of", "client"),)] == 0
    rules = yaml.safe_load((DEPLOY / "prometheus" / "agent.rules.yml").read_text())
    asked = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((DEPLOY / "grafana" / "agent.json").read_text())
    asked += [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]
    known = {name for name, _ in found} | {"up"}
    for expression in asked:
        names = set(re.findall(r"\b(meadow_\w+|process_\w+|up)\b", expression))
        assert names and names <= known, expression
    if (promtool := shutil.which("promtool")) is not None:
        for kind, file in (("rules", "agent.rules.yml"), ("config", "agent.yml")):
            command = [promtool, "check", kind, str(DEPLOY / "prometheus" / file)]
            assert subprocess.run(command, check=False, capture_output=True).returncode == 0


def _other_app(client: Client) -> pb.Instruction:
    """Return an instruction of an app that is not installed."""
    made = client.instruction("b")
    made.app.name = "another"
    return made


def test_the_budget_by_run(client: Client) -> None:
    """What the ledger says is there, with what is left; of many runs, only the newest one by one."""
    port = free_port()
    client.configure(
        f"[monitoring]\nmetrics_port = {port}\n"
        "[policy]\nepsilon_max = 100.0\nrecord_epsilon_max = 200.0\n"
    )

    async def scenario() -> tuple[Samples, bool]:
        await client.fleet.start()
        client.enroll()
        spend(client, runs=RUNS_SHOWN + 5, noise=4.0)
        async with client.running():
            await client.hear("listening")
            found, elsewhere = await scrape(port), True
            try:
                socket.create_connection(("127.0.0.2", port), timeout=60).close()
            except ConnectionRefusedError:
                elsewhere = False
        await client.fleet.stop()
        return found, elsewhere

    found, elsewhere = asyncio.run(scenario())
    assert not elsewhere, "it listens on 127.0.0.1 alone"
    runs = {dict(labels)["run"] for name, labels in found if name == "meadow_agent_run_epsilon"}
    assert runs == {str(1005 + number) for number in range(RUNS_SHOWN)}
    for of, budget in (("client", 100.0), ("example", 200.0)):
        spent = found["meadow_agent_epsilon", (("of", of),)]
        one = found["meadow_agent_run_epsilon", (("app", "counting"), ("of", of), ("run", "1020"))]
        assert 0 < one < spent < budget
        assert found["meadow_agent_epsilon_max", (("of", of),)] == budget
        left = found["meadow_agent_epsilon_left", (("of", of),)]
        assert left == pytest.approx(budget - spent)


def test_a_port_that_is_taken_is_named(client: Client) -> None:
    """The agent does not start without what its owner asked for, and says which key it is."""

    async def scenario() -> None:
        await client.fleet.start()
        client.enroll()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            client.configure(f"[monitoring]\nmetrics_port = {port}\n")
            with pytest.raises(UnreachableError, match=rf"127.0.0.1:{port} .*metrics_port"):
                await client.agent().run()
        await client.fleet.stop()

    asyncio.run(scenario())


def test_a_wrong_port_is_named(client: Client) -> None:
    """When client.toml is read; there is no key for an address."""
    for text in ("metrics_port = 0", "metrics_port = 65536", 'metrics_address = "0.0.0.0:9465"'):
        client.configure(f"[monitoring]\n{text}\n")
        client.enroll()
        with pytest.raises(ConfigError, match=rf"monitoring\.{text.split()[0]}"):
            asyncio.run(client.agent().run())


def test_without_the_key_nothing_of_it_is_loaded() -> None:
    """An agent that is not monitored does not import Prometheus' client."""
    code = "import sys, meadow.client.agent.agent; print('prometheus_client' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
