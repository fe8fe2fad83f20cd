"""Drives headless Chromium over its debugging pipe: no driver, no port, no network.

Source of the protocol: https://chromedevtools.github.io/devtools-protocol/; with `--remote-debugging-pipe` Chromium
reads messages from file descriptor 3 and writes them to 4, each JSON ended by a zero byte.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_TIMEOUT_S = 60.0


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser. `problems` collects exceptions, console errors and requests other than the page's."""

    def __init__(self, executable: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        ]
        # Above 9, so that neither is 3 or 4 before it is put there.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]

        def place_ends() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [executable, *flags, "about:blank"],
            preexec_fn=place_ends,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in ends:
            os.close(end)
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.problems: list[str] = []
        (target,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> float:
        """Load a file; return the seconds until its load event."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self._events.clear()
        self._url = page.resolve().as_uri()
        started = time.perf_counter()
        self.call("Page.navigate", url=self._url)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._note(self._next())
        return time.perf_counter() - started

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "it threw"))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        text = {"Enter": "\r", " ": " "}.get(key, "")
        code = {"Enter": 13, "Tab": 9, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[key]
        shared = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **shared)
        self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        # Chromium takes no picture taller than 16384 px.
        size = self.evaluate("[innerWidth, Math.min(document.documentElement.scrollHeight, 16000)]")
        clip = {"clip": {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}} if whole else {}
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)
        file.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True)["data"])

    def close(self) -> None:
        self._session = None
        try:
            self.call("Browser.close")
        finally:
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            os.close(self._read)
            os.close(self._write)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], _TIMEOUT_S)[0]:
                raise TimeoutError("Chromium does not answer")
            got = os.read(self._read, 1 << 20)
            if not got:
                raise RuntimeError(f"Chromium ended with {self._process.wait()}")
            self._buffer += got
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        what = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(f"exception: {what['exceptionDetails'].get('text')}")
        elif event.get("method") == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.problems.append(f"console: {what['args']}")
        elif event.get("method") == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"log: {what['entry']['text']}")
        elif event.get("method") == "Network.requestWillBeSent":
            url = what["request"]["url"]
            if url != self._url and not url.startswith("data:"):
                self.problems.append(f"request: {url[:200]}")
