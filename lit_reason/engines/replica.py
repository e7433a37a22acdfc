"""One server of the policy, as the trainer sees it: an address that JSON is sent to."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from lit_reason.errors import ConfigError

KEY = "data.engine.urls"
START = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --worker-extension-cls "
    "lit_reason.engines.vllm_worker.PolicyWorker"
)


class Replica:
    """A server that `vllm serve` runs.

    Args:
        url: Its address, such as `http://127.0.0.1:8000`.
        timeout: Seconds that one answer may take.
    """

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"{KEY}={url}: is no address; give one such as http://127.0.0.1:8000")
        self.url, self.timeout = url.rstrip("/").removesuffix("/v1"), timeout

    def get(self, path: str) -> Any:
        """What the server answers to GET."""
        return self._send(Request(self.url + path))

    def post(self, path: str, body: Any = None) -> Any:
        """What the server answers to POST."""
        data = b"" if body is None else json.dumps(body).encode()
        return self._send(Request(self.url + path, data, {"Content-Type": "application/json"}))

    def call(self, method: str, *args: str) -> list[Any]:
        """What each of the server's workers returns from one of its methods."""
        body = {"method": method, "args": args, "timeout": self.timeout}
        return self.post("/collective_rpc", body)["results"]

    def _send(self, request: Request) -> Any:
        try:
            with urlopen(request, timeout=self.timeout) as answer:
                said = answer.read()
        except HTTPError as error:
            raise ConfigError(self._refused(request, error)) from error
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise ConfigError(
                f"{KEY}={self.url}: cannot be reached ({reason}); start it with `{START}`, or give "
                "another address"
            ) from error
        try:
            return json.loads(said) if said else None
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{KEY}={self.url}: answers {said[:40]!r} to {request.selector}, which is no JSON; "
                f"give the address of a vLLM server, started with `{START}`"
            ) from error

    def _refused(self, request: Request, error: HTTPError) -> str:
        if error.code == 404:
            return f"{KEY}={self.url}: has no {request.selector}; start it with `{START}`"
        said = " ".join(error.read().decode(errors="replace").split())
        return f"{KEY}={self.url}: answers {error.code} to {request.selector} ({said:.200})"
