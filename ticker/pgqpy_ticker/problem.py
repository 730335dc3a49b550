"""Problems with the remedy, and the log of failures that are retried."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass

import psycopg
from psycopg import errors

from pgqpy.retry import Backoff
from pgqpy_ticker.config import Database
from pgqpy_ticker.logs import Log


class SchemaMissing(Exception):
    """The database has no schema pgq, or one without the objects that the ticker needs."""


class SchemaPlanted(Exception):
    """The schema pgq belongs to a role, the argument, that may create schemas and is not ours."""


class Pooled(Exception):
    """A pooler between us and the server gives our transactions different sessions."""


class Unanswered(Exception):
    """The server has not answered in the time allowed; its process hangs, or is gone."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem as the log shows it. ``permanent``: it stays until a person acts."""

    message: str
    hint: str | None
    permanent: bool
    cause: str | None = None

    @classmethod
    def of(cls, error: BaseException, database: Database) -> Problem:
        """Explain why ``database`` could not be served."""
        match error:
            case (
                SchemaMissing()
                | errors.InvalidSchemaName()
                | errors.UndefinedFunction()
                | errors.UndefinedTable()
                | errors.UndefinedColumn()
            ):
                return cls(
                    "the schema pgq is missing here, or older than this ticker",
                    f"run: pgqpy migrate --dsn ... (for {database.name})",
                    permanent=True,
                    cause=one_line(error),
                )
            case SchemaPlanted():
                return cls(
                    f"the schema pgq belongs to role {error}: it is not ours, and not run",
                    f"drop it, and run: pgqpy migrate --dsn ... (for {database.name})",
                    permanent=True,
                )
            case errors.InsufficientPrivilege():
                return cls(
                    f"not allowed: {one_line(error)}",
                    "the ticker's role must be a member of pgq_admin: grant pgq_admin to ...",
                    permanent=True,
                )
            case (
                Pooled()
                # statements prepared in one session and looked for in another
                | errors.DuplicatePreparedStatement()
                | errors.InvalidSqlStatementName()
            ):
                return cls(
                    "connected through a pooler that changes the session between transactions",
                    "a ticker needs a session of its own: connect to PostgreSQL directly, "
                    "or to a pool in session mode",
                    permanent=True,
                )
            case Unanswered():
                return cls(
                    f"the server has not answered for {error} s",
                    "look for the process that hangs on the server's host",
                    permanent=False,
                )
            case psycopg.Error():
                return cls(one_line(error), error.diag.message_hint, permanent=False)
        return cls(f"{type(error).__name__}: {error}", None, permanent=False)


def one_line(error: BaseException) -> str:
    """Return the server's message, without the lines of context."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return f"{error.diag.message_primary} ({error.sqlstate})"
    return " ".join(str(error).split()) or type(error).__name__


def gist(message: str) -> str:
    """Return the common part of messages that differ only in numbers."""
    return _NUMBER.sub("0", message)


_NUMBER = re.compile(r"\d+")


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

    def pause(self, cap: float | None = None) -> float:
        """Return the seconds to wait after a failure, ``cap`` at most."""
        self._last = time.monotonic()
        self._backoff.cap = cap or self._backoff.cap
        return self._backoff.pause()

    def recovered(self, message: str, **fields: object) -> None:
        """Log the end of a failure, if there was one."""
        if self._said is not None:
            self._log.info(message, extra=fields)
            self._said = None
        if self.rested:
            self._backoff.reset()

    @property
    def rested(self) -> bool:
        """Return whether nothing has failed for as long as the longest pause."""
        return time.monotonic() - self._last > self._backoff.cap
