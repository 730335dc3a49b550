"""What a failure means to the person at the terminal: one clear line, and what to do about it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace

import click
import psycopg

import pgqpy.errors
from pgqpy.cli.target import Target
from pgqpy.error_origin import origin


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as it is printed: ``error: message`` and ``hint: hint``."""

    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """Where a command was when it failed: its database and the role that its work needs."""

    dsn: str = ""
    role: str | None = None
    elsewhere: bool = False
    """The database is not the command's own, but the one that it writes to."""

    @property
    def target(self) -> Target:
        """The database, readable and without the password."""
        return Target.from_dsn(self.dsn)

    @property
    def migrate_command(self) -> str:
        """The command that installs the schema there; a password is left to the environment."""
        return f"pgqpy migrate --dsn {shlex.quote(self.target.uri)}"


class CliError(click.ClickException):
    """A failure that the command line itself found, with the remedy beside it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def explain_usage(error: click.UsageError) -> Problem:
    """Say what is wrong with the command as typed, and where its help is."""
    path = error.ctx.command_path if error.ctx else "pgqpy"
    return Problem(error.format_message(), f"{path} --help shows how it is used")


def explain(error: BaseException, situation: Situation) -> Problem:
    """Say what happened and what to do, whatever was raised."""
    dsn = origin(error)
    if dsn is not None and dsn != situation.dsn:
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
                _hint_of_server(error) or _remedy_for_denial(error.message, situation),
            )
        case pgqpy.errors.ConnectionFailed():
            return _explain_connection(error, situation)
        case pgqpy.errors.PgqError(sqlstate="42703"):
            # All our SQL is fixed, so a column that is not there belongs to somebody else's pgq.
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
    return Problem(
        f'database "{situation.target.dbname}" has no pgq schema, or an older one '
        f"({first_line(error.message)})",
        f"install or upgrade it: {situation.migrate_command}",
    )


#: Where the server's hint names SQL functions, people at a terminal want the command.
_COMMANDS: dict[type[Exception], str] = {
    pgqpy.errors.QueueNotFound: "`pgqpy queue list` shows them, `pgqpy queue create` makes one",
    pgqpy.errors.ConsumerNotRegistered: "`pgqpy consumer list` shows who is registered where",
    pgqpy.errors.QueueInUse: "--force drops it nevertheless",
    pgqpy.errors.CaptureError: "`pgqpy capture list` shows what is captured; --replace changes how",
    pgqpy.errors.NoTicks: "keep `pgqpy ticker` running",
    pgqpy.errors.GroupNotFound: "`pgqpy group list` shows them, `pgqpy group create` makes one",
    pgqpy.errors.KeysParked: "see what is: `pgqpy group parked`; --force drops the group with it",
    pgqpy.errors.TaskQueueNotFound: "`pgqpy task queues` shows them, `pgqpy task create` makes one",
    pgqpy.errors.TaskQueueNotEmpty: "--force drops it with its tasks",
    pgqpy.errors.NoKeyWindow: "say for how long: pgqpy queue config QUEUE key_window '1 day'",
}


#: Where the server has no hint: times are read before they are sent, so it is an interval.
_INTERVAL = "intervals are written like '90 seconds', '2h' or '30 days'"
_BY_SQLSTATE = dict.fromkeys(("22007", "22008", "22015"), _INTERVAL)


def _hint(error: pgqpy.errors.PgqError) -> str | None:
    command = _COMMANDS.get(type(error))
    # The server's hints name SQL functions; those of the classes, methods.
    if command and (
        error.hint in (None, error.default_hint)
        or (error.diag is not None and _SQL.search(error.hint or ""))
    ):
        return command
    return error.hint or error.detail or _BY_SQLSTATE.get(error.sqlstate or "")


def _named(situation: Situation, before: str, after: str = "") -> str:
    """The database, if it is not the one that everybody would think of."""
    return f"{before}in {situation.target}{after}" if situation.elsewhere else ""


def _remedy_for_denial(message: str, situation: Situation) -> str:
    user = situation.target.user
    role = situation.role or "pgq_admin"
    if situation.elsewhere and role == "pgq_reader":
        # Who reads here writes there.
        role = "pgq_writer"
    ours = grant(role, user)
    # In other languages than English there is the general remedy.
    if "must be owner" in message:
        return "do it as the owner, or as a member of that role"
    if denied := _NOT_OURS.search(message):
        return (
            f"an administrator can allow it: grant the right on that {denied[1]}, or, if it is one"
            f" of pgqpy's, {ours}"
        )
    return f"an administrator can allow it: {ours}"


def _hint_of_server(error: pgqpy.errors.PgqError) -> str | None:
    return error.diag.message_hint if error.diag else None


def grant(role: str, user: str) -> str:
    """The statement that gives a user a role."""
    quoted = user.replace('"', '""')
    return f'grant {role} to "{quoted}"'


#: What is in a hint that is for those who write SQL.
_SQL = re.compile(r"\bpgq(_task)?\.|=>")

#: What mostly belongs to the person, and not to pgqpy.
_NOT_OURS = re.compile(r"permission denied for (table|sequence|view|schema(?! pgq))")

#: A server that turns a connection down gives libpq a text and no SQLSTATE, so the text is all
#: there is to choose a remedy by. A message in another language gets the general one.
_REMEDIES = (
    ("no password supplied", "set PGPASSWORD, or put the password into ~/.pgpass"),
    ("password authentication failed", "check the user and the password (PGPASSWORD, ~/.pgpass)"),
    ("database", "create it (createdb), or name another one with {dsn}"),
    ("role", "create it (createuser), or name another user with {dsn} or PGUSER"),
    ("resolve host", "check the host's name in {dsn}, PGQPY_DSN or PGHOST"),
    ("timeout", "check host and port, and that no firewall is in between"),
)
_REMEDY = "check that PostgreSQL runs there; --dsn, PGQPY_DSN, or PGHOST and PGPORT say where"
_REMEDY_ELSEWHERE = "check that PostgreSQL runs there, and that target_dsn is right"


def _explain_connection(error: pgqpy.errors.ConnectionFailed, situation: Situation) -> Problem:
    target = situation.target
    cause = error.__cause__
    text = str(cause or error.message)
    # psycopg keeps the failed attempt, which a session that was lost later does not have; a name
    # that does not resolve never gets as far as an attempt.
    attempted = isinstance(cause, psycopg.Error) and cause.pgconn is not None
    if not (attempted or isinstance(cause, psycopg.errors.ConnectionTimeout) or "resolve" in text):
        return Problem(
            f"lost the connection to {target}: {first_line(text)}",
            "the server stopped, restarted or closed the session; run the command again",
        )
    # libpq puts the address before the reason; it is said already.
    reason = first_line(text).rpartition("failed: ")[2].removeprefix("FATAL:").strip()
    general = _REMEDY_ELSEWHERE if situation.elsewhere else _REMEDY
    hint = next((hint for part, hint in _REMEDIES if part in reason), general)
    said = "target_dsn" if situation.elsewhere else "--dsn"
    return Problem(f"cannot connect to {target}: {reason}", hint.format(dsn=said))


def first_line(text: str) -> str:
    """The first line of a text that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
