"""JSON over HTTP to a server with OpenAI's interface: tries again while it is busy, failing or away."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from harness.errors import RunError

TRIES = 5
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 30.0
TIMEOUT_S = 600.0
LOCAL = ("localhost", "127.0.0.1", "::1")


class Endpoint:
    """One server.

    Args:
        url: base address, without `/v1`.
        key: sent as a bearer token; nothing is sent where it is empty.
        timeout_s: longest wait for one answer.
        sleep: waits so many seconds.
    """

    def __init__(
        self, url: str, *, key: str = "", timeout_s: float = TIMEOUT_S, sleep: Callable[[float], None] = time.sleep
    ) -> None:  # fmt: skip
        self.url, self.timeout_s, self._sleep = url, timeout_s, sleep
        self._headers = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {key}"} if key else {}),
        }
        local = urlsplit(url).hostname in LOCAL
        # a proxy of the environment does not know this machine's own ports
        proxies = urllib.request.ProxyHandler({}) if local else urllib.request.ProxyHandler()
        self._opener = urllib.request.build_opener(proxies)

    def cards(self, *, patient: bool = True) -> list[dict[str, Any]]:
        """What the server says of each of its models; a card has an `id`. Arguments and errors as of `call`."""
        found = self.call("/v1/models", patient=patient).get("data")
        return [c for c in found if isinstance(c, dict) and "id" in c] if isinstance(found, list) else []

    def call(
        self, path: str, body: Mapping[str, Any] | None = None, *, patient: bool = True
    ) -> dict[str, Any]:
        """JSON of one page: a GET, or a POST of `body`. Asked again, with growing waits, while the server is busy.

        Args:
            path: of the page, from the base address.
            body: what is posted; without one, the page is only read.
            patient: whether a server that cannot be reached is tried again too.

        Raises:
            RunError: it refuses, stays away, or answers with something else than a JSON object.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self._headers)
        problem, wait = "", FIRST_WAIT_S
        for attempt in range(TRIES):
            if attempt:
                self._sleep(min(wait, LONGEST_WAIT_S))
                wait *= 2
            try:
                with self._opener.open(request, timeout=self.timeout_s) as answer:
                    return self._json(path, answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    problem = f"{error.code} {error.reason}: {_said(error)}"
                if error.code != 429 and error.code < 500:
                    raise RunError(f"{self.url}{path} refused: {problem}") from None
                wait = max(wait, _seconds(error.headers.get("Retry-After")))
            except (OSError, http.client.HTTPException) as error:
                problem = str(getattr(error, "reason", error)) or type(error).__name__
                if not patient:
                    raise RunError(f"{self.url}{path} gave no answer: {problem}") from None
        raise RunError(f"{self.url}{path} gave no answer in {TRIES} tries: {problem}")

    def _json(self, path: str, data: bytes) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise RunError(f"{self.url}{path} answered with something else than a JSON object")
        return cast("dict[str, Any]", value)


def _said(error: urllib.error.HTTPError) -> str:
    """The server's own message, in one line of at most 300 characters."""
    text = error.read().decode(errors="replace")
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, dict):
        inner = value.get("error", value)
        text = str(inner.get("message", text)) if isinstance(inner, dict) else str(inner)
    return " ".join(text.split())[:300]


def _seconds(value: str | None) -> float:
    """A Retry-After in seconds; 0 where there is none, or a date."""
    return float(value) if value is not None and value.strip().isdigit() else 0.0
