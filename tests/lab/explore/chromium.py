"""A real headless Chromium, driven by its own protocol through a pipe. It needs nothing but the browser.

The protocol (https://chromedevtools.github.io/devtools-protocol/) consists of JSON messages that end with a zero byte.
The browser reads them from its file descriptor 3 and writes to its file descriptor 4.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any, Self

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)  # fmt: skip
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36}
SHIFT = 8
PATIENCE = 60.0
"""Seconds that the browser has to answer. If it takes longer, it hangs."""


class Chromium:
    """One browser with one tab. It records the page's complaints and its network requests."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        to_browser, self._writes = _pipe()
        self._reads, from_browser = _pipe()
        log = os.open(profile / "chromium.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        files = [
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]  # first, because the log may be file 3 or 4
        files += [(os.POSIX_SPAWN_DUP2, to_browser, 3), (os.POSIX_SPAWN_DUP2, from_browser, 4)]
        command = [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = os.posix_spawn(PROGRAM, command, os.environ, file_actions=files, setsid=True)
        for end in (to_browser, from_browser, log):
            os.close(end)
        self._buffer, self._next, self._session = b"", 0, None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded = False

    def __enter__(self) -> Self:
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._writes)
        os.close(self._reads)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command to the browser, and wait for its answer."""
        self._next += 1
        message = {"id": self._next, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        return self._wait(self._next)

    def open(self, address: str) -> None:
        """Open an address, and wait until the page has loaded."""
        self._loaded = False
        self.send("Page.navigate", url="about:blank")
        self._until_loaded()
        self.complaints.clear()
        self.requests.clear()
        self._loaded = False
        self.send("Page.navigate", url=address)
        self._until_loaded()

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        told = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def press(self, key: str, times: int = 1, *, shift: bool = False) -> None:
        """Press a key like on a keyboard."""
        told = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": KEYS[key]}
        told |= {"modifiers": SHIFT} if shift else {}
        text = {"Enter": "\r", " ": " "}.get(key)
        for _ in range(times):
            self.send("Input.dispatchKeyEvent", type="keyDown", **told, **({"text": text} if text else {}))
            self.send("Input.dispatchKeyEvent", type="keyUp", **told)

    def size(self, width: int, height: int, *, scale: float = 1.0, phone: bool = False) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )

    def media(self, **features: str) -> None:
        """Set media features, or `media`. Write `_` for `-` in names: media(prefers_color_scheme="dark")."""
        medium = features.pop("media", "")
        told = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", media=medium, features=told)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        image = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(image))

    def _until_loaded(self) -> None:
        while not self._loaded:
            self._message()

    def _wait(self, wanted: int) -> dict[str, Any]:
        while True:
            message = self._message()
            if message.get("id") == wanted:
                assert "error" not in message, message["error"]
                return message["result"]

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reads], [], [], max(0.0, end - time.monotonic()))
            more = os.read(self._reads, 1 << 20) if ready else b""
            assert more, "the browser does not answer"
            self._buffer += more
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        self._heard(message.get("method", ""), message.get("params", {}))
        return message

    def _heard(self, event: str, told: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"].get("exception", told)))
        elif event == "Log.entryAdded":
            self.complaints.append(told["entry"]["text"])
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(" ".join(str(one.get("value")) for one in told["args"]))


def _pipe() -> tuple[int, int]:
    """Open a pipe with descriptors above the browser's, so that none is overwritten before it is handed over."""
    low = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 16) for end in low]
    for end in low:
        os.close(end)
    return high[0], high[1]
