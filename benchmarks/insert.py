"""pgq.insert_event(), one event a transaction, eight clients."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import click

from benchmarks.contest import Contestant, show, take_turns
from benchmarks.place import PLAIN_TABLE, database, options, ours, pgq_c, start

CLIENTS = 8
DATA = "x" * 100
BY_HAND = f"insert into plain (ev_type, ev_data) values ('type', '{DATA}');"
BY_FUNCTION = f"select pgq.insert_event('q', 'type', '{DATA}');"
CREATE_QUEUE = "select pgq.create_queue('q')"


def pgbench(program: Path, script: Path, transactions: int, dsn: str) -> float:
    """Seconds for so many transactions of each client, connecting left out."""
    done = subprocess.run(
        [
            *(str(program), "--no-vacuum", "--protocol=prepared", f"--file={script}"),
            *(f"--client={CLIENTS}", "--jobs=2", f"--transactions={transactions}", dsn),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    rate = re.search(r"tps = ([\d.]+) \(without", done.stdout)
    assert rate is not None, done.stdout
    return transactions * CLIENTS / float(rate[1])


@click.command(help=__doc__)
@options
def main(quick: bool, version: int | None) -> None:
    transactions, rounds = (100, 1) if quick else (4_000, 9)
    with start(version) as server, tempfile.TemporaryDirectory() as directory:

        def contestant(name: str, statement: str, *scripts: str) -> Contestant:
            number = len(contestants)
            script = Path(directory) / f"{number}.sql"
            script.write_text(statement)
            dsn = database(server, f"insert_{number}", *scripts)
            program = server.bin_dir / "pgbench"
            return Contestant(name, partial(pgbench, program, script, transactions, dsn))

        contestants: list[Contestant] = []
        contestants.append(contestant("plain INSERT", BY_HAND, PLAIN_TABLE))
        contestants.append(contestant("pgqpy", BY_FUNCTION, ours(), CREATE_QUEUE))
        if pgq := pgq_c(server):
            contestants.append(contestant("PgQ, C", BY_FUNCTION, pgq, CREATE_QUEUE))
        take_turns(contestants, rounds)
        show(str(__doc__), contestants, items=transactions * CLIENTS, unit="events")


if __name__ == "__main__":
    main()
