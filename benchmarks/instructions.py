"""How many instructions an insert takes, commit and all.

Counted by valgrind in a single-user backend: unlike times the number comes out nearly the same
whatever else the machine does, so it shows what a change to `pgq.insert_event` costs before any
clock does. It leaves out locks that others hold, the client, and waiting for disks. A prepared
statement is executed 20 and 220 times; shown is the difference, of one. The same function with the
clauses that it does without is there to show what these would cost.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import runner
from benchmarks.bench import Bench
from benchmarks.insert import BY_FUNCTION, BY_HAND, PLAIN
from benchmarks.place import (
    CREATE_QUEUE,
    OURS,
    PLAIN_TABLE,
    connect,
    database,
    implementations,
)
from pgqpy.embedded import Server
from pgqpy.embedded.account import process_options, server_account

DEFINER = "alter function pgq.insert_event(text, text, text) security definer"
PINNED = f"{DEFINER} set search_path = pg_catalog, pg_temp"
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
    """The server's data as they are now."""
    data = directory / "data"
    with connect(server.dsn) as conn:
        conn.execute("checkpoint")
    subprocess.run(
        [server.bin_dir / "pg_basebackup", "--pgdata", data, "--checkpoint=fast", "-d", server.dsn],
        check=True,
        **process_options(server_account()),
    )
    return data


def instructions(program: Path, data: Path, name: str, statement: str, times: int) -> int:
    """What a session takes that executes the statement so often."""
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    lines = [f"prepare p as {statement.rstrip(';')}", *["execute p"] * times]
    done = subprocess.run(
        [*valgrind, program, "--single", "-D", data, name],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
        **process_options(server_account()),
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1])


def run(bench: Bench) -> None:
    if shutil.which("valgrind") is None:
        bench.say("valgrind is not here, and nothing to count with")
        return
    more = bench.choose(200, quick=20)
    with bench.server() as server, TemporaryDirectory() as directory:
        account = server_account()
        if account is not None:
            Path(directory).chmod(0o777)
        statements = {PLAIN: BY_HAND, "the same in PL/pgSQL": "select insert_plain()"}
        databases = {PLAIN: "plain", "the same in PL/pgSQL": "static"}
        database(server, "plain", PLAIN_TABLE)
        database(server, "static", STATIC)
        scripts: dict[str, tuple[str, ...]] = {
            name: (script,) for name, script in implementations(server).items()
        }
        scripts |= {
            f"{OURS}, as security definer": (*scripts[OURS], DEFINER),
            f"{OURS}, and with SET search_path": (*scripts[OURS], PINNED),
        }
        for number, (name, parts) in enumerate(scripts.items()):
            databases[name], statements[name] = f"queue_{number}", BY_FUNCTION
            database(server, f"queue_{number}", *parts, CREATE_QUEUE)

        data = copy_of(server, Path(directory))
        # The first session recovers from the copying.
        instructions(server.bin_dir / "postgres", data, "postgres", "select 1", 1)
        counts = {}
        for name, statement in statements.items():
            few, many = (
                instructions(server.bin_dir / "postgres", data, databases[name], statement, times)
                for times in (20, 20 + more)
            )
            counts[name] = (many - few) / more
            bench.say(f"{name}: {counts[name]:,.0f}")

    bench.table(
        "Instructions of one event in a transaction",
        ("", "thousands", "of the plain INSERT's"),
        [
            (name, round(count / 1000), round(count / counts[PLAIN], 2))
            for name, count in counts.items()
        ],
    )


if __name__ == "__main__":
    runner.only("instructions")
