"""PostgreSQL killed in the middle of load: every committed event arrives, none twice."""

from __future__ import annotations

import psycopg
import pytest

from pgqpy.embedded import Server
from pgqpy.schema import schema_sql
from tests.faults.load import QUEUE, Load, drain
from tests.fixtures import queue_ops as ops

pytestmark = pytest.mark.smoke

KILLS = 10


@pytest.mark.slow
def test_ten_times_sigkill_lose_no_committed_event_and_double_none(server: Server) -> None:
    with Server(version=server.version) as mortal:
        with psycopg.connect(mortal.dsn) as conn:
            conn.execute(schema_sql().encode())
        load = Load(mortal.dsn)
        load.start()
        try:
            for _ in range(KILLS):
                load.progress(effects=20)
                mortal.kill()
                mortal.restart()
            load.progress(effects=20)
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
                "select count(*) filter (where retry = 1), max(retry) from effect"
            ).fetchone()
            assert retries is not None
            assert retries[0] > 0
            assert retries[1] == 1
            assert conn.execute("select count(*) from pgq.retry_queue").fetchone() == (0,)
            assert ops.rotations(conn, QUEUE) > 0
