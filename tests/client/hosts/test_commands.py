"""The commands about several machines, and what they say where something is missing."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from meadow.cli.main import main
from meadow.client.hosts.member import serve_ranks
from meadow.client.hosts.membership import Membership, Pass
from meadow.client.tools.doctor import examine
from meadow.client.tools.status import hosts_line
from meadow.transport.address import Address

from ..conftest import Client
from .conftest import SCANS

DEVICE = '[device]\nparallel = "ddp"\ngpus = "cpu"\nprocesses = 2\nhosts = 2\n'
BOUND_S = 60.0
NOW = datetime.now(UTC)
PID_MAX = 1 << 22


@pytest.fixture
def enrolled(client: Client) -> Client:
    """A client with an identity, whose server is away."""

    async def enroll() -> None:
        await client.fleet.start()
        client.enroll()
        await client.fleet.stop()

    asyncio.run(enroll())
    return client


def run(*arguments: object) -> int:
    """Run a command; returns its exit code."""
    try:
        main([str(each) for each in arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_an_invitation(
    enrolled: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It writes a pass that the leader knows, says how to join with it, and overwrites nothing."""
    enrolled.configure(f'{DEVICE}hosts_listen = "10.0.0.1:9470"')
    file = tmp_path / "b.pass"
    asked = ("client", "rank", "--invite", "host-b", "--dir", enrolled.directory, "--out", file)
    assert run(*asked) == 0
    said = capsys.readouterr().out
    assert "--join 10.0.0.1:9470 --pass b.pass" in said and "set hosts" not in said
    made = Pass.read(file)
    membership = Membership(enrolled.directory)
    assert membership.names == ["host-b"]
    assert membership.check(made.certificate_pem, now=made.identity.not_before) == "host-b"
    assert run(*asked) == 2
    assert "--out" in capsys.readouterr().err and Pass.read(file) == made
    enrolled.configure("")
    assert run(*asked[:-1], tmp_path / "c.pass", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["join"] == "THIS_HOST:9460"
    assert run(*asked[:-1], tmp_path / "d.pass") == 0
    assert "set hosts = 2" in capsys.readouterr().out


def test_what_a_command_lacks(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is told at once, with what to give instead."""
    shown, app = tmp_path / "b.pass", tmp_path / "app"
    Membership(client.directory).invite("host-b", now=NOW).write(shown)
    app.mkdir()
    (app / "meadow.toml").write_text('[app]\ntask = "task:task"\n')
    join = ("client", "rank", "--join", "127.0.0.1:9460")
    for arguments, words in (
        (("client", "rank"), "--invite NAME"),
        ((*join, "--invite", "b"), "--invite NAME"),
        (("client", "rank", "--invite", "b"), "--dir"),
        (("client", "rank", "--invite", "b", "--dir", tmp_path), "enrol"),
        ((*join, "--app", app), "--pass"),
        ((*join, "--pass", shown), "--app"),
        ((*join, "--pass", app / "none", "--app", app), "--invite NAME"),
        ((*join, "--pass", shown, "--app", tmp_path / "none"), "none is not a folder"),
        ((*join, "--pass", shown, "--app", app, "--gpus", "cpu"), "--processes"),
        ((*join, "--pass", shown, "--app", app, "--gpus", "a,b"), '--gpus must be "all"'),
    ):
        assert run(*arguments) != 0, arguments
        assert words in " ".join(capsys.readouterr().err.split()), arguments


def test_nobody_leads(client: Client) -> None:
    """A machine that is there before the leader says so in words, and dials again."""
    shown = Membership(client.directory).invite("host-b", now=NOW)
    said: list[str] = []

    async def check() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        serving = asyncio.create_task(
            serve_ranks(
                shown,
                Address("127.0.0.1", port),
                apps=[],
                devices=["cpu"],
                environment={},
                report=said.append,
            )
        )
        async with asyncio.timeout(BOUND_S):
            while not said:
                await asyncio.sleep(0.01)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(check())
    assert "nobody leads there now" in said[0] and "trying again" in said[0]


def test_the_status(enrolled: Client, capsys: pytest.CaptureFixture[str]) -> None:
    """It names who trains, who waits and who was refused last, as long as the process is there that wrote
    it; a client without other hosts says nothing of them."""
    membership = Membership(enrolled.directory)
    assert hosts_line(enrolled.directory, None) == ""
    assert "invited: none" in hosts_line(enrolled.directory, 2)
    membership.invite("host-b", now=NOW)
    with_host = {"name": "host-b", "address": "10.0.0.2", "ranks": 2, "trains": True}
    there = {"process": os.getpid(), "hosts": [with_host], "refusals": 0, "last_refusal": ""}
    membership.write_status(there)
    assert hosts_line(enrolled.directory, 2) == "2 of 2: this one, host-b (2 ranks, trains)"
    waiting = {**with_host, "trains": False}
    membership.write_status(
        {**there, "hosts": [waiting], "refusals": 3, "last_refusal": "10.0.0.9: no pass"}
    )
    enrolled.configure(DEVICE)
    assert run("client", "status", "--dir", enrolled.directory) == 0
    said = capsys.readouterr().out
    assert "hosts 2 of 2: this one, host-b (2 ranks, waits)" in said
    assert "3 connections refused, last 10.0.0.9: no pass" in said
    membership.write_status({**there, "process": PID_MAX})
    assert "cannot join now (invited: host-b)" in hosts_line(enrolled.directory, 2)


def test_the_doctor(enrolled: Client, tmp_path: Path) -> None:
    """It says that nobody was invited, and tries the app out without the other machines, so that
    it neither waits for them nor listens where the agent does."""

    async def found() -> dict[str, tuple[bool, str]]:
        return {each.subject: (each.ok, each.text) async for each in examine(enrolled.directory)}

    with socket.create_server(("127.0.0.1", 0)) as taken:
        listens = f'hosts_listen = "127.0.0.1:{taken.getsockname()[1]}"\n'
        shutil.copytree(SCANS, tmp_path / "scans")
        apps = f'[apps]\nscans = "{tmp_path / "scans"}"\n'
        (enrolled.directory / "client.toml").write_text(apps + DEVICE + listens)
        ok, text = asyncio.run(found())["hosts"]
        assert not ok and "--invite NAME" in text
        Membership(enrolled.directory).invite("host-b", now=NOW)
        said = asyncio.run(found())
        assert said["hosts"] == (True, hosts_line(enrolled.directory, 2))
        assert said["app scans"][0] and "2 ranks with ddp" in said["app scans"][1], said
