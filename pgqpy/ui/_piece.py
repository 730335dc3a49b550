"""Pieces of large values: what the server sends of a payload, which may have hundreds of MB."""

from __future__ import annotations

#: Characters that are read of a value, in a list and on the page of a task.
CUT, LONGEST = 500, 200_000
#: A value with more bytes, as it is stored, is not read: even to cut it takes the server long.
IN_LIST = {"cut": CUT, "largest": 100_000}
ON_PAGE = {"cut": LONGEST + 1, "largest": 10_000_000}


def piece(column: str) -> str:
    """Return the expression for a piece of a column, as text; its parameters are those above."""
    return f"""
case when pg_column_size({column}) > %(largest)s
     then format('(%%s, not read)', pg_size_pretty(pg_column_size({column})::bigint))
     else left({column}::text, %(cut)s) end as {column}"""


def header(name: str) -> str:
    """Return the expression for a header of a task."""
    return f"""
case when pg_column_size(headers) <= %(largest)s then left(headers ->> '{name}', 200) end as {name}
"""
