"""Failures as a person at the terminal sees them: one clear line, and a remedy."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import quote, urlencode

import click
import psycopg

import pgqpy.dsn
import pgqpy.errors
from pgqpy.errors import origin


class Problem(NamedTuple):
    """An error in its printed form: ``error: message`` and ``hint: hint``."""

    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Host, port, database and user, resolved like libpq does."""

    host: str
    port: str
    dbname: str
    user: str

    @classmethod
    def from_dsn(cls, dsn: str) -> Target:
        """Read a connection string, with libpq's environment and defaults behind it.

        Raises pgqpy.InvalidDsn when it cannot be read.
        """
        defaults = {
            option.keyword.decode(): option.val.decode()
            for option in psycopg.pq.Conninfo.get_defaults()
            if option.val
        }
        settings = defaults | pgqpy.dsn.parse(dsn)
        user = settings.get("user", "")
        return cls(
            host=settings.get("host") or settings.get("hostaddr") or "localhost",
            port=settings.get("port", "5432"),
            dbname=settings.get("dbname") or user,
            user=user,
        )

    @property
    def uri(self) -> str:
        """The target as a connection string that can be shown and typed again."""
        user, dbname = quote(self.user, safe=""), quote(self.dbname, safe="")
        if self.host.startswith(("/", "@")):
            where = urlencode({"host": self.host, "port": self.port}, safe="/")
            return f"postgresql://{user}@/{dbname}?{where}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"postgresql://{user}@{host}:{self.port}/{dbname}"

    def __str__(self) -> str:
        return f'{self.host}:{self.port}, database "{self.dbname}", user "{self.user}"'


@dataclass(frozen=True, slots=True)
class Situation:
    """The database of a command that failed, and the role that the command needs."""

    dsn: str = ""
    role: str | None = None
    elsewhere: bool = False
    """Whether the database is not the command's own, but its target."""

    @property
    def target(self) -> Target:
        """The database, readable and without the password."""
        return Target.from_dsn(self.dsn)


class CliError(click.ClickException):
    """A failure that the command line itself found, with its remedy."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def explain_usage(error: click.UsageError) -> Problem:
    path = error.ctx.command_path if error.ctx else "pgqpy"
    return Problem(error.format_message(), f"{path} --help shows how it is used")


def explain(error: BaseException, situation: Situation) -> Problem:
    """Explain any error, and its remedy."""
    dsn = origin(error)
    if dsn not in (None, situation.dsn) and not isinstance(error, pgqpy.errors.InvalidDsn):
        situation = replace(situation, dsn=dsn, elsewhere=True)
    problem = _explain(error, situation)
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return Problem(problem.message + notes, problem.hint)


def _explain(error: BaseException, situation: Situation) -> Problem:
    # SQLAlchemy wraps the driver's errors in a text that repeats the whole statement.
    original = getattr(error, "orig", None)
    if isinstance(original, psycopg.Error):
        error = original
    if isinstance(error, psycopg.Error):
        ours = pgqpy.errors.from_psycopg(error)
        ours.__cause__ = error
        error = ours
    match error:
        case pgqpy.errors.SchemaMissing():
            return _schema_problem(error, situation)
        case pgqpy.errors.PermissionDenied():
            user = situation.target.user
            return Problem(
                f'{first_line(error.message)} (for user "{user}"{_named(situation, ", ")})',
                (error.diag.message_hint if error.diag else None)
                or _remedy_for_denial(error.message, situation),
            )
        case pgqpy.errors.ConnectionFailed():
            return _explain_connection(error, situation)
        case pgqpy.errors.PgqError(sqlstate="42703"):
            # All SQL here is fixed, so a missing column means that the schema pgq is another
            # product's.
            return _schema_problem(error, situation)
        case pgqpy.errors.PgqError():
            said = first_line(error.message)
            where = "" if "target" in said else _named(situation, " (", ")")
            return Problem(said + where, _hint(error))
        case click.ClickException():
            return Problem(error.format_message(), getattr(error, "hint", None))
    if type(error).__module__.startswith("pgqpy"):
        return Problem(
            first_line(getattr(error, "message", str(error))), getattr(error, "hint", None)
        )
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename else ""
        return Problem(f"{named}{error.strerror or error}")
    return Problem(
        f"unexpected {type(error).__name__}: {first_line(str(error))}",
        "this is a defect; run it again as `pgqpy --debug ...` and report what it prints",
    )


def _schema_problem(error: pgqpy.errors.PgqError, situation: Situation) -> Problem:
    schema, part = ("pgq_node", " --node") if "pgq_node" in error.message else ("pgq", "")
    return Problem(
        f'database "{situation.target.dbname}" has no {schema} schema, or an older one '
        f"({first_line(error.message)})",
        # The password is left to the environment.
        f"install or upgrade it: pgqpy migrate{part} --dsn {shlex.quote(situation.target.uri)}",
    )


#: The server's hints name SQL functions; a person at a terminal needs the command.
_COMMANDS: dict[type[Exception], str] = {
    pgqpy.errors.QueueNotFound: "`pgqpy queue list` shows them, `pgqpy queue create` makes one",
    pgqpy.errors.ConsumerNotRegistered: "`pgqpy consumer list` shows all registrations",
    pgqpy.errors.InsertDisabled: "if the queue is a copy of another database's, insert there;"
    " else `pgqpy queue config QUEUE disable_insert false` opens it",
    pgqpy.errors.QueueInUse: "--force drops it nevertheless",
    pgqpy.errors.CaptureError: "`pgqpy capture list` shows what is captured; --replace changes how",
    pgqpy.errors.ContractNotFound: "`pgqpy contract list` shows what there is",
    pgqpy.errors.ContractViolation: "mend the payload; `pgqpy contract show` prints the schema",
    pgqpy.errors.NoTicks: "keep `pgqpy ticker` running",
    pgqpy.errors.GroupNotFound: "`pgqpy group list` shows them, `pgqpy group create` makes one",
    pgqpy.errors.KeysParked: "see what is: `pgqpy group parked`; --force drops the group with it",
    pgqpy.errors.TaskQueueNotFound: "`pgqpy task queues` shows them, `pgqpy task create` makes one",
    pgqpy.errors.TaskQueueNotEmpty: "--force drops it with its tasks",
    pgqpy.errors.NoKeyWindow: "say for how long: pgqpy queue config QUEUE key_window '1 day'",
}


#: The server has no hint here: times are checked before they are sent, so it is an interval.
_INTERVAL = "intervals are written like '90 seconds', '2h' or '30 days'"
_BY_SQLSTATE = dict.fromkeys(("22007", "22008", "22015"), _INTERVAL)


def _hint(error: pgqpy.errors.PgqError) -> str | None:
    command = _COMMANDS.get(type(error))
    # The server's hints name SQL functions; those of the classes name methods.
    if command and (
        error.hint in (None, error.default_hint)
        or (error.diag is not None and _SQL.search(error.hint or ""))
    ):
        return command
    return error.hint or error.detail or _BY_SQLSTATE.get(error.sqlstate or "")


def _named(situation: Situation, before: str, after: str = "") -> str:
    """Name the database if it is not the obvious one."""
    return f"{before}in {situation.target}{after}" if situation.elsewhere else ""


def _remedy_for_denial(message: str, situation: Situation) -> str:
    role = situation.role or "pgq_admin"
    if situation.elsewhere and role == "pgq_reader":
        # A reader of the queue writes to the other database.
        role = "pgq_writer"
    user = situation.target.user.replace('"', '""')
    ours = f'grant {role} to "{user}"'
    # Messages in other languages get the general remedy.
    if "must be owner" in message:
        return "do it as the owner, or as a member of that role"
    if denied := _NOT_OURS.search(message):
        return (
            f"an administrator can allow it: grant the right on that {denied[1]}; if it is one of"
            f" pgqpy's, {ours}, or, for a restricted queue, `pgqpy queue grant`"
        )
    return f"an administrator can allow it: {ours}"


#: The mark of a hint for authors of SQL.
_SQL = re.compile(r"\bpgq(_task)?\.|=>")

#: Objects that mostly belong to the application, not to pgqpy.
_NOT_OURS = re.compile(r"permission denied for (table|sequence|view|schema(?! pgq))")

#: A server that refuses a connection gives libpq a text and no SQLSTATE, so the remedy depends on
#: the text. A message in another language gets the general remedy.
_REMEDIES = (
    ("no password supplied", "set PGPASSWORD, or put the password into ~/.pgpass"),
    ("password authentication failed", "check the user and the password (PGPASSWORD, ~/.pgpass)"),
    ("database", "create it (createdb), or name another one with {dsn}"),
    ("role", "create it (createuser), or name another user with {dsn} or PGUSER"),
    ("resolve host", "check the host's name in {dsn}, PGQPY_DSN or PGHOST"),
    ("timeout", "check host and port, and that no firewall is in between"),
)
_REMEDY = "check that PostgreSQL runs there; --dsn, PGQPY_DSN, or PGHOST and PGPORT say where"
_ELSEWHERE = "target_dsn (of a shard: dsn; of a node: --provider, nodes, its location)"
_REMEDY_ELSEWHERE = f"check that PostgreSQL runs there, and that {_ELSEWHERE} is right"


def _explain_connection(error: pgqpy.errors.ConnectionFailed, situation: Situation) -> Problem:
    target = situation.target
    cause = error.__cause__
    text = str(cause or error.message)
    if cause is None and error.detail:
        return Problem(f"{error.message} ({first_line(error.detail)})", error.hint)
    # psycopg keeps the failed attempt; a session that was lost later has none. Nor has a host name
    # that does not resolve.
    attempted = isinstance(cause, psycopg.Error) and cause.pgconn is not None
    if not (attempted or isinstance(cause, psycopg.errors.ConnectionTimeout) or "resolve" in text):
        return Problem(
            f"lost the connection to {target}: {first_line(text)}",
            "the server stopped, restarted or closed the session; run the command again",
        )
    # libpq puts the address before the reason; it is in the message already.
    reason = first_line(text).rpartition("failed: ")[2].removeprefix("FATAL:").strip()
    general = _REMEDY_ELSEWHERE if situation.elsewhere else _REMEDY
    hint = next((hint for part, hint in _REMEDIES if part in reason), general)
    said = _ELSEWHERE if situation.elsewhere else "--dsn"
    return Problem(f"cannot connect to {target}: {reason}", hint.format(dsn=said))


def first_line(text: str) -> str:
    """Return the first line of a text that is not empty."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
