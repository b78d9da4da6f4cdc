"""Whether the network that this machine uses is metered: paid for by the byte."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

__all__ = ["interfaces_in_use", "metered_network", "told_by_network_manager"]

ROUTES: Final = Path("/proc/net")
UP: Final = 1
REJECT: Final = 0x200
NO_METRIC: Final = 1 << 33
NMCLI: Final = ("nmcli", "-g", "GENERAL.METERED", "device", "show")
NMCLI_S: Final = 5.0


def metered_network(
    patterns: Sequence[str],
    *,
    told: Callable[[str], bool],
    routes: Path = ROUTES,
) -> str:
    """Return the interface that leads to the Internet, if it is metered; empty if it is not.

    It is metered if its name is of one of `patterns`, such as "wwan*", or if the system has `told` so.

    Edge cases: where IPv4 and IPv6 leave by two interfaces, one that is metered suffices.
    """
    for interface in interfaces_in_use(routes):
        if any(fnmatchcase(interface, each) for each in patterns) or told(interface):
            return interface
    return ""


def interfaces_in_use(routes: Path = ROUTES) -> list[str]:
    """Return the interfaces of the default routes, the first choice of IPv4 and that of IPv6.

    Source: Linux, net/ipv4/fib_trie.c (fib_route_seq_show) and net/ipv6/route.c (rt6_info_route).
    """
    four, six = [], []
    for fields in _lines(routes / "route")[1:]:  # the first names the columns
        if fields[1] == "00000000" and fields[7] == "00000000" and int(fields[3], 16) & UP:
            four.append((int(fields[6]), fields[0]))
    for fields in _lines(routes / "ipv6_route"):
        flags = int(fields[8], 16)
        if fields[0] == "0" * 32 and fields[1] == "00" and flags & UP and not flags & REJECT:
            six.append((int(fields[5], 16), fields[9]))
    best = (min(found, default=(NO_METRIC, "")) for found in (four, six))
    return list(dict.fromkeys(interface for _, interface in best if interface))


def told_by_network_manager(interface: str) -> bool:
    """Return whether NetworkManager says that an interface is metered, or guesses so; False without it.

    Source: nmcli(1), GENERAL.METERED: "yes", "no", "yes (guessed)", "no (guessed)" or "unknown".
    """
    try:
        said = subprocess.run(
            [*NMCLI, interface],
            capture_output=True,
            check=False,
            timeout=NMCLI_S,
            text=True,
            env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.returncode == 0 and said.stdout.strip().startswith("yes")


def _lines(path: Path) -> list[list[str]]:
    try:
        return [line.split() for line in path.read_text().splitlines() if line.strip()]
    except OSError:
        return []
