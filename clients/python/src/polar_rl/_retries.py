"""Delays between the tries of one request."""

from __future__ import annotations

import logging
import random
import time
from typing import Callable

from .errors import NoAnswer, PolarError

_BASE_SECONDS = 0.2
_MAX_SECONDS = 5.0

_logger = logging.getLogger("polar_rl")


class Clock:
    """Time for retries; tests replace it."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    sleep: Callable[[float], None] = staticmethod(time.sleep)
    random: Callable[[], float] = staticmethod(random.random)


class Retries:
    """Exponential delays with jitter, at least the server's Retry-After, until the time limit has passed."""

    def __init__(self, limit_seconds: float, is_idempotent: bool, clock: Clock) -> None:
        self._limit = limit_seconds
        self._is_idempotent = is_idempotent
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Restarts the time limit: a stream has made progress."""
        self._failures = 0
        self._end = self._clock.now() + self._limit

    def wait(self, error: PolarError) -> None:
        """Sleeps before the next try, or raises the error if a retry is not safe, not useful or too late."""
        if not self._may_retry(error):
            raise error
        self._failures += 1
        full = min(_MAX_SECONDS, _BASE_SECONDS * 2 ** (self._failures - 1))
        delay = max(full / 2 + self._clock.random() * full / 2, error.retry_after_seconds or 0)
        if self._clock.now() + delay > self._end:
            raise error
        _logger.warning("%s; next try in %.1f s", error, delay)
        self._clock.sleep(delay)

    def _may_retry(self, error: PolarError) -> bool:
        if isinstance(error, NoAnswer):
            return not error.is_final and (self._is_idempotent or not error.was_sent)
        if error.status == 429:
            return error.retry_after_seconds is not None
        return self._is_idempotent and error.retryable and error.status >= 502
