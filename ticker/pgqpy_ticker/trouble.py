"""What went wrong, in words that name the remedy."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass

import psycopg
from psycopg import errors

from pgqpy.backoff import Backoff
from pgqpy_ticker.config import Database
from pgqpy_ticker.logs import Log


class SchemaMissing(Exception):
    """The database has no schema pgq, or one without what the ticker needs."""


class SchemaPlanted(Exception):
    """The schema pgq belongs to a role, the argument, that may create schemas and is not ours."""


class Pooled(Exception):
    """Something between us and the server hands our transactions to different sessions."""


class Unanswered(Exception):
    """The server has not answered for longer than it may take; its process hangs, or is gone."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem as the log shows it. ``settled``: it stays until somebody acts."""

    message: str
    hint: str | None
    settled: bool
    cause: str | None = None

    @classmethod
    def of(cls, error: BaseException, database: Database) -> Trouble:
        """Explain what kept us from serving ``database``."""
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
                    settled=True,
                    cause=one_line(error),
                )
            case SchemaPlanted():
                return cls(
                    f"the schema pgq belongs to role {error}: it is not ours, and not run",
                    f"drop it, and run: pgqpy migrate --dsn ... (for {database.name})",
                    settled=True,
                )
            case errors.InsufficientPrivilege():
                return cls(
                    f"not allowed: {one_line(error)}",
                    "the ticker's role must be a member of pgq_admin: grant pgq_admin to ...",
                    settled=True,
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
                    settled=True,
                )
            case Unanswered():
                return cls(
                    f"the server has not answered for {error} s",
                    "look for the process that hangs on the server's host",
                    settled=False,
                )
            case psycopg.Error():
                return cls(one_line(error), error.diag.message_hint, settled=False)
        return cls(f"{type(error).__name__}: {error}", None, settled=False)


def one_line(error: BaseException) -> str:
    """The server's own words, without the lines of context."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return f"{error.diag.message_primary} ({error.sqlstate})"
    return " ".join(str(error).split()) or type(error).__name__


def gist(message: str) -> str:
    """What two messages have in common that say the same: numbers may be the present ones."""
    return _NUMBER.sub("0", message)


_NUMBER = re.compile(r"\d+")


class Setbacks:
    """Failures of one thing that is tried again and again.

    Says a thing once, and says when it is over: a database away for hours is two lines. Each pause
    is longer than the one before. What is over may come back at once, so pauses begin anew only
    after a time without failure that is as long as the longest: what works and fails by turns is
    not tried in a hurry, and does not flood the log.
    """

    def __init__(self, log: Log, first: float, cap: float) -> None:
        self._log = log
        self._backoff = Backoff(first, cap)
        self._said: str | None = None
        self._last = -math.inf

    def complain(self, message: str, **fields: object) -> None:
        """Log a warning, unless it is what was said last."""
        if self._said is None or gist(message) != gist(self._said):
            self._log.warning(message, extra=fields)
            self._said = message

    def pause(self, cap: float | None = None) -> float:
        """It failed: the seconds to wait now, ``cap`` at most."""
        self._last = time.monotonic()
        self._backoff.cap = cap or self._backoff.cap
        return self._backoff.pause()

    def over(self, message: str, **fields: object) -> None:
        """Log that it is well again, if it was not."""
        if self._said is not None:
            self._log.info(message, extra=fields)
            self._said = None
        if self.rested:
            self._backoff.reset()

    @property
    def rested(self) -> bool:
        """Whether nothing has failed for as long as the longest pause."""
        return time.monotonic() - self._last > self._backoff.cap
