"""Whether this machine runs on mains power."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["on_mains"]

SUPPLIES: Final = Path("/sys/class/power_supply")


def on_mains(supplies: Path = SUPPLIES) -> bool:
    """Return False if all power comes from batteries; True where nothing says so.

    Supplies of peripherals (scope "Device") do not count. Without a battery of its own a machine has mains
    power, whatever its idle ports say.

    Source: Linux, Documentation/ABI/testing/sysfs-class-power (type, online, status), and the attribute scope.
    """
    found = sorted(supplies.iterdir()) if supplies.is_dir() else []
    own = [each for each in found if _read(each / "scope") != "Device"]
    batteries = [_read(each / "status") for each in own if _read(each / "type") == "Battery"]
    lines = [_read(each / "online") for each in own if _read(each / "type") in ("Mains", "USB")]
    if batteries and lines:
        return any(online not in ("", "0") for online in lines)
    return "Discharging" not in batteries


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
