"""A real Prometheus beside a real federation: it scrapes, an alert fires, and clears."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .processes import Federation, free_port, wait_until

PROMETHEUS = shutil.which("prometheus")
DIGITS = Path(__file__).parents[1] / "shared" / "digits"
DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"
pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(PROMETHEUS is None, reason="apt-get install prometheus"),
]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[Federation, str]]:
    """A server with /metrics, two agents, and the address of what scrapes it."""
    made, port, own = Federation(tmp_path, DIGITS), free_port(), free_port()
    with (made.server_dir / "server.toml").open("a") as file:
        file.write(f'metrics_address = "127.0.0.1:{port}"\n')
    config = (DEPLOY / "prometheus.yml").read_text().replace("9464", str(port))
    (tmp_path / "prometheus.yml").write_text(config.replace("15s", "1s"))
    rules = re.sub(r"for: \d+[mh]", "for: 1s", (DEPLOY / "meadow.rules.yml").read_text())
    (tmp_path / "meadow.rules.yml").write_text(rules)
    assert PROMETHEUS is not None
    command = [PROMETHEUS, f"--config.file={tmp_path / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address=127.0.0.1:{own}"]
    with (tmp_path / "prometheus.log").open("wb") as log:
        scraping = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        made.start_server()
        made.add_clients(2)
        yield made, f"http://127.0.0.1:{own}/api/v1"
    finally:
        scraping.terminate()
        scraping.wait()
        made.close()


def asked(address: str) -> Any:
    """Return the data of an answer; None while there is none."""
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def value(api: str, query: str) -> float | None:
    """Return what a query gives now."""
    found = asked(f"{api}/query?query={urllib.parse.quote(query)}")
    return float(found["result"][0]["value"][1]) if found and found["result"] else None


def firing(api: str) -> set[tuple[str, str]]:
    """Return the alerts that fire, with their sites; whether the disk is full is this machine's."""
    found = asked(f"{api}/alerts") or {"alerts": []}
    return {
        (each["labels"]["alertname"], each["labels"].get("site", ""))
        for each in found["alerts"]
        if each["state"] == "firing" and each["labels"]["alertname"] != "MeadowDiskLow"
    }


def test_a_site_that_is_killed_and_comes_back(fleet: tuple[Federation, str]) -> None:
    """Its alert fires and clears; before and after, nothing is alarming. A run's rounds are counted."""
    federation, api = fleet
    wait_until(lambda: value(api, 'meadow_sites{state="connected"}') == 2, "both are seen")
    run = federation.submit("run.rounds=3", "run.min_clients=2", "simulation.clients=2")
    assert federation.wait_for_end(run)["status"] == "finished"
    wait_until(lambda: value(api, "meadow_rounds_total") == 3, "its rounds are counted")
    assert (value(api, "meadow_received_bytes_total") or 0) > 10_000
    # here, a run stands when it has no round for a second, which it may need for its first one
    wait_until(lambda: not firing(api), "nothing is alarming")
    gone = ("MeadowSiteGone", "client-1")
    federation.clients[1].kill()
    wait_until(lambda: gone in firing(api), "the alert fires")
    assert firing(api) == {gone}
    federation.clients[1].start()
    wait_until(lambda: not firing(api), "it clears")
    federation.server.kill()
    wait_until(lambda: ("MeadowServerDown", "") in firing(api), "the server is missed")
