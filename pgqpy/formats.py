"""Formats of events, for programs that write, copy or decode events themselves."""

from __future__ import annotations

from pgqpy._wire.copy_format import HEADER, MAX_EVENT_BYTES, NEW_EVENT_COLUMNS, TRAILER
from pgqpy._wire.row_format import OPERATIONS, decode_urlencoded, is_json, operation_and_key
from pgqpy._wire.statements import copy_in, copy_out, padded
from pgqpy.connection import Connection
from pgqpy.consumer._readers import CopyReader
from pgqpy.errors import translate_errors

__all__ = [
    "HEADER",
    "MAX_EVENT_BYTES",
    "NEW_EVENT_COLUMNS",
    "OPERATIONS",
    "TRAILER",
    "CopyReader",
    "copy_in",
    "copy_out",
    "decode_urlencoded",
    "event_table",
    "is_json",
    "operation_and_key",
    "padded",
]


def event_table(conn: Connection, queue: str) -> str:
    """The table that receives a queue's events until the next rotation.

    Ask for it in the transaction that writes: then a rotation in between is detected. Raises
    QueueNotFound, InsertDisabled, PermissionDenied.
    """
    with translate_errors():
        row = conn.execute("select pgq.current_event_table(%s)", [queue]).fetchone()
    assert row is not None
    return str(row[0])
