"""A headless browser: Debian's Chromium, driven by playwright, on pages that need no network."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
_FLAGS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--no-sandbox",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextlib.contextmanager
def opened() -> Iterator[Any]:
    """A browser; skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs `.[docs]` (playwright)")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs a chromium on the PATH (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as run:
        browser = run.chromium.launch(executable_path=chromium, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder at an address of this machine."""
    handler = functools.partial(_Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Visit:
    """A page, what its console complained of, and what it asked of other machines."""

    def __init__(self, browser: Any, size: dict[str, int]) -> None:
        self.page = browser.new_page(viewport=size)
        self.complaints: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)
        self.page.on("requestfailed", self._failed)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _failed(self, request: Any) -> None:
        if "ERR_ABORTED" not in str(request.failure):  # the next page was opened meanwhile
            self.complaints.append(f"failed: {request.url}, {request.failure}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1", "file:", "data:", "blob:")):
            self.complaints.append(f"asks elsewhere: {request.url}")

    def open(self, address: str) -> Any:
        """Goes to an address and waits until all of it is there."""
        self.page.goto(address, wait_until="networkidle")
        return self.page

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    def drawn(self, selector: str) -> bool:
        """Whether every image that it finds, and one at least, has been decoded."""
        return self.page.evaluate(
            """async selector => {
              const images = [...document.querySelectorAll(selector)];
              images.forEach(image => image.loading = "eager");
              await Promise.all(images.map(image => image.decode().catch(() => null)));
              return images.length > 0 && images.every(image => image.naturalWidth > 1);
            }""",
            selector,
        )
