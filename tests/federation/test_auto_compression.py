"""Compression that is chosen by measured lines, in real federations: slow lines are those whose owners allow
little bandwidth."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meadow.apps.folder import App
from meadow.server.tools.round_plan import round_costs

from .processes import Federation, kill_9, meadow, wait_until

pytestmark = pytest.mark.fleet

CONSTANT = Path(__file__).parents[2] / "benchmarks" / "apps" / "constant"
MODEL_MB = 2
SLOW_BYTES_PER_S = 1_000_000
AUTO = ("compression.upload=auto", "compression.download=auto")
CLIENTS, SLOW = 3, 2


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server and three agents, two of which have slow lines and the tag `slow`."""
    folder = tmp_path_factory.mktemp("auto")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MODEL_MB", str(MODEL_MB))
        made = Federation(folder, shutil.copytree(CONSTANT, folder / "constant"))
        try:
            made.start_server()
            for index in range(CLIENTS):
                made.enroll(index)
            for index in range(SLOW):
                settings = made.client_dir(index) / "client.toml"
                bound = f"[policy]\nbandwidth_bytes_per_s_max = {SLOW_BYTES_PER_S}"
                text = settings.read_text()
                assert "\n[policy]" in text
                settings.write_text(text.replace("[policy]", bound, 1))
                admin = ("--dir", str(made.server_dir))
                meadow("site", "tag", f"client-{index}", "slow", *admin)
            made.start_clients(CLIENTS)
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def measured(fleet: Federation) -> int:
    """The first run of this server, which measures the lines."""
    all_of_them = (f"run.min_clients={CLIENTS}", f"simulation.clients={CLIENTS}")
    run = fleet.submit(*AUTO, *all_of_them, "run.rounds=3")
    summary = fleet.wait_for_end(run)
    assert summary["status"] == "finished", summary
    return run


def chosen(fleet: Federation, run: int) -> list[dict[str, Any]]:
    """Return what the run's events say of `auto`."""
    shown = meadow("run", "show", str(run), "--dir", str(fleet.server_dir))
    return [event for event in shown["events"] if event["kind"] == "compression_chosen"]


def test_a_mixed_fleet(fleet: Federation, measured: int) -> None:
    """The first round measures; in the next ones slow lines carry a quarter, both ways, and the others what they
    did. That is said once, by the sites' names and with the rate; the bytes are those of `meadow plan`."""
    events = chosen(fleet, measured)
    text = ", ".join(event["slow"] for event in events)
    slow = dict(re.findall(r"([\w-]+) \(([\d.]+) Mbit/s\)", text))
    assert slow.keys() >= {"client-0", "client-1"}, "and others, where this machine was slow"
    assert events[0]["round"] == 2
    assert all(0 < float(rate) < 50 for rate in slow.values())
    first, *_, last = fleet.rounds(measured)
    app = App.load(fleet.app, overrides=AUTO)
    plain, packed = (round_costs(app, clients=CLIENTS, slow=each) for each in (False, True))
    assert first["bytes_received"] == pytest.approx(CLIENTS * plain.up_bytes, rel=0.02)
    assert packed.up_bytes < 0.26 * plain.up_bytes
    up_bytes = (CLIENTS - len(slow)) * plain.up_bytes + len(slow) * packed.up_bytes
    down_bytes = (CLIENTS - len(slow)) * plain.down_bytes + len(slow) * packed.down_bytes
    assert last["clients"] == CLIENTS and not last["failures"]
    assert last["bytes_received"] == pytest.approx(up_bytes, rel=0.02)
    assert last["bytes_sent"] == pytest.approx(down_bytes, rel=0.02)


def test_a_killed_server_chooses_the_same(fleet: Federation, measured: int, tmp_path: Path) -> None:
    """Slow lines were measured in an earlier run: from the first round on, whoever is killed in between, the run
    is the one whose settings say int8, to the last bit."""
    settings = ("run.rounds=4", f"run.min_clients={SLOW}", f"simulation.clients={SLOW}")
    run = fleet.submit(*AUTO, *settings, 'selection.tags=["slow"]')
    fleet.wait_for_round(run, 1)
    fleet.server.kill()
    fleet.start_server()
    fleet.wait_for_round(run, 2)
    for pid in wait_until(fleet.workers, "a run worker"):
        kill_9(pid)
    assert fleet.wait_for_end(run)["status"] == "finished"
    assert [row["clients"] for row in fleet.rounds(run)] == [SLOW] * 4
    options = [part for setting in settings for part in ("--set", setting)]
    for way in ("upload", "download"):
        options += ["--set", f"compression.{way}=int8"]
    out = tmp_path / "simulated"
    meadow("simulate", str(fleet.app), "--executor", "sequential", "--out", str(out), *options)
    assert fleet.model(run) == (out / "model.safetensors").read_bytes()
