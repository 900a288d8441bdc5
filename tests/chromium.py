"""Opens a page in Debian's chromium, by the DevTools protocol over two pipes: no port, no package from npm.

`Page` says what a browser did with a file: messages of its console, requests, what a script answers, a picture. It
starts with a profile of its own, without network, and ends with the `with` block.

    python tests/chromium.py run.html docs/pictures/report.png 'Loss' Plan

makes a picture of a page for the docs, from the first heading to the second.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = shutil.which("chromium")
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--mute-audio"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe", "--hide-scrollbars"),
)
_WITH_PIPES = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads the descriptor 3 and writes to 4."""


class Page:
    """One tab."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._number = 0
        self._buffer = b""
        self._session = ""
        self.messages: list[str] = []
        """Errors, warnings and all else in the console, and exceptions that nothing caught."""
        self.requests: list[str] = []
        """Addresses, that of the file itself included."""
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        request: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            request["sessionId"] = self._session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        deadline = time.monotonic() + 60
        while True:
            message = self._next(deadline)
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("chromium did not answer")
            data = os.read(self._from, 1 << 16)
            if not data:
                raise EOFError("chromium ended")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.messages.append(str([argument.get("value") for argument in params["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.messages.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.messages.append(f"dialog: {params['message']}")
        elif method == "Page.loadEventFired":
            self._loaded = True

    def open(self, path: Path, width: int = 1400, height: int = 1000, *, is_dark: bool = False) -> None:
        """Load the file and wait until it is complete."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + 60
        while not self._loaded:
            self._next(deadline)

    def run(self, script: str) -> Any:
        """The value of an expression, after a promise is kept. The page's own policy does not apply."""
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(json.dumps(reply["exceptionDetails"])[:2000])
        return reply["result"].get("value")

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": name} if kind == "keyDown" and len(name) == 1 else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, **text)

    def mouse(self, kind: str, x: float, y: float) -> None:
        pressed = {"button": "left", "clickCount": 1} if kind != "mouseMoved" else {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def screenshot(self, path: Path, top: float = 0.0, bottom: float | None = None) -> None:
        """The whole page as PNG, or a part of its height."""
        more: dict[str, Any] = {}
        if bottom is not None:
            width = self.run("document.documentElement.clientWidth")
            more["clip"] = {"x": 0, "y": top, "width": width, "height": bottom - top, "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, **more)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser() -> Iterator[Page]:
    assert PROGRAM is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        argv = [sys.executable, "-IS", "-c", _WITH_PIPES, str(to_read), str(from_write), PROGRAM]
        argv += [*_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            argv, pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(from_write)
        try:
            page = Page(to_write, from_read)
            yield page
            page._session = ""
            page.call("Browser.close")
            process.wait(20)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(to_write)
            os.close(from_read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("first")
    parser.add_argument("last")
    parser.add_argument("--width", type=int, default=1000)
    args = parser.parse_args()
    with browser() as page:
        page.open(args.page, args.width)
        find = "[...document.querySelectorAll('h2')].find(e => e.textContent === {}).getBoundingClientRect().top - 12"
        page.screenshot(args.picture, *(page.run(find.format(json.dumps(name))) for name in (args.first, args.last)))


if __name__ == "__main__":
    main()
