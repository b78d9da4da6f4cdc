"""What the doctor says of a site's windows."""

from __future__ import annotations

import pytest

from meadow.client.owner import gate
from meadow.client.tools import doctor
from meadow.client.tools.doctor import windows_of

from ..conftest import Client


def test_windows(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed one is no fault; one that does not open, or that training itself closes, is, with the remedy."""
    monkeypatch.setattr(gate.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 4)
    for module in (gate, doctor):
        monkeypatch.setattr(module, "hottest", lambda: None)
    found = windows_of(client.directory)
    assert found.ok and found.text == "it takes part now"
    gate.pause(client.directory)
    found = windows_of(client.directory)
    assert found.ok and "paused by its owner" in found.text
    gate.resume(client.directory)
    client.configure("[device]\nthreads = 2\n[policy]\nload_max = 0.75")
    assert windows_of(client.directory).ok
    client.configure("[device]\nthreads = 3\n[policy]\nload_max = 0.75")
    found = windows_of(client.directory)
    assert not found.ok and "0.75 (device.threads on 4 cores)" in found.text
    client.configure("[policy]\ntemperature_max_c = 80.0")
    found = windows_of(client.directory)
    assert not found.ok and "remove policy.temperature_max_c" in found.text
    client.configure("[policy]\nload_max = 0")
    found = windows_of(client.directory)
    assert not found.ok and "policy.load_max" in found.text
