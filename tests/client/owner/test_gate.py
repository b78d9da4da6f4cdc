"""When a site takes part: its owner's pause and windows, and what the agent does meanwhile."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meadow.client.agent.execution import Execution
from meadow.client.owner import gate
from meadow.client.owner.gate import Gate
from meadow.client.tools.status import status_of
from meadow.config.client_config import PolicyConfig, load_client_config, minutes_of
from meadow.errors import ConfigError
from meadow.machine import metered
from meadow.machine.power import on_mains

from ..conftest import Client


def local(hour: int, minute: int) -> float:
    """Return a moment of this time of day, by this machine's clock."""
    return time.mktime((2026, 11, 23, hour, minute, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("hours", "open_at", "closed_at"),
    [
        ("20:00-06:00", [(20, 0), (23, 59), (0, 0), (5, 59)], [(6, 0), (12, 0), (19, 59)]),
        ("09:30-17:00", [(9, 30), (16, 59)], [(9, 29), (17, 0), (0, 0)]),
    ],
)
def test_hours(
    hours: str, open_at: list[tuple[int, int]], closed_at: list[tuple[int, int]], tmp_path: Path
) -> None:
    """The first minute belongs to the window, the last does not; a window may go over midnight."""
    policy = PolicyConfig(hours=hours)
    for at, is_open in [
        *((each, True) for each in open_at),
        *((each, False) for each in closed_at),
    ]:
        closed = Gate(tmp_path, lambda: policy, clock=lambda at=at: local(*at)).closed_by()  # type: ignore[misc]
        assert (closed == "") == is_open, at
        assert is_open or "policy.hours" in closed


@pytest.mark.parametrize("hours", ["8-9", "24:00-06:00", "20:60-06:00", "20:00-20:00", "٢٠:00-06:00", "20:00-06:00 "])  # fmt: skip
def test_odd_hours(hours: str, client: Client) -> None:
    """They are refused with an example."""
    assert minutes_of(hours) == ()
    client.configure(f'[policy]\nhours = "{hours}"')
    with pytest.raises(ConfigError, match="must be two different times of day"):
        load_client_config(client.directory)


def test_mains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A battery that is being emptied closes the gate where the owner wants mains power."""

    def supply(name: str, **files: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        for file, text in files.items():
            (tmp_path / name / file).write_text(f"{text}\n")

    assert on_mains(tmp_path / "none") and on_mains(tmp_path)
    supply("BAT0", type="Battery", status="Discharging")
    assert not on_mains(tmp_path)
    supply("BAT0", status="Full")
    assert on_mains(tmp_path)
    supply("AC", type="Mains", online="0")
    assert not on_mains(tmp_path)
    for online in ("1", "2"):  # by a fixed, and by a negotiated voltage
        supply("AC", online=online)
        assert on_mains(tmp_path)
    monkeypatch.setattr(gate, "on_mains", lambda: False)
    policy = PolicyConfig()
    closed = Gate(tmp_path, lambda: policy, clock=time.time)
    assert closed.closed_by() == ""
    policy = replace(policy, mains_power_only=True)
    assert "battery" in closed.closed_by()


def test_supplies_that_do_not_power_the_machine(tmp_path: Path) -> None:
    """An idle port, and the battery or the plug of a mouse, say nothing about the machine."""

    def supply(name: str, **files: str) -> None:
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(f"{text}\n")

    supply("mouse-battery", type="Battery", status="Discharging", scope="Device")
    assert on_mains(tmp_path)
    supply("port", type="USB", online="0", scope="System")
    assert on_mains(tmp_path)
    supply("mouse-plug", type="USB", online="1", scope="Device")
    supply("BAT0", type="Battery", status="Discharging")
    assert not on_mains(tmp_path)


def test_a_paused_site(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not connected, also after a restart; what it was training on is finished and sent afterwards."""
    monkeypatch.setattr(gate, "LOOK_EVERY_S", 0.01)
    train = Execution._train

    async def paused_meanwhile(self: Execution, *arguments: Any) -> Any:
        gate.pause(client.directory)
        await client.hear("paused")
        return await train(self, *arguments)

    async def scenario() -> None:
        async with client.connected():
            monkeypatch.setattr(Execution, "_train", paused_meanwhile)
            client.fleet.send(client.instruction("a"))
            await client.hear("paused")
            monkeypatch.setattr(Execution, "_train", train)
            while status_of(client.directory, now_s=0.0).last_instruction != "a":
                await asyncio.sleep(0.01)
            assert not client.fleet.replies and not client.fleet.uploads
        hellos = len(client.fleet.hellos)
        client.fleet.open["b"] = client.instruction("b")
        await client.fleet.start()
        try:
            async with client.running():
                await client.hear("paused", 2)
                assert status_of(client.directory, now_s=0.0).paused
                assert "by its owner" in status_of(client.directory, now_s=0.0).closed
                assert len(client.fleet.hellos) == hellos and not client.fleet.replies
                gate.resume(client.directory)
                await client.fleet.reply("a")
                await client.fleet.reply("b")
        finally:
            await client.fleet.stop()
        assert not status_of(client.directory, now_s=0.0).paused
        client.configure('[policy]\nhours = "20:00-06:00"')
        assert "20:00 to 06:00" in status_of(client.directory, now_s=local(12, 0)).closed
        assert status_of(client.directory, now_s=local(21, 0)).closed == ""

    asyncio.run(scenario())
    assert not client.texts("disconnected") and not client.texts("failed")


def test_load_and_temperature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each closes the gate with its reading and bound, and for a while after that, so that the site's own
    work does not open and close it in turns; a changed policy is followed at once."""
    now, load, heat = [1000.0], [0.5], [(60.0, "k10temp")]
    monkeypatch.setattr(gate.os, "getloadavg", lambda: (load[0] * 8, 0.0, 0.0))
    monkeypatch.setattr(gate.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(gate, "hottest", lambda: heat[0] if heat else None)
    policy = PolicyConfig(load_max=0.75, temperature_max_c=80.0)
    site = Gate(tmp_path, lambda: policy, clock=lambda: now[0])
    assert site.closed_by() == ""
    load[0] = 0.8
    assert site.closed_by() == "the load is 0.80 a core (policy.load_max = 0.75)"
    load[0] = 0.75
    assert "0.80 a core" in site.closed_by(), "it settles"
    now[0] += gate.SETTLING_S - 1
    assert site.closed_by() != ""
    now[0] += 1
    assert site.closed_by() == ""
    heat[0] = (91.4, "k10temp")
    assert site.closed_by() == "k10temp is at 91 degrees (policy.temperature_max_c = 80)"
    heat[0] = (50.0, "k10temp")
    assert site.closed_by() != ""
    policy = replace(policy, temperature_max_c=95.0)
    assert site.closed_by() == ""
    heat.clear()
    assert "no temperature sensor" in site.closed_by()
    policy = replace(policy, temperature_max_c=None)
    assert site.closed_by() == ""
    load[0] = 9.0
    assert site.closed_by() != ""
    load[0], now[0] = 0.0, 0.0
    assert site.closed_by() == "", "a clock that was set back keeps nothing closed"


def test_a_metered_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It closes the gate by its name or by NetworkManager's word, which is asked for now and then."""
    now, asked = [1000.0], []

    def told(interface: str) -> bool:
        asked.append(interface)
        return interface == "wlan0"

    used = ["wwan0"]
    monkeypatch.setattr(metered, "interfaces_in_use", lambda routes: used)
    monkeypatch.setattr(gate, "told_by_network_manager", told)
    policy = PolicyConfig()
    site = Gate(tmp_path, lambda: policy, clock=lambda: now[0])
    assert site.closed_by() == ""
    policy = replace(policy, unmetered_only=True)
    assert site.closed_by() == "the network in use, wwan0, is metered (policy.unmetered_only)"
    assert asked == []
    used[:] = ["eth0"]
    assert site.closed_by() == "" and asked == ["eth0"]
    assert site.closed_by() == "" and asked == ["eth0"]
    now[0] += gate.TOLD_AGAIN_S
    assert site.closed_by() == "" and asked == ["eth0"] * 2
    used[:] = ["wlan0"]
    assert "wlan0, is metered" in site.closed_by() and asked == ["eth0", "eth0", "wlan0"]
    policy = replace(policy, metered_interfaces=("eth*",))
    used[:] = ["eth0"]
    assert "eth0" in site.closed_by()


def test_a_window_that_closes_during_training(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun is finished and counted; its answer waits until the window is open, and is sent once."""
    monkeypatch.setattr(gate, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(gate, "SETTLING_S", 0.0)
    load, train = [0.0], Execution._train
    monkeypatch.setattr(gate.os, "getloadavg", lambda: (load[0], 0.0, 0.0))
    client.configure("[policy]\nload_max = 1.0")

    async def overloaded(self: Execution, *arguments: Any) -> Any:
        load[0] = 1e6
        await client.hear("paused")
        return await train(self, *arguments)

    async def scenario() -> None:
        async with client.connected():
            monkeypatch.setattr(Execution, "_train", overloaded)
            client.fleet.send(client.instruction("a"))
            await client.hear("paused")
            monkeypatch.setattr(Execution, "_train", train)
            while status_of(client.directory, now_s=0.0).last_instruction != "a":
                await asyncio.sleep(0.01)
            assert "policy.load_max" in status_of(client.directory, now_s=0.0).closed
            assert not client.fleet.replies and not client.fleet.uploads
            load[0] = 0.0
            assert client.count_of(await client.fleet.reply("a")) == 1

    asyncio.run(scenario())
    assert not client.texts("failed") and "policy.load_max" in client.texts("paused")[0]
