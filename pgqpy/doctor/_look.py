"""What a check is, and what it looks at: one connection, read-only, for a limited time."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
from psycopg import errors

from pgqpy.connection import Connection
from pgqpy.doctor._finding import Finding, Verdict, note, warning
from pgqpy.doctor._readings import may_read, read
from pgqpy.doctor._samples import Samples
from pgqpy.doctor._status import Judgement, judge

#: The seconds that all checks may take together, on a page and alone, and one statement.
ON_PAGE, BUDGET = 2.5, 10.0
STATEMENT = 1.0


@dataclass(slots=True)
class Look:
    """A database as checks see it."""

    conn: Connection
    patience: timedelta
    samples: Samples | None = None
    pooled: bool = False
    #: It is a part of its caller's transaction, which is read-only.
    within: bool = False
    _began: float = field(default_factory=time.monotonic)
    _judgement: Judgement | psycopg.Error | None = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a read-only transaction whose statements end soon; also behind a pooler."""
        limit = round(1000 * min(STATEMENT, self.left))
        if limit <= 0:
            raise errors.QueryCanceled("the other checks took all of the time")
        with self.conn.transaction():
            if not self.within:
                self.conn.execute("set transaction isolation level read committed, read only")
            self.conn.execute(
                "select pg_catalog.set_config('statement_timeout', %s, true),"
                " pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)",
                [str(limit)],
            )
            yield

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self._began + (ON_PAGE if self.within else BUDGET) - time.monotonic()

    def rows(self, statement: LiteralString, *arguments: Any, **named: Any) -> list[Any]:
        """Return the rows of a statement."""
        return self.conn.execute(statement, named or arguments or None).fetchall()

    def value(self, statement: LiteralString, *arguments: Any) -> Any:
        """Return the first column of the only row."""
        return self.rows(statement, *arguments)[0][0]

    @property
    def judgement(self) -> Judgement:
        """The state of queues and consumers; read once, also if that fails."""
        if self._judgement is None:
            try:
                self._judgement = judge(read(self.conn, None, self.patience), self.patience)
            except psycopg.Error as error:
                self._judgement = error
        if isinstance(self._judgement, psycopg.Error):
            raise self._judgement
        return self._judgement


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its name, which is also its heading in docs/troubleshooting.md, and its function.

    ``needs`` are the relations and functions that a role must be allowed to read.
    """

    name: str
    look: Callable[[Look], Iterable[Finding]]
    needs: tuple[str, ...] = ()
    #: It opens transactions itself.
    commits: bool = False

    @property
    def about(self) -> str:
        """What it looks at, in a sentence."""
        return inspect.getdoc(self.look) or ""

    def findings(self, look: Look) -> list[Finding]:
        """Return what is not ok, the worst first; otherwise one finding that all is."""
        found = sorted(self._findings(look), key=lambda each: -each.verdict.rank)
        wrong = [each for each in found if each.verdict is not Verdict.OK]
        return [replace(each, check=self.name) for each in wrong or found[:1]]

    def _findings(self, look: Look) -> list[Finding]:
        try:
            if self.commits and look.within:
                return [note("not tried here: it takes a session of its own", "pgqpy doctor")]
            if self.commits:
                return list(self.look(look))
            with look.transaction():
                if self.needs and not may_read(look.conn, *self.needs):
                    role = look.value("select quote_ident(current_user)")
                    return [note(f"role {role} may not look", f"grant pgq_reader to {role}")]
                return list(self.look(look))
        except errors.QueryCanceled as error:
            by_server = error.diag.message_primary is not None
            told = "the server did not answer in time" if by_server else f"not looked at: {error}"
            return [warning(told, "look again when it has less to do")]
        except errors.InsufficientPrivilege as error:
            return [note(f"may not look: {error.diag.message_primary}")]
        except psycopg.Error as error:
            if look.conn.closed:
                raise
            reason = error.diag.message_primary or str(error)
            return [note(f"could not look: {reason}", "pgqpy migrate, if the schema is older")]


def check(
    name: str, *needs: str, commits: bool = False
) -> Callable[[Callable[[Look], Iterable[Finding]]], Check]:
    """Make a function a check."""
    return lambda look: Check(name, look, needs, commits)
