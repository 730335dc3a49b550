"""Why a database cannot be served, with the remedy."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import errors

from pgqpy_ticker.config import Database
from pgqpy_ticker.logs import one_line


class SchemaPlanted(Exception):
    """The schema pgq belongs to a role, the argument, that may create schemas and is not ours."""


class NotAllowed(Exception):
    """The role, the argument as SQL, may not tick."""


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
                errors.InvalidSchemaName()
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
            case NotAllowed():
                return cls(
                    f"not allowed: role {error} is no member of pgq_admin",
                    f"grant pgq_admin to {error}",
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
