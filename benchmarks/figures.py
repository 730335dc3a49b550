"""The figures to reach: the subject of each, and its target."""

from __future__ import annotations

import re

_FIGURES = """
1 | `insert_event`, one a transaction, 8 clients, synchronous_commit off, payload 130 bytes
  | at least 1.15 x PgQ C and 0.80 x a plain INSERT into a table with the same columns and index
2 | the same with synchronous_commit on, and with 1 client
  | at least 1.0 x PgQ C
3 | 200,000 events in one transaction: `insert_events`, and the Python producer's COPY
  | at least 0.8 x INSERT..SELECT, and 0.8 x COPY, into the plain table
4 | capture of an INSERT and of an UPDATE of 100,000 rows, by our statement-level capture
  | at least 2 x PgQ's C jsontriga
5 | capture of single-row statements, 8 clients
  | at least 0.9 x PgQ's C jsontriga
6 | our row trigger jsontriga on 100,000 rows
  | at least 8 x PgQ's PL/pgSQL one
7 | a Python consumer that streams 1,000,000 events
  | at least 0.8 x a psycopg binary COPY of the same rows out of a plain table; 2 x a python3-pgq
    consumer; memory flat
8 | delivery, insert to consumer's method, 1,000 events/s, default settings
  | p50 at most 5 ms, p99 at most 20 ms; first event after a minute idle at most 15 ms
9 | the same at the highest rate that the machine can insert, for 60 s
  | the backlog does not grow once producers pause: latency degrades into bigger batches and
    recovers within 2 s
10 | idle: 100 queues, 200 consumers, no events, 5 minutes
  | ticker plus consumers below 2% of a core together, WAL below 100 kB a minute
11 | a writing and a reading transaction held open for 15 minutes under 1,000 events/s
  | consumer cycles/s and latency at the end at least 0.95 of before; dead rows in every `pgq`
    relation bounded
12 | batch fetch time with 10,000,000 events of backlog, and with a transaction open since before
    them
  | within 1.2 x of an empty queue's
13 | 1,000 queues with 3 registered consumers each; 100 of the queues busy (10 events/s each), one
    consumer reading each of those
  | delivery p99 at most 250 ms, ticker below 30% of a core; a new connection's first insert below
    10 ms; creating and dropping queues meanwhile stalls no insert over 50 ms
14 | 24 hours of rotation in fast forward (short rotation period, 100,000,000 events in all or what
    an hour allows)
  | size on disk bounded by the rotation settings, throughput of the last tenth at least 0.95 of
    the first
C1 | `CoopConsumer`: 8 workers whose handler sleeps 5 ms an event
  | at least 7 x one worker
C2 | ordered groups: 8 partitions, 200 keys by Zipf's law, a handler of 1 ms
  | no reordering in 1,000,000 events, at least 5 x one worker
C3 | `queue_mover`: 1,000,000 events into another database's queue
  | at least 0.7 x `COPY out | COPY in` of the same rows
C4 | 100,000 dead letters, retries or delayed events at once, while they come about and while they
    wait
  | insert rate of normal events at least 0.9 x before
C5 | `table_loader` in bulk mode, 2 cores
  | at least 50,000 changes/s
C6 | `replicate`: pgbench's TPC-B at the full rate of 4 clients, the target on the same machine
  | keeps up: applies at least 0.99 of the changes as they come
C7 | delayed events, default settings: 200 due a second, and one every 3 seconds
  | p99 at most 100 ms later than due
Q1 | tasks pushed one a transaction, 8 clients, synchronous_commit off
  | at least 0.65 x a plain INSERT into a table with the same columns and indexes
Q2 | `push_many` of 10,000 tasks
  | at least 0.7 x INSERT..SELECT of the same rows
Q3 | tasks claimed and finished one by one, 8 workers, synchronous_commit off
  | at least 1.5 x the best of procrastinate, pgqueuer, pg-boss, graphile-worker, and of pgmq where
    its SQL is given
Q4 | tasks claimed and finished in batches of 100 by the Python worker
  | at least 25,000 tasks/s, or 3 x the best peer
Q5 | push to a waiting worker's function, default settings
  | p50 at most 5 ms, p99 at most 25 ms
Q6 | a writing and a reading transaction held open for 15 minutes under 2,000 tasks/s
  | tasks/s and time of a claim at the end at least 0.8 x before
Q7 | the same, from a minute after their end on
  | 1.0 x before
Q8 | claims and finishes with a backlog of 5,000,000 tasks
  | as fast as with 5,000
Q9 | rows of a table that the application has, a transaction for each and for each 100
  | at least 700 and 1,400 rows/s, what seed 001 reports
Q10 | the same behind 200,000 rows that are done and cannot be cleaned up
  | at least 0.8 x without
S1 | Spark, local[2]: 1,000,000 events of 110 bytes read as one range, and aggregated
  | at least 1.0 x Spark's own JDBC source on the same table with as many partitions
S2 | the same, with JSON payloads decoded to 6 typed columns
  | at least 1.0 x JDBC and from_json
S3 | a stream of 50,000 events/s, insert to sink
  | sustained: the backlog does not grow
S4 | a stream of 1,000 events/s, insert to foreachBatch, default trigger
  | p50 at most 1.5 s
S5 | 1,000,000 rows written into a queue
  | at least 0.7 x Spark's JDBC writer into a plain table
S6 | memory of an executor
  | flat with the size of the range
"""


FIGURES = {
    number: (" ".join(what.split()), " ".join(target.split()))
    for number, what, target in re.findall(
        r"(?ms)^([CQS]?\d+) \|(.+?)^  \|(.+?)(?=^[CQS]?\d|\Z)", _FIGURES
    )
}
"""The subject and the target, by number."""
