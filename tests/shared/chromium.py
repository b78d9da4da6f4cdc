"""A headless Chromium, driven over its debugging pipe: what a person would see, press and type."""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 60.0
PIPES = 'exec "$0" "$@" 3<&0 4>&1 < /dev/null > /dev/null'
"""The browser reads calls from descriptor 3 and writes answers to 4."""


def find_chromium() -> str | None:
    """Return the command of a Chromium that is installed here."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


class Chromium:
    """A browser with one page."""

    def __init__(self, profile: Path, *, width: int = 1200, height: int = 900) -> None:
        command = find_chromium()
        assert command is not None
        self._process = subprocess.Popen(
            ["sh", "-c", PIPES, command, "--headless=new", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
             "--remote-debugging-pipe", f"--user-data-dir={profile}",
             f"--window-size={width},{height}", "about:blank"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._out, self._in = self._process.stdin, io.BufferedReader(self._process.stdout)
        self._count = 0
        self._session = ""
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._in.close()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Make a call of the debugging protocol and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])

    def _read(self) -> bytes:
        data = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            assert byte, "the browser has ended"
            data += byte
        return bytes(data)

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is there."""
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str) -> Any:
        """Return what an expression of JavaScript is in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        end_s = time.monotonic() + PATIENCE_S
        while not self.value(expression):
            assert time.monotonic() < end_s, (
                f"{expression}: {self.value('document.body.innerText')}"
            )
            time.sleep(0.05)

    def press(self, key: str, text: str = "") -> None:
        """Press a key, as "Tab" or "Enter"."""
        codes = {"Tab": 9, "Enter": 13}
        what = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        if text:
            what["text"] = text
        self.call("Input.dispatchKeyEvent", type="keyDown", **what)
        self.call("Input.dispatchKeyEvent", type="keyUp", **what)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
