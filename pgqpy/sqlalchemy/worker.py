# WARNING: generated from pgqpy/sqlalchemy/worker_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Workers for the rows of a mapped class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.orm import Mapper

from pgqpy.connection import Connection
from pgqpy.errors import InvalidConsumer
from pgqpy.sqlalchemy._session import Session, joined_session
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
        mapper = sa.inspect(self.model, raiseerr=False)
        if not isinstance(mapper, Mapper) or not isinstance(mapper.local_table, sa.Table):
            raise InvalidConsumer(
                f"{type(self).__name__}: model is {self.model!r}; it must be a class that is"
                " mapped to a table"
            )
        table = mapper.local_table
        names = (table.name,) if table.schema is None else (table.schema, table.name)
        settings = {
            "columns": getattr(self.model, "__task_columns__", self.columns),
            "table": sql.Identifier(*names).as_string(None),
        } | settings
        super().__init__(dsn, **settings)
        # Its arguments differ.
        self.handler = handler
        self._key = mapper.primary_key

    def process_object(self, session: Session, obj: Any) -> Any:
        """Work on an object; the default calls the handler."""
        if self.handler is None:
            raise NotImplementedError
        return self.handler(session, obj)

    def process_row(self, conn: Connection, row: dict[str, Any]) -> Any:
        """Load the object, and call `process_object`."""
        assert self.model is not None
        with joined_session(conn) as session:
            dialect = session.get_bind().dialect
            key = []
            for column in self._key:
                python = column.type.dialect_impl(dialect).result_processor(dialect, None)
                value = row[column.name]
                key.append(value if python is None else python(value))
            return self.process_object(session, session.get_one(self.model, key))
