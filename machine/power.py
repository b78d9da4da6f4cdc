"""Whether this machine runs on mains power."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["on_mains"]

SUPPLIES: Final = Path("/sys/class/power_supply")


def on_mains(supplies: Path = SUPPLIES) -> bool:
    """Return False if all power comes from batteries; True where nothing says so.

    Source: Linux, Documentation/ABI/testing/sysfs-class-power (type, online, status).
    """
    found = sorted(supplies.iterdir()) if supplies.is_dir() else []
    mains = [_read(each / "online") for each in found if _read(each / "type") in ("Mains", "USB")]
    if mains:
        return "1" in mains
    batteries = [_read(each / "status") for each in found if _read(each / "type") == "Battery"]
    return "Discharging" not in batteries


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
