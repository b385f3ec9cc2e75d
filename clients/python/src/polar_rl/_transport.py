"""Sends requests over HTTP: retries, error bodies, compressed answers, and streams that resume."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import uuid
import zlib
from dataclasses import dataclass
from typing import Any, Generator, Generic, Iterator, Mapping, Optional, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from ._retries import Clock, Retries
from ._version import VERSION
from .errors import NoAnswer, PolarError, to_error

Data = TypeVar("Data")

# A stream without data for this time is opened again where it stopped. The server sends a ping event every 15 s.
SILENCE_SECONDS = 60.0
_CONNECT_SECONDS = 30.0
# For routes without a body; None is an empty object.
NO_BODY: Any = object()
_CHUNK_BYTES = 65536


@dataclass(frozen=True)
class Route:
    method: str
    # Parameters in braces: `/tasks/{task_id}`.
    path: str
    # A repeated request has no further effect, so a try without an answer may be repeated.
    is_idempotent: bool
    takes_key: bool = False
    # The server refuses what it would otherwise convert.
    is_strict: bool = False
    # Query field with the number of lines to skip.
    resume_by: str = ""


@dataclass(frozen=True)
class Event(Generic[Data]):
    """A server-sent event. `id` is None for an event without a position."""

    id: Optional[str]
    data: Data


class Silence(Exception):
    """A stream had no data for SILENCE_SECONDS."""


class Transport:
    def __init__(
        self,
        url: str,
        token: Optional[str],
        *,
        timeout: float,
        retry_seconds: float,
        ssl_context: Optional[ssl.SSLContext],
        clock: Clock,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"{url!r} is not the URL of a server, such as http://127.0.0.1:8080")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("The URL of the server has no user, query or fragment; pass the token as token=.")
        self._url = url.rstrip("/")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._timeout = timeout
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._ssl: Optional[ssl.SSLContext] = None
        if parts.scheme == "https":
            self._ssl = ssl_context if ssl_context is not None else ssl.create_default_context()
        self._headers = {"User-Agent": f"polar-rl-python/{VERSION}", "Connection": "close"}
        # Compression would only cost time on the same machine.
        self._headers["Accept-Encoding"] = "identity" if _is_loopback(self._host) else "gzip"
        if token is not None:
            if not re.fullmatch(r"[\x21-\x7e]+", token):
                raise ValueError("The token has spaces, line breaks or characters outside ASCII.")
            self._headers["Authorization"] = f"Bearer {token}"

    def json(
        self,
        route: Route,
        *,
        params: Mapping[str, Any],
        query: Mapping[str, Any],
        body: Any = NO_BODY,
        idempotency_key: Optional[str] = None,
    ) -> Any:
        """Returns the parsed answer."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())} if route.takes_key else {}
        # A long poll is silent for `wait` seconds.
        longest = self._timeout + float(query.get("wait") or (body.get("wait") if isinstance(body, dict) else 0) or 0)
        retries = self._retries(route)
        while True:
            try:
                text = b"".join(self._read(route, params, query, body, headers, longest))
                return _parse(text)
            except Silence:
                retries.wait(NoAnswer(f"{self._name(route, params)} was not answered within {longest:g} s"))
            except PolarError as error:
                retries.wait(error)

    def chunks(
        self, route: Route, *, params: Mapping[str, Any], query: Mapping[str, Any]
    ) -> Generator[bytes, None, None]:
        """Yields the bytes of a file. A cut connection raises: the caller continues with `offset`."""
        try:
            yield from self._read(route, params, query, NO_BODY, {}, self._timeout)
        except Silence:
            raise NoAnswer(f"{self._name(route, params)} sent nothing for {self._timeout:g} s") from None

    def lines(
        self, route: Route, *, params: Mapping[str, Any], query: Mapping[str, Any]
    ) -> Generator[Any, None, None]:
        """Yields one value for each line, and resumes after the last complete line."""
        skip = int(query.get(route.resume_by) or 0)
        retries = self._retries(route)
        while True:
            try:
                asked = {**query, route.resume_by: skip}
                for line in _split(self._read(route, params, asked, NO_BODY, {}, SILENCE_SECONDS)):
                    value = _parse(line)
                    skip += 1
                    yield value
                    retries.restart()
                return
            except Silence:
                retries.restart()
            except PolarError as error:
                retries.wait(error)

    def events(
        self, route: Route, *, params: Mapping[str, Any], query: Mapping[str, Any]
    ) -> Generator[Event[Any], None, None]:
        """Yields events. Never ends by itself: it connects again after the last event."""
        headers: dict[str, str] = {}
        retries = self._retries(route)
        while True:
            try:
                for event in _read_events(self._read(route, params, query, NO_BODY, headers, SILENCE_SECONDS)):
                    if event.id is not None:
                        headers = {"Last-Event-ID": event.id}
                    yield event
                    retries.restart()
                raise NoAnswer(f"{self._name(route, params)} ended")
            except Silence:
                retries.wait(NoAnswer(f"{self._name(route, params)} sent nothing for {SILENCE_SECONDS:g} s"))
            except PolarError as error:
                retries.wait(error)

    def _retries(self, route: Route) -> Retries:
        return Retries(self._retry_seconds, route.is_idempotent, self._clock)

    def _name(self, route: Route, params: Mapping[str, Any]) -> str:
        return f"{route.method} {self._url}{_to_path(route.path, params)}"

    def _read(
        self,
        route: Route,
        params: Mapping[str, Any],
        query: Mapping[str, Any],
        body: Any,
        headers: Mapping[str, str],
        timeout: float,
    ) -> Iterator[bytes]:
        """Sends the request once and yields the decoded answer. Raises unless the whole answer has arrived."""
        name = self._name(route, params)
        sent = {**self._headers, **headers}
        data: Optional[bytes] = None
        if isinstance(body, bytes):
            data = body
            sent["Content-Type"] = "application/octet-stream"
        elif body is not NO_BODY:
            data = json.dumps({} if body is None else body, allow_nan=False).encode()
            sent["Content-Type"] = "application/json"
        if route.is_strict:
            sent["X-Polar-Strict"] = "true"
        connection = self._connect(name)
        try:
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
            connection.request(route.method, self._prefix + _to_path(route.path, params) + _to_search(query), data, sent)
            response = connection.getresponse()
            # A redirect would send the token to another host.
            if 200 <= response.status < 300:
                yield from _decode(response, name)
                return
            text = b"".join(_decode(response, name))
            raise to_error(name, response.status, response.getheader("Retry-After"), text)
        except TimeoutError:
            raise Silence from None
        except (OSError, http.client.HTTPException, zlib.error) as error:
            raise NoAnswer(f"{name} got no complete answer ({_reason(error)})") from error
        finally:
            connection.close()

    def _connect(self, name: str) -> http.client.HTTPConnection:
        """Opens a connection. Each request has its own, so a client may be used by many threads."""
        connection: http.client.HTTPConnection
        timeout = min(self._timeout, _CONNECT_SECONDS)
        if self._ssl is not None:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._ssl)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            hint = "trust its authority with SSL_CERT_FILE=ca.pem, or pass ssl_context="
            raise NoAnswer(f"{name}: the certificate is not valid ({error.verify_message}); {hint}", is_final=True) from error
        except OSError as error:
            hint = "check that the server is running and that the URL is correct"
            raise NoAnswer(f"{name} got no connection ({_reason(error)}); {hint}", was_sent=False) from error
        return connection


def _decode(response: http.client.HTTPResponse, name: str) -> Iterator[bytes]:
    """Yields the body, decompressed. Raises if the connection ends before the body.

    http.client accepts a connection that ends within the headers or within a body with a length. So the body must be
    chunked, which http.client checks, or have a length.
    """
    coding = response.getheader("Content-Encoding", "identity")
    length = response.getheader("Content-Length", "")
    missing = int(length) if length.isdecimal() else 0
    if not response.chunked and not length.isdecimal():
        raise http.client.IncompleteRead(b"")
    unzip = zlib.decompressobj(wbits=31) if coding == "gzip" else None
    while chunk := response.read1(_CHUNK_BYTES):
        missing -= len(chunk)
        data = chunk if unzip is None else unzip.decompress(chunk)
        if data and coding in ("identity", "gzip"):
            yield data
    if missing > 0 or (unzip is not None and not unzip.eof):
        raise http.client.IncompleteRead(b"")
    if coding not in ("identity", "gzip"):
        raise PolarError("server.bad-answer", f"{name} was answered with the unknown encoding {coding!r}.")


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields complete lines without their line break. Raises if the last line is incomplete."""
    rest: list[bytes] = []
    for chunk in chunks:
        *lines, tail = chunk.split(b"\n")
        for line in lines:
            yield b"".join([*rest, line])
            rest = []
        rest.append(tail)
    if any(rest):
        raise NoAnswer("The stream ended within a line")


def _read_events(chunks: Iterator[bytes]) -> Iterator[Event[Any]]:
    """Parses server-sent events. Lines end with \\n, as this server writes them, or with \\r\\n."""
    data: list[bytes] = []
    event_id: Optional[str] = None
    for line in _split(chunks):
        line = line.rstrip(b"\r")
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if field == b"data":
            data.append(value)
        elif field == b"id":
            event_id = value.decode()
        elif line == b"":
            if data:
                yield Event(event_id, _parse(b"\n".join(data)))
            data, event_id = [], None


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        start = text[:200].decode("utf-8", "replace")
        raise PolarError("server.bad-answer", f"The answer of the server is not JSON: {start}") from error


def _to_path(path: str, params: Mapping[str, Any]) -> str:
    for name, value in params.items():
        text = str(value)
        # URLs resolve the segments `.` and `..` and would address another path.
        if text in ("", ".", ".."):
            raise PolarError("request.malformed", f"{name} cannot be {text!r}.", param=f"path.{name}")
        try:
            path = path.replace(f"{{{name}}}", quote(text, safe=""))
        except UnicodeEncodeError:
            raise PolarError("request.malformed", f"{name} has a lone surrogate.", param=f"path.{name}") from None
    return path


def _to_search(query: Mapping[str, Any]) -> str:
    pairs = []
    for name, value in query.items():
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if item is not None:
                pairs.append((name, ("true" if item else "false") if isinstance(item, bool) else str(item)))
    return f"?{urlencode(pairs)}" if pairs else ""


def _reason(error: Exception) -> str:
    if isinstance(error, (http.client.IncompleteRead, http.client.RemoteDisconnected)):
        return "the connection ended early"
    return str(error) or type(error).__name__


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None
