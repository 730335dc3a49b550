"""Two thousand task queues, and one that has used many priorities.

The relations of a queue, and the time to create all, to count and list them, and to claim from all
while they are empty. One claim from a queue that has had a task of each priority, all of which are
done, next to a new queue. The fastest of seven calls each.
"""

from __future__ import annotations

from time import perf_counter

from benchmarks._servers import OURS, Connection, connect, database, implementations
from benchmarks.bench import Bench

RELATIONS = "select count(*) from pg_class"
NAMES = "(select array_agg(queue_name) from pgq_task.queue)"
CREATE = """
do $$
begin
    for n in 1 .. %d loop
        perform pgq_task.create_queue('q' || n);
        commit;
    end loop;
end $$
"""
PUSH = "select pgq_task.push('used', '1', priority => n) from generate_series(1, %s) n"
DRAIN = (
    "select pgq_task.finish_many('w', array_agg(id), array_agg(version))"
    " from pgq_task.claim('{used}', 'w', max_tasks => 100000)"
)


def run(bench: Bench) -> None:
    queues, priorities = bench.choose((2_000, 3_000), quick=(50, 20))
    with bench.server() as server:
        dsn = database(server, "queues", implementations(server)[OURS])
        with connect(dsn) as conn:
            before = number(conn, RELATIONS)
            created = took(conn, CREATE % queues)
            relations = number(conn, RELATIONS) - before
            push_all = f"select pgq_task.push('q' || n, '1') from generate_series(1, {queues}) n"
            calls = {
                "get_queue_info()": "select * from pgq_task.get_queue_info()",
                "get_statistics()": "select * from pgq_task.get_statistics()",
                "claim from all, empty": f"select * from pgq_task.claim({NAMES}, 'w')",
            }
            found = {name: best(conn, call) for name, call in calls.items()}
            conn.execute(push_all.encode())
            found["get_queue_info(), a task in each"] = best(conn, calls["get_queue_info()"])
            conn.execute("select pgq_task.create_queue(q) from unnest(array['used', 'new']) q")
            conn.execute(PUSH, [priorities])
            found[f"claim of {priorities:,} priorities"] = took(conn, DRAIN)
            while number(conn, "select count(*) from pgq_task.lane where priority > 0"):
                conn.execute("select pgq_task.sweep()")
            for queue in ("used", "new"):
                name = f"claim from one, empty, {queue}"
                found[name] = best(conn, f"select * from pgq_task.claim('{{{queue}}}', 'w')")
    bench.table(
        f"{queues:,} queues",
        ("", "", "unit"),
        [
            ("relations", relations, ""),
            ("create_queue, all", round(created, 1), "s"),
            *((name, round(1000 * seconds, 2), "ms") for name, seconds in found.items()),
        ],
    )


def number(conn: Connection, query: str) -> int:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def took(conn: Connection, query: str) -> float:
    began = perf_counter()
    conn.execute(query.encode())
    return perf_counter() - began


def best(conn: Connection, query: str) -> float:
    return min(took(conn, query) for _ in range(7))
