"""Instructions that an insert, a captured change, and a task take, commit and all.

Counted by valgrind in a single-user backend, so nearly the same under any load of the machine;
without the client, waits for disks, and locks of others. A prepared statement is executed 20 and
220 times; the difference counts. Many events are those of one `pgq.insert_events` of 5,000; a look
of the ticker at 1,000 queues finds no events.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from psycopg.conninfo import conninfo_to_dict

from benchmarks._servers import (
    CREATE_QUEUE,
    OURS,
    PLAIN_TABLE,
    connect,
    database,
    implementations,
    pgqpy_database,
)
from benchmarks.bench import Bench
from benchmarks.bulk import AGGREGATED, ARRAYS, FROM_ARRAYS, FUNCTION, INSERT
from benchmarks.bulk import BY_FUNCTION as MANY_BY_FUNCTION
from benchmarks.bulk import BY_HAND as MANY_BY_HAND
from benchmarks.bulk import INTO_RELATION as MANY_INTO_RELATION
from benchmarks.bulk import RELATION as BY_RELATION
from benchmarks.capture import CAPTURE, INSERT_ONE, NONE, ROW_C, ways
from benchmarks.insert import BY_FUNCTION, BY_HAND, INTO_RELATION, PLAIN, RELATION
from benchmarks.task_push import BY_HAND as TASK_BY_HAND
from benchmarks.task_push import CREATE_TASKS, PAYLOAD, PLAIN_TASKS, PUSH
from pgqpy.embedded import Server
from pgqpy.embedded._programs import process_options, server_account

PINNED = """
alter function pgq.insert_event(text, text, text) set search_path = pg_catalog, pg_temp
"""
STATIC = f"""
{PLAIN_TABLE}
create function insert_plain() returns bigint language plpgsql as $$
declare
    id bigint := nextval('plain_id');
begin
    insert into plain (ev_id, ev_type, ev_data) values (id, 'type', '{"x" * 130}');
    return id;
end $$
"""


def copy_of(server: Server, directory: Path) -> Path:
    """A copy of the server's current data."""
    data = directory / "data"
    with connect(server.dsn) as conn:
        conn.execute("checkpoint")
    subprocess.run(
        [server.bin_dir / "pg_basebackup", "--pgdata", data, "--checkpoint=fast", "-d", server.dsn],
        check=True,
        **process_options(server_account()),
    )
    return data


def session(
    prefix: list[str], program: Path, data: Path, dsn: str, statement: str, times: int
) -> str:
    """Execute the statement ``times`` times in a session; returns what the program says."""
    name = str(conninfo_to_dict(dsn)["dbname"])
    lines = [f"prepare p as {statement.rstrip(';')}", *["execute p"] * times]
    done = subprocess.run(
        [*prefix, program, "--single", "-D", data, name],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
        **process_options(server_account()),
    )
    return str(done.stderr)


def instructions(program: Path, data: Path, dsn: str, statement: str, times: int) -> int:
    """The instructions of a session that executes the statement ``times`` times."""
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    said = session(valgrind, program, data, dsn, statement, times)
    found = re.search(r"Collected : (\d+)", said)
    assert found is not None, said
    return int(found[1])


MANY = 5_000
SOURCE = f"""
create table source as
select 'flight' as ev_type, rpad(n::text, 120, 'x') as ev_data from generate_series(1, {MANY}) n
"""
FLIGHTS = """
insert into flight
select nextval('flight_id'), 'EWR', 'UA', 5, now() from generate_series(1, 1000)
"""
QUEUES = 1_000
QUIET = """
create table quiet as
select quiet_queues as queues, quiet_seqs as seqs from pgq.ticker_round()
"""
TASKS = """
create sequence mine;
select pgq_task.create_queue('q');
select count(pgq_task.push('q', '{"id": 12345}')) from generate_series(1, 1000);
select setval('mine', id, false) from pgq_task.claim('{q}', 'me', random_choice => false)
"""
TWO_CALLS = """
select pgq_task.finish('me', id, version)
  from pgq_task.claim('{q}', 'me', random_choice => false)
"""
ONE_CALL = """
select id
  from pgq_task.finish_and_claim('me', nextval('mine'), 2, 'q', random_choice => false)
"""
UPDATE_ONE = "update flight set delay = delay + 1 where id = 77"


@dataclass(frozen=True, slots=True)
class Count:
    """Statements to compare, and the DSNs of their databases, by the same names."""

    title: str
    statements: Mapping[str, str]
    databases: Mapping[str, str]
    often: tuple[int, int]
    items: int = 1


def single_events(server: Server) -> Count:
    databases = {
        PLAIN: database(server, PLAIN_TABLE),
        "the same in PL/pgSQL": database(server, STATIC),
    }
    for name, script in implementations(server).items():
        databases[name] = database(server, script, CREATE_QUEUE)
    pinned = pgqpy_database(server, PINNED, CREATE_QUEUE)
    databases[f"{OURS}, with SET search_path"] = pinned
    statements = {
        PLAIN: BY_HAND,
        RELATION: INTO_RELATION,
        f"{RELATION}, returning ev_id": INTO_RELATION.replace(";", " returning ev_id"),
        **dict.fromkeys(databases, BY_FUNCTION),
    }
    statements |= {PLAIN: BY_HAND, "the same in PL/pgSQL": "select insert_plain()"}
    databases |= dict.fromkeys((name for name in statements if RELATION in name), databases[OURS])
    return Count("one event in a transaction", statements, databases, (20, 220))


def many_events(server: Server) -> Count:
    many = pgqpy_database(server, CREATE_QUEUE, PLAIN_TABLE, SOURCE)
    statements = {
        INSERT: MANY_BY_HAND,
        BY_RELATION: MANY_INTO_RELATION,
        ARRAYS: " ".join(FROM_ARRAYS.split()),
        FUNCTION: MANY_BY_FUNCTION,
        "making the arrays": f"select cardinality(types), cardinality(data) from {AGGREGATED}",
    }
    databases = dict.fromkeys(statements, many)
    return Count("one of many events", statements, databases, (1, 3), MANY)


def captured_rows(server: Server) -> tuple[Count, Count]:
    databases = {
        name: database(server, *scripts, FLIGHTS)
        for name, scripts in ways(server).items()
        if name in (NONE, CAPTURE, ROW_C)
    }
    inserts, updates = (dict.fromkeys(databases, each) for each in (INSERT_ONE, UPDATE_ONE))
    return (
        Count("an INSERT of one row", inserts, databases, (20, 220)),
        Count("an UPDATE of one row", updates, databases, (20, 220)),
    )


def looks_at_queues(server: Server) -> Count:
    """The ticker daemon's query over many queues, without the commit."""
    created = (f"select pgq.create_queue('q{number}')" for number in range(QUEUES))
    quiet = pgqpy_database(server, *created, QUIET)
    statements = {
        "at all": "select ticks from pgq.ticker_round(false)",
        "knowing the quiet": "select ticks from quiet, pgq.ticker_round(false, 0, queues, seqs)",
    }
    databases = dict.fromkeys(statements, quiet)
    return Count("a look at one of many queues", statements, databases, (1, 11), QUEUES)


def pushes(server: Server) -> Count:
    restrict = (
        "select pgq_task.create_queue('another')",
        "select pgq_task.restrict_queue('another')",
    )
    statements = {
        PLAIN: TASK_BY_HAND,
        "push": PUSH,
        "push with a priority": f"select pgq_task.push('q', '{PAYLOAD}', priority => 1)",
        "push, while a queue is restricted": PUSH,
    }
    databases = {}
    for name in statements:
        more = restrict if "restricted" in name else ()
        databases[name] = pgqpy_database(server, PLAIN_TASKS, CREATE_TASKS, *more)
    statements = {name: " ".join(text.split()) for name, text in statements.items()}
    return Count("a push", statements, databases, (20, 220))


def tasks(server: Server) -> Count:
    statements = {"claim, finish": TWO_CALLS, "finish_and_claim": ONE_CALL}
    databases = {name: pgqpy_database(server, *TASKS.split(";")) for name in statements}
    statements = {name: " ".join(text.split()) for name, text in statements.items()}
    return Count("a task", statements, databases, (20, 220))


def run(bench: Bench) -> None:
    if shutil.which("valgrind") is None:
        bench.say("valgrind is not here, and nothing to count with")
        return
    with bench.server() as server, TemporaryDirectory() as directory:
        if server_account() is not None:
            Path(directory).chmod(0o777)
        counts = [single_events(server), *captured_rows(server), pushes(server), tasks(server)]
        counts += bench.choose([many_events(server), looks_at_queues(server)], quick=[])
        program, data = server.bin_dir / "postgres", copy_of(server, Path(directory))
        for count in counts:
            often = bench.choose(count.often, quick=(20, 40))
            found: dict[str, float] = {}
            for name, statement in count.statements.items():
                # The first session recovers the copied data. The first pushes find that no worker
                # waits: a copy does not know.
                session([], program, data, count.databases[name], statement, 3)
                few, many = (
                    instructions(program, data, count.databases[name], statement, times)
                    for times in often
                )
                found[name] = (many - few) / (often[1] - often[0]) / count.items
                bench.say(f"{count.title}, {name}: {found[name]:,.0f}")
            floor = next(iter(found))
            if RELATION in found:
                times = round(found[RELATION] / found[floor], 2)
                bench.at_most("R2", f"{RELATION}, times a {floor}", times, 1.3)
            bench.table(
                f"Instructions of {count.title}",
                ("", "thousands", "x the first"),
                [
                    (name, round(number / 1000, 1), round(number / found[floor], 2))
                    for name, number in found.items()
                ],
            )
