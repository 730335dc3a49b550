"""COPY TO STDOUT at libpq's level, as generators that `psycopg.Connection.wait` runs.

psycopg's own reader goes through its wait loop for every row. These take all rows that have
arrived at once; and since they only yield what they wait for, sync and asyncio share them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from psycopg import errors
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from pgqpy._wire.copy_format import HEADER, TRAILER

T = TypeVar("T")
#: A generator that psycopg runs: it yields what to wait for, and is sent what is ready.
Steps = Generator[Wait, Ready | int, T]

#: The size (bytes) or number of rows at which they are handed over, whichever is first. A single
#: larger row comes alone.
BLOCK_BYTES = 256 * 1024
BLOCK_ROWS = 1000

#: Without any row the header comes with it. A row of events is longer.
_LONGEST_TRAILER = len(HEADER) + len(TRAILER)


def start(pgconn: PGconn, query: bytes) -> Steps[None]:
    """Send a COPY TO STDOUT and wait until its data begins.

    Raises psycopg.Error if the server refuses it.
    """
    pgconn.send_query(query)
    while pgconn.flush():
        yield Wait.W
    result = yield from _result(pgconn)
    if result is None or result.status != ExecStatus.COPY_OUT:
        yield from _finish(pgconn, result)


def read(pgconn: PGconn) -> Steps[list[bytes]]:
    """Return the whole messages that have arrived, at least one; none at all is the end.

    Raises psycopg.Error if the COPY failed on the way. The connection is idle after the end
    and after an error.
    """
    messages: list[bytes] = []
    size = 0
    while len(messages) < BLOCK_ROWS and size < BLOCK_BYTES:
        length, data = pgconn.get_copy_data(1)
        if length > 0:
            messages.append(bytes(data))
            size += length
            if length <= _LONGEST_TRAILER:
                # libpq reports the end only once: leave that to the next call.
                break
        elif length == 0:
            if messages:
                break
            yield Wait.R
            pgconn.consume_input()
        else:
            yield from _finish(pgconn, (yield from _result(pgconn)))
            break
    return messages


def _result(pgconn: PGconn) -> Steps[PGresult | None]:
    while pgconn.is_busy():
        yield Wait.R
        pgconn.consume_input()
    return pgconn.get_result()


def _finish(pgconn: PGconn, result: PGresult | None) -> Steps[None]:
    """Take all results, so that the connection is idle; then raise the first error."""
    error: PGresult | None = None
    while result is not None:
        if error is None and result.status == ExecStatus.FATAL_ERROR:
            error = result
        result = yield from _result(pgconn)
    if error is not None:
        raise errors.error_from_result(error)
