"""The temperatures of a machine, from files as Linux lays them out."""

from __future__ import annotations

from pathlib import Path

from meadow.machine.temperature import hottest


def sensor(path: Path, text: str, name: tuple[str, str]) -> None:
    """Make a sensor's folder with its file and its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (path.parent / name[0]).write_text(f"{name[1]}\n")


def test_the_hottest(tmp_path: Path) -> None:
    """Of zones and of monitors, with its name; what is broken or not connected does not count."""
    assert hottest(tmp_path) is None
    zone, monitor = tmp_path / "thermal", tmp_path / "hwmon"
    sensor(zone / "thermal_zone0" / "temp", "41000\n", ("type", "acpitz"))
    assert hottest(tmp_path) == (41.0, "acpitz")
    sensor(zone / "thermal_zone1" / "temp", "255000\n", ("type", "none"))
    sensor(zone / "thermal_zone2" / "temp", "", ("type", "broken"))
    sensor(monitor / "hwmon0" / "temp1_input", "-273150\n", ("name", "absent"))
    assert hottest(tmp_path) == (41.0, "acpitz")
    sensor(monitor / "hwmon1" / "temp2_input", "91500\n", ("name", "k10temp"))
    assert hottest(tmp_path) == (91.5, "k10temp")
    (monitor / "hwmon1" / "name").unlink()
    assert hottest(tmp_path) == (91.5, "hwmon1")


def test_this_machine() -> None:
    """Whatever sensors are here, what they say is a temperature."""
    found = hottest()
    assert found is None or -40 < found[0] < 150
