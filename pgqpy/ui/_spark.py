"""Spark and replication: who computes, what streams have written, copies of tables, and consumers
whose effects are in this database."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pgqpy.admin import Admin
from pgqpy.consumer.progress import BatchProgress
from pgqpy.errors import InvalidParameter, translate_errors
from pgqpy.ui._view import Done, Look, View

SHOWN = 100
FORGET = "pgq.forget_stream_writer(text, text)"
#: Sessions by their names: see pgqpy_consumers.spark.
STREAM = re.compile(r"pgqpy (.+) stream")
SLICE = re.compile(r"pgqpy (.+) slice")
ARCHIVE = re.compile(r"pgqpy (.+?) \d+\.[^ :]+: (.+?) to (.+)", re.DOTALL)

SESSIONS = r"""
select pid, application_name as name, host(client_addr) as host, usename::text as role,
       backend_start as since
  from pg_stat_activity
 where datname = current_database()
   and application_name ~ '^pgqpy (spark (read|sink)$|batch \d{1,19}, \d{1,9} s|.+ (stream|slice)$'
                           '|.+ \d+\.[^ :]+: .+ to .)'
 order by backend_start, pid
 limit %s
"""
WRITERS = """
select q.queue_name as queue, w.sw_name as name, w.sw_stream as stream, w.sw_batch as batch,
       w.sw_time as time
  from pgq.stream_writer w
  join pgq.queue q on q.queue_id = w.sw_queue
 order by w.sw_time desc
 limit %s
"""
# Only a table that does not follow has changes that wait.
TABLES = """
select t.rpt_queue as queue, t.rpt_consumer as consumer, t.rpt_state as state,
       format('%%I.%%I', t.rpt_source_schema, t.rpt_source_table) as source,
       format('%%I.%%I', t.rpt_target_schema, t.rpt_target_table) as target,
       t.rpt_since as since, t.rpt_error as error,
       case when t.rpt_waiting then (
           select count(*)
             from (select from pgq_ext.replica_event e
                    where e.rpe_table = t.rpt_id and e.rpe_nr > t.rpt_applied
                    limit 10001) waiting) else 0 end as waiting,
       count(*) over () as total
  from pgq_ext.replica_table t
 order by t.rpt_state <> 'failed', t.rpt_state = 'in_step', 1, 4
 limit %s
"""
SEQUENCES = """
select rps_queue as queue, rps_consumer as consumer,
       format('%%I.%%I', rps_source_schema, rps_source_sequence) as source,
       format('%%I.%%I', rps_target_schema, rps_target_sequence) as target
  from pgq_ext.replica_sequence
 order by 1, 3
 limit %s
"""
REMOTE = """
select consumer_id as consumer, subconsumer_id as part, prg_tick as tick, prg_tick_time as time,
       prg_batch as batch
  from pgq_ext.progress
 order by 1, 2
 limit %s
"""
NEEDED = {
    "writers": ("pgq.stream_writer", WRITERS),
    "tables": ("pgq_ext.replica_table", TABLES),
    "sequences": ("pgq_ext.replica_sequence", SEQUENCES),
    "remote": ("pgq_ext.progress", REMOTE),
}


def spark(look: Look) -> dict[str, Any]:
    visit = look.visit
    # None: the role may not see it.
    values: dict[str, Any] = {
        name: visit.rows(statement, [SHOWN]) if visit.may(relation) else None
        for name, (relation, statement) in NEEDED.items()
    }
    work = [each | _work(each["name"]) for each in visit.rows(SESSIONS, [SHOWN])]
    streaming = {each["consumer"] for each in work if each["what"] == "stream"}
    archives = {
        (each["queue"], each["consumer"], each["path"]) for each in work if each["path"] is not None
    }
    infos = Admin(visit.conn).get_consumer_info() if streaming or archives else ()
    found = {(each.queue_name, each.consumer_name): each for each in infos}
    return values | {
        "sessions": work,
        "streams": [each for (_, name), each in found.items() if name in streaming],
        "archives": [
            {
                "queue": queue,
                "consumer": consumer,
                "path": path,
                "info": found.get((queue, consumer)),
            }
            for queue, consumer, path in sorted(archives)
        ],
        "may_forget": visit.may_change_by(FORGET),
    }


def _work(name: str) -> dict[str, Any]:
    """Tell from a session's name what it does."""
    found: dict[str, Any] = {"what": "", "consumer": None, "progress": None, "path": None}
    if archive := ARCHIVE.fullmatch(name):
        found |= {"what": "archives", "consumer": archive[1], "queue": archive[2]}
        # PostgreSQL cuts names at 63 bytes.
        found["path"] = archive[3] + ("…" if len(name) == 63 else "")
    elif stream := STREAM.fullmatch(name):
        found |= {"what": "stream", "consumer": stream[1]}
    elif part := SLICE.fullmatch(name):
        found |= {"what": "reads a slice", "consumer": part[1]}
    elif progress := BatchProgress.from_session_name(name):
        consumer = name.partition(": ")[2]
        found |= {"what": "batch", "consumer": consumer, "progress": progress}
    else:
        found["what"] = "reads ticks" if name.endswith("read") else "writes a stream"
    return found


def forget(look: Look, form: Mapping[str, str]) -> Done:
    queue, name = form.get("queue", ""), form.get("writer", "")
    with translate_errors():
        gone = look.visit.conn.execute(
            "select pgq.forget_stream_writer(%s, %s)", [queue, name]
        ).fetchone()
    if not gone or not gone[0]:
        raise InvalidParameter(f"there is no stream {name} that writes to {queue}")
    return Done(f"forgot the stream {name}: another one may write under this name", count=1)


VIEWS = [View("spark", "Spark & replication", spark, {"forget": forget}, menu="spark")]
