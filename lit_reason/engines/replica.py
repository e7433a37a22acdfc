"""One server of the policy, as the trainer sees it: an address that JSON is sent to."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from lit_reason.errors import ConfigError

KEY = "data.engine.urls"
START = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --worker-extension-cls "
    "lit_reason.engines.vllm_worker.PolicyWorker"
)
PORTS = {"http": ":80", "https": ":443"}  # where an address names none


class _Here(HTTPRedirectHandler):
    """Follows no redirect: it would send prompts and weights to another address."""

    def redirect_request(self, *_: Any) -> None:
        """See `HTTPRedirectHandler`: without another request the answer is an `HTTPError`."""


@cache
def _opener() -> OpenerDirector:
    """Connects to the address itself, whatever proxies the environment names."""
    return build_opener(ProxyHandler({}), _Here())


@dataclass(frozen=True)
class Answer:
    """JSON that a server answered, or a part of it.

    Attributes:
        value: What it is.
        source: The server and what it was asked, for messages.
        place: Where in the answer the part was.

    Example:
        >>> Answer({"data": [{"id": "policy"}]}, "the answer")["data"][0]["id"].of(str)
        'policy'
        >>> Answer({"data": []}, "the answer")["data"][0]
        Traceback (most recent call last):
        lit_reason.errors.ConfigError: the answer has no `data[0]`; give the address of a vLLM \
server, started with `VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --worker-extension-cls \
lit_reason.engines.vllm_worker.PolicyWorker`
    """

    value: Any
    source: str
    place: str = ""

    def __getitem__(self, key: str | int) -> Answer:
        """The part at a key.

        Raises:
            ConfigError: There is none.
        """
        step = f".{key}" if isinstance(key, str) else f"[{key}]"
        place = (self.place + step).lstrip(".")
        try:
            return Answer(self.value[key], self.source, place)
        except (LookupError, TypeError) as error:
            raise self.wrong(f"has no `{place}`") from error

    def parts(self) -> list[Answer]:
        """The parts of a list, which has some.

        Raises:
            ConfigError: It has none, or is no list.
        """
        return [self[i] for i in range(len(self.of(list)) or 1)]

    def of(self, *kinds: type) -> Any:
        """The value.

        Raises:
            ConfigError: It is of another kind.
        """
        if not isinstance(self.value, kinds):
            raise self.wrong(f"has {self.value!r:.40} as `{self.place}`")
        return self.value

    def all_of(self, *kinds: type) -> list[Any]:
        """The values of a list.

        Raises:
            ConfigError: One is of another kind, or it is no list.
        """
        if not all(isinstance(value, kinds) for value in self.of(list)):
            raise self.wrong(f"has {self.value!r:.40} as `{self.place}`")
        return list(self.value)

    def wrong(self, what: str) -> ConfigError:
        """One line for an answer that is not a policy server's.

        Args:
            what: Follows "the answer".
        """
        return ConfigError(
            f"{self.source} {what}; give the address of a vLLM server, started with `{START}`"
        )


class Replica:
    """A server that `vllm serve` runs.

    Args:
        url: Its address, such as `http://127.0.0.1:8000`.
        timeout: Seconds that one answer may take.

    Attributes:
        url: The address in one spelling.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.url, self.timeout = _address(url), timeout

    def get(self, path: str) -> Answer:
        """What the server answers to GET."""
        return self._send(Request(self.url + path))

    def post(self, path: str, body: Any = None) -> Answer:
        """What the server answers to POST."""
        data = b"" if body is None else json.dumps(body).encode()
        return self._send(Request(self.url + path, data, {"Content-Type": "application/json"}))

    def call(self, method: str, *args: str) -> list[Answer]:
        """What each of the server's workers returns from one of its methods."""
        body = {"method": method, "args": args, "timeout": self.timeout}
        return self.post("/collective_rpc", body)["results"].parts()

    def _send(self, request: Request) -> Answer:
        try:
            said = self._exchange(request)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise ConfigError(self._unreached(request, error)) from error
        source = f"{KEY}={self.url}: the answer to {request.selector}"
        try:
            return Answer(json.loads(said) if said else None, source)
        except (ValueError, RecursionError) as error:
            raise Answer(said, source).wrong(f"is no JSON ({said[:40]!r})") from error

    def _exchange(self, request: Request) -> bytes:
        try:
            with _opener().open(request, timeout=self.timeout) as answer:
                said: bytes = answer.read()
                return said
        except HTTPError as error:
            with error:
                raise ConfigError(self._refused(request, error)) from error

    def _unreached(self, request: Request, error: Exception) -> str:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError) and reason.errno is None:  # not the system's own
            return (
                f"data.engine.timeout={self.timeout}: {self.url} takes longer to answer "
                f"{request.selector}; raise it, or see whether the server is alive"
            )
        return (
            f"{KEY}={self.url}: cannot be reached ({reason or type(reason).__name__}); start it "
            f"with `{START}`, or give another address"
        )

    def _refused(self, request: Request, error: HTTPError) -> str:
        if error.code == 404:
            return f"{KEY}={self.url}: has no {request.selector}; start it with `{START}`"
        if 300 <= error.code < 400:
            away = error.headers.get("Location", "")
            return (
                f"{KEY}={self.url}: sends {request.selector} on to another address ({away:.200}), "
                f"and only those in {KEY} are connected to; give the server's own"
            )
        said = " ".join(error.read().decode(errors="replace").split())
        return f"{KEY}={self.url}: answers {error.code} to {request.selector} ({said:.200})"


def _address(url: str) -> str:
    """An address in one spelling, whichever of several it was given in.

    Raises:
        ConfigError: It is none, or holds a password.

    Example:
        >>> _address("HTTP://A:80/v1/")
        'http://a'
    """
    if "@" in url:  # not repeated: messages are kept in logs
        raise ConfigError(
            f"{KEY}=…@{url.rpartition('@')[2]}: must hold no user or password, which each "
            "config.yaml and checkpoint would keep; leave them out, and bind the server to an "
            "address that only the trainer reaches"
        )
    try:
        parts = urlsplit(url)
        known = bool(parts.scheme in PORTS and parts.hostname and parts.port != 0)
    except ValueError:  # of a port or an IPv6 address that is none
        known = False
    if not known or parts.query or parts.fragment:
        raise ConfigError(f"{KEY}={url}: is no address; give one such as http://127.0.0.1:8000")
    host = parts.netloc.lower().removesuffix(PORTS[parts.scheme]).removesuffix(":")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{host}{path}"
