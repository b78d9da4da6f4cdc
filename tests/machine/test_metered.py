"""Whether the network in use is metered, from routes as Linux lists them and the words of nmcli."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meadow.machine import metered
from meadow.machine.metered import interfaces_in_use, metered_network, told_by_network_manager

HEAD = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
LOCAL = "wlan0 000200C0 00000000 0001 0 0 600 00FFFFFF 0 0 0\n"


def four(interface: str, metric: int, flags: str = "0003") -> str:
    """Return a default route of IPv4."""
    return f"{interface} 00000000 010200C0 {flags} 0 0 {metric} 00000000 0 0 0\n"


def six(interface: str, metric: int, flags: int = 0x3) -> str:
    """Return a default route of IPv6."""
    none = "0" * 32
    return f"{none} 00 {none} 00 {'fe80' + none[4:]} {metric:08x} 00000003 00000000 {flags:08x} {interface}\n"


def test_the_interface_in_use(tmp_path: Path) -> None:
    """It is that of the default route with the smallest metric, of each family."""
    assert interfaces_in_use(tmp_path) == []
    (tmp_path / "route").write_text(HEAD + LOCAL + four("wwan0", 700) + four("wlan0", 600))
    assert interfaces_in_use(tmp_path) == ["wlan0"]
    (tmp_path / "route").write_text(HEAD + four("wlan0", 600, "0002") + four("wwan0", 700))
    assert interfaces_in_use(tmp_path) == ["wwan0"], "a route that is down is not used"
    rejected = six("lo", 0xFFFFFFFF, 0x200)
    (tmp_path / "ipv6_route").write_text(rejected + six("eth0", 1024) + six("wwan0", 2048))
    assert interfaces_in_use(tmp_path) == ["wwan0", "eth0"]
    (tmp_path / "route").write_text(HEAD + LOCAL)
    (tmp_path / "ipv6_route").write_text(rejected)
    assert interfaces_in_use(tmp_path) == []


def test_it_is_metered_by_its_name_or_by_word(tmp_path: Path) -> None:
    """A pattern suffices, and so does the system's word."""
    (tmp_path / "route").write_text(HEAD + four("wwan0", 700))

    def found(*patterns: str, told: bool = False) -> str:
        return metered_network(patterns, told=lambda _: told, routes=tmp_path)

    assert found("ppp*", "wwan*") == "wwan0" and found("wwan0") == "wwan0"
    assert found("wlan*") == "" and found(told=True) == "wwan0"
    (tmp_path / "route").unlink()
    assert found("*", told=True) == "", "without a network nothing is paid for"


@pytest.mark.parametrize(
    ("said", "is_metered"),
    [("yes", True), ("yes (guessed)", True), ("no", False), ("no (guessed)", False), ("unknown", False)],
)  # fmt: skip
def test_the_word_of_network_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, is_metered: bool
) -> None:
    """nmcli is asked about the interface; without it, nothing is metered."""
    command = tmp_path / "nmcli"
    command.write_text(f'#!/bin/sh\n[ "$5" = wlan0 ] || exit 10\necho "{said}"\n')
    os.chmod(command, 0o755)
    monkeypatch.setattr(metered, "NMCLI", (str(command), *metered.NMCLI[1:]))
    assert told_by_network_manager("wlan0") == is_metered
    assert not told_by_network_manager("eth0")
    monkeypatch.setattr(metered, "NMCLI", (str(tmp_path / "none"),))
    assert not told_by_network_manager("wlan0")
