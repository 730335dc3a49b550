# WARNING: generated from pgqpy/sqlalchemy/worker_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Workers for the rows of a mapped class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pgqpy.connection import Connection
from pgqpy.sqlalchemy._session import Session, joined_session
from pgqpy.sqlalchemy.task_columns import key_of, table_and_key
from pgqpy.tasks import TableWorker


class ModelWorker(TableWorker):
    """A `pgqpy.tasks.TableWorker` for handlers that get a session and the mapped object.

    Give a handler, or override `process_object`::

        def send(session, mail):
            smtp(mail.to)
            mail.sent_by = "me"

        ModelWorker(dsn, Mail, send).run()

    The session is in the transaction that records the row's outcome: ``session.commit()`` commits
    with it, ``session.rollback()`` undoes the session's work so far. Changes are flushed when the
    handler returns. `pgqpy.sqlalchemy.libpq_dsn` makes a DSN of an engine's URL.
    """

    _way = "process_object"

    model: type[Any] | None = None
    """The class, which has the mixin `TaskColumns`, or the columns."""

    def __init__(
        self,
        dsn: str | None = None,
        model: type[Any] | None = None,
        handler: Callable[[Session, Any], Any] | None = None,
        **settings: Any,
    ) -> None:
        """See `pgqpy.tasks.TableWorker` for the other arguments. Raises InvalidConsumer."""
        self.model = model or self.model
        table, self._key = table_and_key(type(self), self.model)
        columns = getattr(self.model, "__task_columns__", self.columns)
        settings = {"columns": columns, "table": table} | settings
        super().__init__(dsn, **settings)
        # Its arguments differ.
        self.handler = handler

    def process_object(self, session: Session, obj: Any) -> Any:
        """Work on an object; the default calls the handler."""
        if self.handler is None:
            raise NotImplementedError
        return self.handler(session, obj)

    def process_row(self, conn: Connection, row: dict[str, Any]) -> Any:
        """Load the object, and call `process_object`."""
        assert self.model is not None
        with joined_session(conn) as session:
            key = key_of(row, self._key, session.get_bind().dialect)
            return self.process_object(session, session.get_one(self.model, key))
