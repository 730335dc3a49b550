"""The last state of each key, from many changes of a table."""

from __future__ import annotations

from typing import TypeAlias

from pgqpy_consumers.apply.change import Change
from pgqpy_consumers.apply.value import Value, text

Key: TypeAlias = tuple[str | None, ...]
Row: TypeAlias = dict[str, Value]


class Latest:
    """Collects changes, added in the order of their events; the last states are applied at once.

    ``rows`` holds the last row of each key. ``gone`` holds the key columns of deleted rows.
    After a TRUNCATE (``truncated``) the table has no rows other than ``rows``.
    """

    def __init__(self) -> None:
        self.truncated = False
        self.rows: dict[Key, Row] = {}
        self.gone: dict[Key, Row] = {}
        self.key_columns: tuple[str, ...] = ()
        self.changes = 0

    def add(self, change: Change) -> None:
        """Add the next change. For a change that does not fit, start a new `Latest`."""
        self.changes += 1
        if change.operation == "TRUNCATE":
            self.truncated = True
            self.rows.clear()
            self.gone.clear()
            return
        values = change.values
        self.key_columns = change.key_columns
        key = tuple([text(values[column]) for column in change.key_columns])
        if change.operation == "DELETE":
            self.rows.pop(key, None)
            self.gone[key] = {column: values[column] for column in change.key_columns}
        else:
            self.gone.pop(key, None)
            self.rows[key] = values

    def fits(self, change: Change) -> bool:
        """Whether a change has the same key as those before."""
        return not self.key_columns or change.key_columns in (self.key_columns, ())

    def __bool__(self) -> bool:
        return self.truncated or bool(self.rows) or bool(self.gone)
