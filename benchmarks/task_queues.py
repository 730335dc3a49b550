"""Two thousand task queues, and one that has used many priorities.

The relations of a queue, and the time to create all, to count and list them, and to claim from all
while they are empty. One claim from a queue that has had a task of each priority, all of which are
done, next to a new queue. The fastest of seven calls each.

Tenants: one session claims and finishes tasks of a queue, of a queue whose tasks are those of one
tenant, and of a thousand. The time until it claims a task pushed after 100,000 others, into
their queue or as that of another tenant, 100 at a time.
"""

from __future__ import annotations

from time import perf_counter

from benchmarks._servers import Connection, connect, pgqpy_database
from benchmarks.bench import Bench, timed

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
        dsn = pgqpy_database(server)
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

    with bench.server() as server:
        dsn = pgqpy_database(server)
        with connect(dsn) as conn:
            tenants(bench, conn)


CLAIM_ALL = """
do $$
begin
    for n in 1 .. %(claims)s loop
        perform pgq_task.finish_many('w', array_agg(id), array_agg(version))
           from pgq_task.claim('{%(queue)s}', 'w', max_tasks => %(batch)s);
        commit;
    end loop;
end $$
"""
ONE_BATCH = """
with claimed as (select * from pgq_task.claim('{%s}', 'w', max_tasks => 100)),
finished as (select pgq_task.finish_many('w', array_agg(id), array_agg(version)) from claimed)
select bool_or(payload = '"small"') from claimed left join finished on true
"""
FILL = "select pgq_task.push_many(%s, array_fill('1'::jsonb, array[%s]))"


def tenants(bench: Bench, conn: Connection) -> None:
    many, waiting, claims = bench.choose((1_000, 100_000, 500), quick=(20, 1_000, 20))
    for queue in ("plain", "one", "all", "shared"):
        conn.execute("select pgq_task.create_queue(%s)", [queue])
        if queue != "plain":
            conn.execute("select pgq_task.set_queue_config(%s, 'keep_tenants', '1 day')", [queue])
    rows: list[tuple[str, float, str]] = []
    for batch in (1, 100):
        needed = claims * batch
        conn.execute(FILL, ["plain", needed])
        conn.execute(FILL, ["one/a", needed])
        for tenant in range(many):
            conn.execute(FILL, [f"all/{tenant}", needed // many + 1])
        conn.execute("vacuum analyze pgq_task.task")
        for queue, what in {
            "plain": "a queue",
            "one": "one tenant",
            "all": f"{many:,} tenants",
        }.items():
            call = CLAIM_ALL % {"claims": claims, "queue": queue, "batch": batch}
            per_second = round(needed / took(conn, call))
            rows.append((f"{what}, claims of {batch}", per_second, "tasks/s"))
    for queue, big, small in (
        ("plain", "plain", "plain"),
        ("shared", "shared/big", "shared/small"),
    ):
        conn.execute(FILL, [big, waiting])
        conn.execute("select pgq_task.push(%s, '\"small\"')", [small])
        began = perf_counter()
        while conn.execute((ONE_BATCH % queue).encode()).fetchone() != (True,):
            pass
        seconds = perf_counter() - began
        where = "in their queue" if small == big else "another tenant's"
        rows.append((f"behind {waiting:,}, {where}", round(1000 * seconds, 1), "ms"))
    bench.table("Tenants", ("", "", "unit"), rows)


def number(conn: Connection, query: str) -> int:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def took(conn: Connection, query: str) -> float:
    return timed(conn.execute, query.encode())


def best(conn: Connection, query: str) -> float:
    return min(took(conn, query) for _ in range(7))
