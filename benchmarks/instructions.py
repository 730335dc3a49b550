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
    # It reads a command a line.
    one_line = " ".join(statement.split()).rstrip(";")
    lines = [f"prepare p as {one_line}", *["execute p"] * times]
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
    """Statements to compare, with the DSNs of their databases."""

    title: str
    statements: Mapping[str, tuple[str, str]]
    often: tuple[int, int] = (20, 220)
    items: int = 1


def single_events(server: Server) -> Count:
    dsns = {
        name: database(server, script, CREATE_QUEUE)
        for name, script in implementations(server).items()
    }
    returning = INTO_RELATION.replace(";", " returning ev_id")
    statements = {
        PLAIN: (BY_HAND, database(server, PLAIN_TABLE)),
        RELATION: (INTO_RELATION, dsns[OURS]),
        f"{RELATION}, returning ev_id": (returning, dsns[OURS]),
        "the same in PL/pgSQL": ("select insert_plain()", database(server, STATIC)),
    }
    dsns[f"{OURS}, with SET search_path"] = pgqpy_database(server, PINNED, CREATE_QUEUE)
    statements |= {name: (BY_FUNCTION, dsn) for name, dsn in dsns.items()}
    return Count("one event in a transaction", statements)


def many_events(server: Server) -> Count:
    dsn = pgqpy_database(server, CREATE_QUEUE, PLAIN_TABLE, SOURCE)
    statements = {
        INSERT: MANY_BY_HAND,
        BY_RELATION: MANY_INTO_RELATION,
        ARRAYS: FROM_ARRAYS,
        FUNCTION: MANY_BY_FUNCTION,
        "making the arrays": f"select cardinality(types), cardinality(data) from {AGGREGATED}",
    }
    of_database = {name: (statement, dsn) for name, statement in statements.items()}
    return Count("one of many events", of_database, (1, 3), MANY)


def captured_rows(server: Server) -> tuple[Count, Count]:
    dsns = {
        name: database(server, *scripts, FLIGHTS)
        for name, scripts in ways(server).items()
        if name in (NONE, CAPTURE, ROW_C)
    }
    return (
        Count("an INSERT of one row", {name: (INSERT_ONE, dsn) for name, dsn in dsns.items()}),
        Count("an UPDATE of one row", {name: (UPDATE_ONE, dsn) for name, dsn in dsns.items()}),
    )


def looks_at_queues(server: Server) -> Count:
    """The ticker daemon's query over many queues, without the commit."""
    created = (f"select pgq.create_queue('q{number}')" for number in range(QUEUES))
    dsn = pgqpy_database(server, *created, QUIET)
    knowing = "select ticks from quiet, pgq.ticker_round(false, 0, queues, seqs)"
    statements = {
        "at all": ("select ticks from pgq.ticker_round(false)", dsn),
        "knowing the quiet": (knowing, dsn),
    }
    return Count("a look at one of many queues", statements, (1, 11), QUEUES)


def pushes(server: Server) -> Count:
    def dsn(*scripts: str) -> str:
        return pgqpy_database(server, PLAIN_TASKS, CREATE_TASKS, *scripts)

    restricted = dsn(
        "select pgq_task.create_queue('another')", "select pgq_task.restrict_queue('another')"
    )
    prior = f"select pgq_task.push('q', '{PAYLOAD}', priority => 1)"
    statements = {
        PLAIN: (TASK_BY_HAND, dsn()),
        "push": (PUSH, dsn()),
        "push with a priority": (prior, dsn()),
        "push, while a queue is restricted": (PUSH, restricted),
    }
    return Count("a push", statements)


def tasks(server: Server) -> Count:
    scripts = TASKS.split(";")
    statements = {
        "claim, finish": (TWO_CALLS, pgqpy_database(server, *scripts)),
        "finish_and_claim": (ONE_CALL, pgqpy_database(server, *scripts)),
    }
    return Count("a task", statements)


def run(bench: Bench) -> None:
    if shutil.which("valgrind") is None:
        bench.say("valgrind is not here, and nothing to count with")
        return
    with bench.server() as server, TemporaryDirectory() as directory:
        if server_account() is not None:
            Path(directory).chmod(0o777)
        counts = [single_events(server), *captured_rows(server), pushes(server), tasks(server)]
        counts += [each(server) for each in bench.choose((many_events, looks_at_queues), quick=())]
        program, data = server.bin_dir / "postgres", copy_of(server, Path(directory))
        for count in counts:
            often = bench.choose(count.often, quick=(20, 40))
            found: dict[str, float] = {}
            for name, (statement, dsn) in count.statements.items():
                # The first session recovers the copied data. The first pushes find that no worker
                # waits: a copy does not know.
                session([], program, data, dsn, statement, 3)
                few, many = (instructions(program, data, dsn, statement, each) for each in often)
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
