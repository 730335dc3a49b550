"""Workers for the rows of a mapped class."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pgqpy.connection_async import AsyncConnection
from pgqpy.sqlalchemy._session import AsyncSession, async_joined_session
from pgqpy.sqlalchemy.task_columns import key_of, table_and_key
from pgqpy.tasks import AsyncTableWorker


class AsyncModelWorker(AsyncTableWorker):
    """A `pgqpy.tasks.AsyncTableWorker` for handlers that get a session and the mapped object.

    Give a handler, or override `process_object`::

        async def send(session, mail):
            await smtp(mail.to)
            mail.sent_by = "me"

        await AsyncModelWorker(dsn, Mail, send).run()

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
        handler: Callable[[AsyncSession, Any], Awaitable[Any]] | None = None,
        **settings: Any,
    ) -> None:
        """See `pgqpy.tasks.AsyncTableWorker` for the other arguments. Raises InvalidConsumer."""
        self.model = model or self.model
        table, self._key = table_and_key(type(self), self.model)
        columns = getattr(self.model, "__task_columns__", self.columns)
        settings = {"columns": columns, "table": table} | settings
        super().__init__(dsn, **settings)
        # Its arguments differ.
        self.handler = handler

    async def process_object(self, session: AsyncSession, obj: Any) -> Any:
        """Work on an object; the default calls the handler."""
        if self.handler is None:
            raise NotImplementedError
        return await self.handler(session, obj)

    async def process_row(self, conn: AsyncConnection, row: dict[str, Any]) -> Any:
        """Load the object, and call `process_object`."""
        assert self.model is not None
        async with async_joined_session(conn) as session:
            key = key_of(row, self._key, session.get_bind().dialect)
            return await self.process_object(session, await session.get_one(self.model, key))
