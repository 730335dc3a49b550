"""PostgreSQL killed in the middle of load: every committed event arrives, none twice."""

from __future__ import annotations

import psycopg
import pytest

from pgqpy.embedded import Server
from tests.faults.load import QUEUE, Load, drain
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import wait_until

pytestmark = [pytest.mark.smoke, pytest.mark.slow]

KILLS = 4


def test_a_server_killed_again_and_again_loses_no_committed_event_and_doubles_none(
    mortal: Server,
) -> None:
    load = Load(mortal.dsn)
    load.start()
    try:
        for _ in range(KILLS):
            load.progress(effects=20)
            mortal.kill()
            mortal.restart()
        load.progress(effects=20)
        with psycopg.connect(mortal.dsn, autocommit=True) as conn:
            wait_until(lambda: ops.rotations(conn, QUEUE))
    finally:
        load.stop()

    with psycopg.connect(mortal.dsn, autocommit=True) as conn:
        drain(conn)
        app = {data for (data,) in conn.execute("select data from app").fetchall()}
        # The key of this table keeps doubles from being overlooked.
        effect = {data for (data,) in conn.execute("select data from effect where retry = 0")}
        assert effect == app
        assert set(load.durable) <= app
        retries = conn.execute(
            "select count(*) filter (where retry = 1) > 0, max(retry) from effect"
        ).fetchone()
        assert retries == (True, 1)
        assert conn.execute("select count(*) from pgq.retry_queue").fetchone() == (0,)


def test_the_first_push_after_a_crash_wakes_workers(mortal: Server) -> None:
    """A crash forgets whether a worker waits. A writer's push that reads no row finds out, too."""
    with psycopg.connect(mortal.dsn, autocommit=True) as conn:
        conn.execute("select pgq_task.create_queue('mails')")
    for push in (
        "push('mails', '1')",
        "push('mails', '1', priority => 1)",
        "push_many('mails', array['1'::jsonb])",
    ):
        mortal.kill()
        mortal.restart()
        with psycopg.connect(mortal.dsn, autocommit=True) as conn:
            conn.execute("listen pgq_task")
            conn.execute("set session authorization pgq_writer")
            for _ in range(2):
                conn.execute(f"select pgq_task.{push}".encode())
            assert len(list(conn.notifies(timeout=0.2))) == 1
