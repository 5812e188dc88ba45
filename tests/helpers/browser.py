"""A real browser for the tests: Chromium without a window, spoken to over a pipe in its DevTools protocol."""

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

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def install(seconds: float = 240.0) -> str:
    """From Debian's packages. Gives the reason where that cannot be, and nothing when it is there."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return "there is no Chromium, and installing it takes root and apt-get"
    ends, environment = time.monotonic() + seconds, {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in ("update", "install --yes --no-install-recommends chromium"):
        try:
            subprocess.run(
                ["apt-get", "--quiet", *command.split()],
                env=environment,
                check=True,
                capture_output=True,
                timeout=max(ends - time.monotonic(), 1),
            )
        except subprocess.SubprocessError as error:
            return f"Chromium could not be installed: apt-get {command}: {error}"
    return ""


def obtain(lock: Path) -> tuple[str | None, str]:
    """The browser's path, or why there is none. One of several test processes installs it, the others wait."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        reason = "" if find() else install()
    return find(), reason


class Browser:
    """One page. What it logs and asks of the network is kept."""

    def __init__(self, executable: str, profile: Path) -> None:
        (inward, self._to), (self._from, outward) = os.pipe(), os.pipe()
        # The browser reads from 3 and writes to 4; ours are kept clear of these numbers.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (inward, outward)]
        self._process = subprocess.Popen(
            [executable, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(3, 4),
            preexec_fn=lambda: [os.dup2(end, number) for end, number in zip(ends, (3, 4), strict=True)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (inward, outward, *ends):
            os.close(end)
        self._calls, self._buffer, self._session = 0, b"", ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, page: Path, width: int = 1280, height: int = 900, dark: bool = False) -> float:
        """Seconds until the page has loaded and drawn itself."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.complaints.clear()
        self.requests.clear()
        began = time.monotonic()
        self.call("Page.navigate", url=page.as_uri())
        self.wait("document.documentElement?.dataset.drawn === 'yes'")
        self.settle()
        return time.monotonic() - began

    def visit(self, url: str, width: int = 1280, height: int = 900) -> None:
        """Open an address; what it draws, and when, is for the caller to wait for."""
        self.call("Page.navigate", url="about:blank")
        self.resize(width, height)
        self.run("0")  # what the page before complained of, its server having gone, is heard by now
        self.complaints.clear()
        self.requests.clear()
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int) -> None:
        narrow = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=narrow)
        self.settle()

    def settle(self) -> None:
        """Let what is drawn follow: observers of a size hear of a new one a frame later."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def fits(self, width: int) -> None:
        """Nothing on the page is wider, once its charts have followed, which on a busy machine takes many frames."""
        self.wait(f"document.documentElement.scrollWidth === {width}")

    def run(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 30.0) -> None:
        ends = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < ends, f"{condition}: not after {seconds} s; {self.complaints}"
            time.sleep(0.02)

    def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))

    def call(self, method: str, **parameters: Any) -> Any:
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._calls:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(told["args"]))
        elif event == "Log.entryAdded":
            self.complaints.append(told["entry"]["text"])
        elif event == "Network.requestWillBeSent" and not told["request"]["url"].startswith("data:"):
            self.requests.append(told["request"]["url"])

    def _receive(self, seconds: float = 60.0) -> Any:
        while b"\0" not in self._buffer:
            assert select.select([self._from], [], [], seconds)[0], f"the browser said nothing for {seconds} s"
            more = os.read(self._from, 1 << 20)
            assert more, "the browser ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        os.close(self._to)  # the end of its input ends the browser
        os.close(self._from)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
