"""The error of every failed call, with the failure codes of the server."""

from __future__ import annotations

import json
from typing import Any, Optional

from ._failures import FAILURES, Blame

# Failure code of a status whose body has no known code.
_CODES = {
    400: "request.malformed",
    401: "request.unauthorized",
    403: "request.forbidden",
    404: "request.not-found",
    405: "request.wrong-method",
    409: "request.conflict",
    413: "request.too-large",
    415: "request.unsupported-encoding",
    422: "request.malformed",
    429: "request.over-quota",
}

# An error page of a proxy may have any length.
_MAX_TEXT = 500


class PolarError(Exception):
    """A failed call. `code` is stable; docs/failures.md lists all codes."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 0,
        param: Optional[str] = None,
        retry_after_seconds: Optional[float] = None,
        problems: Optional[list[dict[str, Any]]] = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        # HTTP status; 0 without a complete answer.
        self.status = status
        # The invalid field, such as `body.agent.harness`; None if unknown.
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        # All problems of a refused request (422), each with `loc`, `msg` and `type`.
        self.problems = problems or []

    @property
    def blame(self) -> Blame:
        return FAILURES[self.code][0]

    @property
    def retryable(self) -> bool:
        """Whether a retry without changes may succeed."""
        return FAILURES[self.code][1]

    @property
    def boundary(self) -> str:
        """The component boundary at which the failure was detected, such as `request`."""
        return self.code.split(".", 1)[0]

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


class NoAnswer(PolarError):
    """No complete answer. Internal: callers see `server.unreachable`."""

    def __init__(self, message: str, *, was_sent: bool = True, is_final: bool = False) -> None:
        super().__init__("server.unreachable", message)
        # False: the request did not reach the server, so any request may be repeated.
        self.was_sent = was_sent
        # A retry cannot help, for example because the certificate is not trusted.
        self.is_final = is_final


def to_error(request: str, status: int, retry_after: Optional[str], body: bytes) -> PolarError:
    """Reads an error body. Accepts almost any body: a proxy, or a newer server, may have written it."""
    text = body.decode("utf-8", "replace")
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    parsed = parsed if isinstance(parsed, dict) else {}
    error = parsed.get("error")
    error = error if isinstance(error, dict) else {}
    detail = parsed.get("detail")
    code = error.get("code")
    if not isinstance(code, str) or code not in FAILURES:
        code = _CODES.get(status, "server.failed" if status >= 500 else "request.malformed")
    message = error.get("message")
    if not isinstance(message, str):
        reason = detail if isinstance(detail, str) else text[:_MAX_TEXT]
        message = f"{request} failed with {status}: {reason}"
    param = error.get("param")
    return PolarError(
        code,
        message,
        status=status,
        param=param if isinstance(param, str) else None,
        # Dates are ignored: the clocks of two machines may differ by more than the delay.
        retry_after_seconds=float(retry_after) if retry_after is not None and retry_after.isdecimal() else None,
        problems=[problem for problem in detail if isinstance(problem, dict)] if isinstance(detail, list) else None,
    )
