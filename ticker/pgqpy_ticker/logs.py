"""The daemon's log, and failures in it."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import MutableMapping
from typing import IO, Any

import psycopg

from pgqpy import log
from pgqpy.retry import Backoff

LOGGER = "pgqpy.ticker"

_NUMBER = re.compile(r"\d+")


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger for one database; ``extra`` adds fields to one line."""

    def __init__(self, **fields: object) -> None:
        super().__init__(logging.getLogger(LOGGER), fields)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def setup(level: str, form: str, stream: IO[str] | None = None) -> None:
    """Send this package's lines to ``stream``, by default stderr.

    ``form`` is auto, text, logfmt or json.
    """
    log.setup(LOGGER, level, form, stream)


def one_line(error: BaseException) -> str:
    """Return the server's message, without the lines of context."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return f"{error.diag.message_primary} ({error.sqlstate})"
    return " ".join(str(error).split()) or type(error).__name__


def gist(message: str) -> str:
    """Return the common part of messages that differ only in numbers."""
    return _NUMBER.sub("0", message)


class FailureLog:
    """Failures of one thing that is retried.

    Logs a failure once, and logs its end: a database away for hours is two lines. Each pause is
    longer than the one before. Failures may return at once, so the pauses start again only after a
    time without failure that is as long as the longest: a thing that works and fails by turns is
    not retried quickly, and does not flood the log.
    """

    def __init__(self, log: Log, first: float, cap: float) -> None:
        self._log = log
        self._backoff = Backoff(first, cap)
        self._said: str | None = None
        self._last = -math.inf

    def failed(self, message: str, **fields: object) -> None:
        """Log a warning, unless it repeats the last one."""
        if self._said is None or gist(message) != gist(self._said):
            self._log.warning(message, extra=fields)
            self._said = message

    def pause(self, cap: float | None = None, error: Exception | None = None) -> float:
        """Return the seconds to wait after a failure, ``cap`` at most; see `Backoff.pause`."""
        self._last = time.monotonic()
        self._backoff.cap = cap or self._backoff.cap
        return self._backoff.pause(error)

    def recovered(self, message: str) -> None:
        """Log the end of a failure, if there was one."""
        if self._said is not None:
            self._log.info(message)
            self._said = None
        if self.rested:
            self._backoff.reset()

    @property
    def rested(self) -> bool:
        """Return whether nothing has failed for as long as the longest pause."""
        return time.monotonic() - self._last > self._backoff.cap
