"""The options of pgq.capture_table, as a value."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from pgqpy.errors import InvalidParameter

OPERATIONS = ("insert", "update", "delete", "truncate")

_LISTS = ("operations", "columns", "exclude", "key")


@dataclass(frozen=True, slots=True)
class Capture:
    """Captures a table into a queue; the options are pgq.capture_table's (docs/capture.md).

    Raises InvalidParameter for options that are invalid for any table.
    """

    queue: str
    operations: Collection[str] = OPERATIONS
    columns: Collection[str] | None = None
    exclude: Collection[str] | None = None
    key: Collection[str] | None = None
    old_values: str = "none"
    condition: str | None = None
    format: str = "row_json"
    key_changes: str = "split"

    def __post_init__(self) -> None:
        if not self.queue:
            raise InvalidParameter("a capture needs the name of a queue")
        for name in _LISTS:
            value = getattr(self, name)
            if isinstance(value, str):
                raise InvalidParameter(
                    f"{name} of a capture is a list of names, not {value!r}",
                    hint=f"Write {name}=[{value!r}].",
                )
            if value is not None:
                object.__setattr__(self, name, tuple(value))
        unknown = set(self.operations) - set(OPERATIONS)
        if unknown or not self.operations:
            raise InvalidParameter(
                f"operations of a capture cannot be {list(self.operations)}",
                hint=f"They are some of {', '.join(OPERATIONS)}.",
            )
        # In one order: the same operations are equal, however they are written.
        given = tuple(name for name in OPERATIONS if name in self.operations)
        object.__setattr__(self, "operations", given)

    def options(self) -> dict[str, Any]:
        """Return the options that are not the defaults; lists are lists."""
        chosen = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "queue" and value != field.default:
                chosen[field.name] = list(value) if isinstance(value, tuple) else value
        return chosen

    def column_names(self) -> set[str]:
        """Return all columns that the options name."""
        return {*(self.columns or ()), *(self.exclude or ()), *(self.key or ())}
