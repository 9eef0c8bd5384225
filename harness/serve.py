"""A server for one's own machine: shows the site, builds it again when something changes, and lets the browser reload.

Only pages that are served have the reloading script; the built files never do. It is a file of the server's own, so
the pages' Content-Security-Policy needs no more than this server as a source of scripts and connections.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from harness.errors import InputError

SCRIPT, EVENTS = "/-/reload.js", "/-/events"
RELOAD = b"""const events = new EventSource("/-/events");
let seen = null;
events.onmessage = (event) => {
  if (seen !== null && seen !== event.data) location.reload();
  seen = event.data;
};
"""
POLL_S = 0.5
_POLICY = re.compile(
    rb"(<meta\s+http-equiv=\"Content-Security-Policy\"\s+content=\")([^\"]*)(\")", re.IGNORECASE
)


def with_reload(page: bytes) -> bytes:
    """A page with the reloading script, and a policy that lets it run; nothing else is let in."""
    tag = f'<script src="{SCRIPT}" defer></script>'.encode()
    page = _POLICY.sub(lambda m: m[1] + _opened(m[2].decode()).encode() + m[3], page, count=1)
    return page.replace(b"</head>", tag + b"</head>", 1) if b"</head>" in page else page + tag


def _opened(policy: str) -> str:
    """A policy in which this server is a source of scripts and of connections.

    >>> _opened("default-src 'none'; script-src 'sha256-x'")
    "default-src 'none'; script-src 'sha256-x' 'self'; connect-src 'self'"
    """
    parts = [part.split() for part in unescape(policy).split(";") if part.split()]
    for name in ("script-src", "connect-src"):
        mine = next((part for part in parts if part[0].lower() == name), None)
        if mine is None:
            parts.append([name, "'self'"])
        elif "'self'" not in mine:
            mine[:] = [p for p in mine if p != "'none'"] + ["'self'"]
    return escape("; ".join(" ".join(part) for part in parts), quote=False).replace('"', "&quot;")


def seen_in(folders: Sequence[Path]) -> int:
    """A number that changes when a file under one of the folders is added, changed or taken away."""
    found = []
    for folder in folders:
        for path, names, files in os.walk(folder):
            names[:] = [name for name in names if not name.startswith((".", "__pycache__"))]
            for name in files:
                with contextlib.suppress(OSError):
                    stat = os.stat(os.path.join(path, name))  # noqa: PTH116, PTH118
                    found.append((path, name, stat.st_size, stat.st_mtime_ns))
    return hash(tuple(sorted(found)))


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder on 127.0.0.1; `changed` tells the browsers to load their pages again."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        self.version = 0
        self.ended = False
        self.news = threading.Condition()
        self.folder = folder
        try:
            super().__init__(("127.0.0.1", port), functools.partial(_Handler, directory=str(folder)))
        except (OSError, OverflowError) as error:
            raise InputError(
                f"port {port} cannot be used: {error}", "0 takes a free one", "give another --port"
            ) from None

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.server_port}/"

    def changed(self) -> None:
        """Tells every open page to load itself again."""
        with self.news:
            self.version += 1
            self.news.notify_all()

    def end(self) -> None:
        """Stops answering."""
        with self.news:
            self.ended = True
            self.news.notify_all()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error."""


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == EVENTS:
            self._events()
        elif path == SCRIPT:
            self._send(RELOAD, "text/javascript")
        elif (page := self._page(path)) is not None:
            self._send(with_reload(page), "text/html; charset=utf-8")
        else:
            super().do_GET()

    def _page(self, path: str) -> bytes | None:
        file = Path(self.translate_path(path))
        file = file / "index.html" if path.endswith("/") else file
        try:
            return file.read_bytes() if file.suffix == ".html" else None
        except OSError:
            return None

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        seen = None
        with contextlib.suppress(OSError):
            while not self.server.ended:
                with self.server.news:
                    if seen == self.server.version:
                        self.server.news.wait(10.0)
                    text = ":\n\n" if seen == self.server.version else f"data: {self.server.version}\n\n"
                    seen = self.server.version
                self.wfile.write(text.encode())
                self.wfile.flush()

    def list_directory(self, path: Any) -> None:
        """No listings: a built site has none either."""
        self.send_error(404)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed for each file."""


@contextlib.contextmanager
def running(folder: Path, port: int) -> Iterator[Server]:
    """A server that answers while the block runs."""
    server = Server(folder, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.end()
        thread.join()


def watch(
    folders: Sequence[Path],
    build: Callable[[], None],
    server: Server,
    *,
    wait: Callable[[float], object],
    ended: Callable[[], bool] = lambda: False,
) -> None:
    """Builds and tells the browsers whenever something in `folders` has changed, until `ended`.

    Args:
        folders: sources and records.
        build: what it raises ends the watching; a build that fails should say so and return.
        server: is told.
        wait: sleeps for some seconds.
        ended: asked before each look.
    """
    seen = seen_in(folders)
    while not ended():
        wait(POLL_S)
        now = seen_in(folders)
        if now != seen:
            seen = now
            build()
            server.changed()
