"""The owner's pages as they are served: by the command, to a browser, beside an agent at work."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chromium import Chromium, find_chromium

from meadow.client.agent.lock import hold_lock, lock_holder
from meadow.client.owner import gate
from meadow.errors import StoreError

from ..conftest import Client

CALL_S = 60.0


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serve the pages, and yield the link."""
    command = [sys.executable, "-m", "meadow", "client", "page", "--dir", str(directory)]
    process = subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        link = process.stdout.readline().split()[-1]
        assert link.startswith("http://127.0.0.1:"), link
        yield link
        process.terminate()
        _, err = process.communicate(timeout=CALL_S)
        assert (process.returncode, err) == (0, "")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed")
def test_in_a_browser(client: Client, tmp_path: Path) -> None:
    """An owner sees an answer leave, pauses the site by keyboard, and the agent is away; a phone shows all."""

    def before(browser: Chromium, link: str) -> None:
        browser.open(link)
        assert browser.value("document.title") == "Overview - Meadow"
        assert "not running" in browser.value("document.getElementById('live').innerText")

    def meanwhile(browser: Chromium) -> None:
        browser.wait_for("document.getElementById('live').innerText.includes('running, process')")
        browser.wait_for("document.getElementById('live').innerText.includes('evaluate')")
        visited = []
        for _ in range(12):
            browser.press("Tab")
            visited.append(browser.value("document.activeElement.textContent"))
            if visited[-1] == "Pause ...":
                break
        assert visited[0] == "Skip to the content" and visited[-1] == "Pause ...", visited
        browser.press("Enter", "\r")
        browser.wait_for("document.title.startsWith('Pause this site?')")
        browser.value("document.querySelector('form.across button').click()")
        browser.wait_for("document.body.innerText.includes('paused by its owner')")

    def after(browser: Chromium, base: str) -> None:
        browser.call(
            "Emulation.setDeviceMetricsOverride",
            width=360, height=700, deviceScaleFactor=1, mobile=True,
        )  # fmt: skip
        for page in ("/", "/log", "/log?kinds=refused", "/pause", "/resume"):
            browser.open(base + page)
            assert browser.value("document.documentElement.scrollWidth") <= 360, page

    async def scenario() -> None:
        await client.fleet.start()  # an identity has its address
        client.enroll()
        await client.fleet.stop()
        with served(client.directory) as link, Chromium(tmp_path / "profile") as browser:
            await look(browser, link)

    async def look(browser: Chromium, link: str) -> None:
        base = link.partition("/enter")[0]
        await asyncio.to_thread(before, browser, link)
        async with client.connected():
            client.fleet.send(client.instruction("a", values=3, message_type="evaluate"))
            await client.fleet.reply("a")
            await asyncio.to_thread(meanwhile, browser)
            await client.hear("paused")
        await asyncio.to_thread(after, browser, base)

    asyncio.run(scenario())
    assert gate.is_paused(client.directory)


def test_looking_at_the_lock_keeps_no_agent_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks holds it for a moment; an agent that starts then waits, and one that runs is found."""
    import fcntl

    from meadow.client.agent import lock

    looking = (tmp_path / "agent.lock").open("w")
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(lock.time, "sleep", lambda _: looking.close())
    with hold_lock(tmp_path):
        assert lock_holder(tmp_path) is not None
        with pytest.raises(StoreError, match="already running"), hold_lock(tmp_path):
            pass
    assert lock_holder(tmp_path) is None
