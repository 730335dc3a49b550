"""The parameters of a queue: names, meanings, values."""

from __future__ import annotations

from typing import Any

from psycopg import sql
from psycopg.rows import dict_row

import pgqpy
from pgqpy.cli._base.database import no_such_queue

#: The parameters of pgq.set_queue_config(), in the order of their display.
PARAMETERS = {
    "ticker_latency": "longest wait for a tick (null: as below)",
    "ticker_max_count": "a tick after this number of events",
    "ticker_max_lag": "a tick after so long, if there are events",
    "ticker_idle_period": "a tick after so long, also without events",
    "ticker_paused": "no ticks at all",
    "external_ticker": "ticks come from another program",
    "rotation_period": "event tables are switched so often (null: never)",
    "disable_insert": "the queue refuses events",
    "per_tx_limit": "most events of one transaction (null: any)",
    "key_window": "keys of events are remembered so long (null: no keys)",
}


def parse_value(text: str) -> str | None:
    """Return a parameter's value as typed; the word null is SQL's null."""
    return None if text.lower() == "null" else text


def read_config(conn: pgqpy.Connection, queue: str) -> dict[str, Any]:
    """Return the parameters of a queue and their values. Raises QueueNotFound."""
    query = sql.SQL("select {} from pgq.queue where queue_name = %s").format(
        sql.SQL(", ").join(
            sql.SQL("{} as {}").format(sql.Identifier(f"queue_{name}"), sql.Identifier(name))
            for name in PARAMETERS
        )
    )
    with conn.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(query, [queue]).fetchone()
    if found is None:
        raise no_such_queue(queue)
    return found
