"""The last hour of a queue's rate, as the console and `pgqpy top` find it when they start."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pgqpy.doctor._history import SPAN, History
from pgqpy.doctor._queues import status_of
from pgqpy.doctor._readings import read
from pgqpy.doctor._status import judge
from tests.fixtures.fix_db import Connection

# A tick a minute for two hours; half an hour ago the ticker made one each 10 ms for 20 seconds.
TICKS = """
with made as (
    select now() - n * interval '1 min' as time, 0 as events from generate_series(1, 120) n
     union all
    select now() - interval '30 min 20 s' + n * interval '10 ms', 5 from generate_series(1, 2000) n)
insert into pgq.tick_0 (
       tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq, tick_early, tick_fence)
select t.tick_queue, t.tick_id + row_number() over w, m.time, t.tick_snapshot,
       1000 + sum(m.events) over w, false, t.tick_fence
  from made m, (select * from pgq.tick_log) t
window w as (order by m.time)
"""
PATIENCE = timedelta(minutes=5)


@pytest.mark.smoke
def test_the_last_hour_is_known_at_once(conn: Connection) -> None:
    conn.execute("select pgq.create_queue('orders')")
    conn.execute(TICKS.encode())
    history = History()
    status = status_of(judge(read(conn, None, PATIENCE), PATIENCE))
    history.read(conn, status)
    now = status.server.time.timestamp()
    rates = list(history["in", "orders"].rates)
    assert 55 < len(rates) < 500
    assert now - SPAN - 100 < rates[0][0] < now - SPAN + 150
    for time, rate in rates:
        # Each is a mean of two minutes at most.
        busy = -1 < now - time - 1800 + 20 < 20
        assert rate > 50 if busy else now - 1800 - 150 < time < now - 1800 + 150 or rate == 0
