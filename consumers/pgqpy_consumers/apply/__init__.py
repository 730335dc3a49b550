"""Changes of captured tables applied to tables elsewhere, in bulk.

Usage for a batch::

    latest = Latest()
    for event in batch:
        latest.add(change_of(event))            # the last state of each key is what counts
    table = describe(target, "public", "flight")
    merge(target, table, latest)                # COPY, one INSERT..ON CONFLICT, one DELETE

`change_of` reads what jsontriga, logutriga and `pgq.capture_table` write. Values stay the text that
PostgreSQL wrote, so no type loses anything on its way: numbers are never floats here. Only
``row_json`` nests arrays, composites and JSON; say ``nested=True`` to `merge` for it.

`merge` runs in the target's transaction and leaves it open. An error aborts that transaction: use a
savepoint to go on in it. If foreign keys bind several tables, `apply_all` finds the
order.
"""

from pgqpy_consumers.apply._change import (
    BadEvent,
    Change,
    Latest,
    Number,
    change_of,
    json_text,
    rounds,
)
from pgqpy_consumers.apply._merge import ApplyError, apply_all, merge
from pgqpy_consumers.apply._table import Column, ColumnMissing, Table, TableMissing, describe

__all__ = [
    "ApplyError",
    "BadEvent",
    "Change",
    "Column",
    "ColumnMissing",
    "Latest",
    "Number",
    "Table",
    "TableMissing",
    "apply_all",
    "change_of",
    "describe",
    "json_text",
    "merge",
    "rounds",
]
