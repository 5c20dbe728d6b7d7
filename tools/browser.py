"""A headless Chromium for tests and for the pictures in the documentation, driven by its DevTools protocol over two pipes.

No package of its own: the protocol is JSON between NUL bytes. Debian has the program (`chromium-headless-shell`), and
`make test` installs it where it is missing. Not here: what a page should look like (the tests that use this).
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
ANSWER_S = 60
"""Longest wait for one answer; a page that takes longer has hung."""


class BrowserError(Exception):
    """The browser is missing, has ended, refused a command, or a script on the page raised."""


def program() -> str:
    """The path of a Chromium or Chrome on this machine."""
    for name in PROGRAMS:
        if path := shutil.which(name):
            return path
    raise BrowserError(f"None of {', '.join(PROGRAMS)} is on the PATH. On Debian: apt-get install {PROGRAMS[0]}.")


class Page:
    """One tab. `requests` are the URLs it asked for, in order; `errors` what its scripts raised and its console reported."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        self.errors: list[str] = []

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """One command of the DevTools protocol; its answer."""
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int, *, scale: float = 1) -> None:
        """The size of the window in CSS pixels, and how many pixels of a picture each of them is."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def prefer(self, colours: str) -> None:
        """What the reader's system prefers: `light` or `dark`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])

    def open(self, url: str) -> None:
        """Go there, and wait until everything that the page needs has arrived."""
        self._browser.forget("Page.loadEventFired", self._session)
        found = self.call("Page.navigate", url=url)
        if found.get("errorText"):
            raise BrowserError(f"{url}: {found['errorText']}")
        self._browser.wait_for("Page.loadEventFired", self._session)
        self.evaluate("document.fonts.ready.then(() => true)")

    def evaluate(self, script: str) -> Any:
        """The value of an expression on the page; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def picture(self, path: Path, *, whole: bool = False, clip: tuple[int, int, int, int] | None = None) -> None:
        """Write a PNG of the window, of the whole page, or of a rectangle (x, y, width, height)."""
        options: dict[str, object] = {"format": "png", "captureBeyondViewport": whole}
        if clip is not None:
            options["clip"] = dict(zip(("x", "y", "width", "height"), clip, strict=True), scale=1)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **options)["data"]))

    def heard(self, method: str, parameters: dict[str, Any]) -> None:
        """An event of this tab."""
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"].get("exception", parameters).get("description")))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")


class Browser:
    """A running browser: commands go in by one pipe, answers and events come out by the other."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._in, self._out = to_browser, from_browser
        self._numbers = itertools.count(1)
        self._rest = b""
        self._events: list[tuple[str, str | None]] = []
        self._pages: dict[str, Page] = {}

    def page(self) -> Page:
        """A new tab in a context of its own: no cookies, no cache and no storage of earlier ones."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        return page

    def call(self, method: str, session: str | None = None, /, **parameters: object) -> dict[str, Any]:
        """One command of the DevTools protocol, to the browser or to a tab; its answer."""
        number = next(self._numbers)
        message: dict[str, object] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._in, data) :]
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def forget(self, method: str, session: str) -> None:
        """Events of this kind that came so far do not count for `wait_for`."""
        self._events = [event for event in self._events if event != (method, session)]

    def wait_for(self, method: str, session: str) -> None:
        """Return when such an event has come since `forget`."""
        while (method, session) not in self._events:
            self._read()

    def _read(self) -> dict[str, Any]:
        """The next answer or event."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._out], [], [], ANSWER_S)
            data = os.read(self._out, 1 << 20) if ready else b""
            if not data:
                raise BrowserError(f"no answer within {ANSWER_S} s" if not ready else "the browser has ended")
            self._rest += data
        one, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(one)
        if "method" in message:
            self._events.append((message["method"], message.get("sessionId")))
            if page := self._pages.get(message.get("sessionId", "")):
                page.heard(message["method"], message["params"])
        return message


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser whose profile is in this new folder; it ends with the block."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    options = [
        "--headless", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-sandbox", "--disable-gpu",
        "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run", "--disable-background-networking",
        "--force-color-profile=srgb", "--font-render-hinting=none", "--lang=en",
    ]  # fmt: skip
    # Chromium reads file 3 and writes file 4; the shell puts the pipes there, whatever their numbers are here.
    shell = f'exec "$@" 3<&{to_read} 4>&{from_write}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", program(), *options],
        pass_fds=(to_read, from_write), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    os.close(to_read)
    os.close(from_write)
    try:
        yield Browser(to_write, from_read)
    finally:
        os.close(to_write)
        os.close(from_read)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
