"""The dashboard as it is served: by the command, to a browser, while a run goes on."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chromium import Chromium, find_chromium
from daemon_house import House, in_a_house

from meadow.pages.serve import CONNECTIONS_MAX, REQUEST_BYTES_MAX

CALL_S = 60.0


Commit = Callable[[int], None]
"""Completes a round of the run, of this number."""


def beside(tmp_path: Path, seen: Callable[[House, Commit], None]) -> None:
    """Run what a person does beside a daemon with a run of one round that is under way."""

    async def scenario(house: House) -> None:
        loop = asyncio.get_running_loop()

        async def record(number: int) -> None:
            row = json.dumps({"round": number, "clients": 2, "evaluate": {"accuracy": number / 10}})
            await house.daemon._supervisor.record(house.run_id, "round_committed", row)

        def commit(number: int) -> None:
            asyncio.run_coroutine_threadsafe(record(number), loop).result(CALL_S)

        await record(1)
        house.daemon._journal.runs.status(house.run_id, "running", now_s=5.0)
        await asyncio.to_thread(seen, house, commit)

    in_a_house(tmp_path / "server", scenario)


@contextmanager
def served(house: House) -> Iterator[str]:
    """Serve the pages, and yield the link."""
    command = ["server", "page", "--dir", str(house.home.folder), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "meadow", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    assert process.stdout is not None
    try:
        link = process.stdout.readline().split()[-1]
        assert link.startswith("http://127.0.0.1:"), link
        yield link
        process.terminate()
        out, err = process.communicate(timeout=CALL_S)
        assert (process.returncode, err) == (0, "")
        assert link not in out and out.startswith("open this link once:")
    finally:
        process.kill()
        process.communicate()


def test_a_page_is_renewed(tmp_path: Path) -> None:
    """A round appears in a page that is open; when the process ends, so do its pages."""

    def seen(house: House, commit: Commit) -> None:
        with served(house) as link:
            host, _, path = link.removeprefix("http://").partition("/")
            enter = http.client.HTTPConnection(host, timeout=CALL_S)
            enter.request("GET", f"/{path}")
            cookie = str(enter.getresponse().headers["Set-Cookie"]).partition(";")[0]
            stream = http.client.HTTPConnection(host, timeout=CALL_S)
            headers = {"Cookie": cookie, "Accept": "text/event-stream"}
            stream.request("GET", f"/runs/{house.run_id}", headers=headers)
            answer = stream.getresponse()
            assert answer.headers["Content-Type"].startswith("text/event-stream")

            def next_part() -> str:
                while not (line := answer.readline()).startswith(b"data: "):
                    assert line, "the stream has ended"
                return str(json.loads(line[6:]))

            assert "accuracy <b>0.1</b>" in next_part()
            commit(2)
            assert "accuracy <b>0.2</b>" in next_part()
            crowd = [socket.create_connection((host.partition(":")[0], int(host.partition(":")[2])))
                     for _ in range(CONNECTIONS_MAX)]  # fmt: skip
            turned_away = http.client.HTTPConnection(host, timeout=CALL_S)
            turned_away.request("GET", "/")
            assert turned_away.getresponse().status == 503
            for each in crowd:
                each.close()
            long = http.client.HTTPConnection(host, timeout=CALL_S)
            long.request("GET", "/", headers={"X-Long": "x" * (4 * REQUEST_BYTES_MAX)})
            assert long.getresponse().status == 400
            taken = subprocess.run(
                [sys.executable, "-m", "meadow", "server", "page", "--dir", str(house.home.folder),
                 "--port", host.partition(":")[2]],
                capture_output=True, check=False, text=True, timeout=CALL_S,
            )  # fmt: skip
            assert taken.returncode == 1 and "give another port with --port" in taken.stderr

    beside(tmp_path, seen)


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed")
def test_in_a_browser(tmp_path: Path) -> None:
    """A person signs in, sees a round arrive, and acts by keyboard alone; a phone shows all of it."""

    def seen(house: House, commit: Commit) -> None:
        with served(house) as link, Chromium(tmp_path / "profile") as browser:
            base = link.partition("/enter")[0]
            browser.open(link)
            assert browser.value("document.title") == "Overview - Meadow"
            browser.open(f"{base}/runs/{house.run_id}")
            browser.wait_for("document.querySelector('figcaption b').textContent === '0.1'")
            commit(2)
            browser.wait_for("document.querySelector('figcaption b').textContent === '0.2'")
            assert browser.value("document.getElementById('lost').hidden")
            styled = "getComputedStyle(document.querySelector('polyline')).fill"
            assert browser.value(styled) == "none", "the style sheet is not loaded"
            visited = []
            for _ in range(30):
                browser.press("Tab")
                visited.append(browser.value("document.activeElement.textContent"))
                if visited[-1] == "Stop ...":
                    break
            assert visited[0] == "Skip to the content" and visited[-1] == "Stop ...", visited
            browser.press("Enter", "\r")
            browser.wait_for("document.title.startsWith('Stop run')")
            browser.call(
                "Emulation.setDeviceMetricsOverride",
                width=360, height=700, deviceScaleFactor=1, mobile=True,
            )  # fmt: skip
            for page in ("/", "/runs", f"/runs/{house.run_id}", "/sites", "/events"):
                browser.open(base + page)
                assert browser.value("document.documentElement.scrollWidth") <= 360, page
            assert re.match(r"Events", browser.value("document.title"))

    beside(tmp_path, seen)
