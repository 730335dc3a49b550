"""Capture a table: programs that write to it need not know about queues.

Needs a database with the schema (``pgqpy migrate``), named by PGQPY_DSN or libpq's
variables::

    python examples/capture.py
"""

from __future__ import annotations

import pgqpy

TABLE = """
create table if not exists account (
    id       int primary key,
    owner    text not null,
    balance  numeric not null
)
"""

CAPTURE = "select pgq.capture_table('account', 'accounts', old_values => 'row', replace => true)"


def main() -> None:
    with pgqpy.connect() as conn:
        pgqpy.Admin(conn).create_queue("accounts")
        conn.execute(TABLE)
        conn.execute(CAPTURE)
        conn.commit()

        # One statement, one trigger call, a thousand events.
        rows = conn.execute(
            "insert into account select n, 'owner ' || n, 100 from generate_series(1, 1000) n"
            " on conflict (id) do nothing"
        ).rowcount
        rows += conn.execute("update account set balance = balance - 1 where id <= 10").rowcount
        rows += conn.execute("delete from account where id = 1000").rowcount
        conn.commit()
        print(f"{rows:,} rows changed, as many events")

        # What a consumer will get.
        latest = conn.execute(
            "select ev_type, ev_data, ev_extra2 from pgq.event_template"
            " where ev_extra1 = 'public.account' order by ev_id desc limit 2"
        )
        for event_type, row, old_row in latest:
            print(event_type, row, old_row)


if __name__ == "__main__":
    main()
